//! The peaks of phases side by side, and why one step needed more memory than another step.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::Report;
use super::cells::{self, Bar, ChangeBar, Changed, Size};
use super::kinds::kind;
use super::panels::swatch;
use super::text::{Sentence, Text};
use crate::explain::DeviceExplanation;
use crate::render::{phases as say, words};

/// The number of phases to show.
const PHASES: usize = 20;
/// The number of lines to show for a rise.
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
    out.push_str(
        "<h3>Peaks by phase, counting all memory allocated at that time</h3><table class=\"phases\"><thead><tr>",
    );
    out.push_str("<th>allocated<th class=\"bar\">of the highest<th>phase<th>step<th>allocated at<tbody>");
    for &(phase, moment) in phases.iter().take(PHASES) {
        let bytes = moment.level.allocated_bytes;
        let step = device.step_at(moment).map_or_else(String::new, |step| format!("step {step}"));
        let line = device.asker_at(report.snapshot, report.origins, moment);
        let line = line.map_or_else(String::new, |frame| cells::line(report, Some(frame)));
        let (bar, name) = (Bar::plain(bytes, of), say::phase(report.snapshot, phase));
        write!(out, "<tr><td>{}{bar}<td>{}<td>{step}<td>{line}", Size(bytes), Text(name))?;
    }
    if let Some(rest) = phases.len().checked_sub(PHASES).filter(|&rest| rest > 0) {
        write!(out, "<tr><td><td class=\"bar\"><td>{}<td><td>", words::counted(rest as u64, "more phase"))?;
    }
    out.push_str("</table>");
    Ok(())
}

fn rises(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    for rise in device.peaks.rises(device.analysis(report.snapshot, report.origins)) {
        let sentence = say::rise(report.snapshot, device, &rise, |bytes| Bytes(bytes).to_string());
        write!(out, "<h3>{}</h3><table class=\"rise\"><thead><tr>", Sentence(sentence))?;
        out.push_str("<th>change<th class=\"bar\">less | more<th>category<th>line<tbody>");
        let changed: Vec<_> = rise.lines.iter().filter(|line| line.bytes() != 0).collect();
        let (listed, rest) = changed.split_at(changed.len().min(LINES));
        let by: i128 = rest.iter().map(|line| line.bytes()).sum();
        let all = listed.iter().map(|line| line.bytes()).chain([by]);
        let of = all.map(i128::unsigned_abs).max().unwrap_or(0);
        let row = |bytes: i128| format!("<tr><td>{}{}", Changed(bytes), ChangeBar { bytes, of });
        for line in listed {
            let (category, place) = (line.key.category, cells::line(report, line.key.frame()));
            let what = Text(&words::purpose(report.snapshot, category)).to_string();
            write!(
                out,
                "{}<td>{}{what}<td>{place}",
                row(line.bytes()),
                swatch(kind(report.origins, category))
            )?;
        }
        if !rest.is_empty() {
            write!(out, "{}<td>{}<td>", row(by), words::counted(rest.len() as u64, "more line"))?;
        }
        out.push_str("</table>");
    }
    Ok(())
}
