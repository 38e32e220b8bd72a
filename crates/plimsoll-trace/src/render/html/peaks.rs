//! The peaks of phases side by side, and why one step took more than another.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::Report;
use super::cells::{self, Bar, Size};
use super::text::Text;
use crate::explain::DeviceExplanation;
use crate::render::words;

/// Phases that are told.
const PHASES: usize = 20;
/// Lines of a rise that are told.
const LINES: usize = 8;

/// The section of one device.
pub(super) fn section(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    phases(out, report, device)?;
    rises(out, report, device)
}

fn phases(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    let phases = &device.peaks.phases;
    if phases.len() < 2 {
        return Ok(());
    }
    let of = phases[0].1.level.allocated_bytes;
    out.push_str("<table><caption>Peaks by phase, with all that is allocated then</caption>");
    out.push_str("<thead><tr><th>phase<th>peak<th><th>step<th>asked for at</thead><tbody>");
    for &(phase, moment) in phases.iter().take(PHASES) {
        let bytes = moment.level.allocated_bytes;
        let step = device.step_at(moment).map_or_else(String::new, |step| step.to_string());
        let line = device.asker_at(report.snapshot, report.origins, moment);
        let line = line.map_or_else(String::new, |frame| cells::line(report, Some(frame)));
        let name = words::phase(report.snapshot, phase);
        write!(out, "<tr><th scope=\"row\">{}<td>{}{}", Text(name), Size(bytes), Bar::plain(bytes, of))?;
        write!(out, "<td>{step}<td>{line}")?;
    }
    out.push_str("</tbody></table>");
    Ok(())
}

fn rises(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    for rise in device.peaks.rises(device.known(report.snapshot, report.origins)) {
        let told = words::rise(report.snapshot, device, &rise, |bytes| Bytes(bytes).to_string());
        write!(out, "<table><caption>{}</caption><tbody>", Text(told))?;
        for line in rise.lines.iter().filter(|line| line.bytes() != 0).take(LINES) {
            let sign = if line.bytes() < 0 { "−" } else { "+" };
            let bytes = u64::try_from(line.bytes().unsigned_abs()).unwrap_or(u64::MAX);
            let [before, after] = line.key.frames;
            write!(out, "<tr><td>{sign}{}<td>{}", Size(bytes), words::purpose(line.key.category))?;
            write!(out, "<td>{}", cells::line(report, after.or(before)))?;
        }
        out.push_str("</tbody></table>");
    }
    Ok(())
}
