//! The beginning of a page about a recording of several devices: the recording's verdict, the advice and the largest
//! owners for the most important device, a row for each device, and the lines with blocks on several devices.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::cells::Size;
use super::panels::panels;
use super::text::{Sentence, Text};
use super::{Section, ranks, summary};
use crate::explain::DeviceExplanation;
use crate::render::ranks::{COLUMNS, RankTable, line as line_name};
use crate::render::{Report, devices, words};

/// The number of lines to list.
const LINES: usize = 20;

/// The device on the first screen: the device that decides the verdict, or else the device with the highest peak.
/// Devices must be in the order of [`devices::worst_first`].
pub(super) fn foremost<'a>(report: &Report<'a>) -> &'a DeviceExplanation {
    let allocated = |device: &&DeviceExplanation| device.timeline.peak_allocated.level.allocated_bytes;
    // Of devices with equal peaks, the first counts.
    let largest = || report.devices.iter().rev().max_by_key(allocated);
    devices::decisive(report.devices).or_else(largest).expect("a recording with sections has devices")
}

/// `sections` has one section for each device, in the same order.
pub(super) fn head(out: &mut String, report: Report<'_>, sections: &[Section<'_>]) -> fmt::Result {
    let class = if report.devices.iter().any(words::is_bad) { "failed" } else { "well" };
    let verdict = devices::verdict(report.devices, |bytes| Bytes(bytes).to_string());
    write!(out, "<section class=\"head\"><h2 class=\"verdict {class}\">{}</h2>", Sentence(verdict))?;
    if let Some(section) = sections.iter().find(|section| section.is_summed_up) {
        summary::section(out, section, section.what_if().as_deref())?;
    }
    let table = RankTable::of_devices(report);
    let drawn: Vec<usize> = (0..sections.len()).collect();
    ranks::ranks(out, &table, &drawn, "device")?;
    parts(out, &table)?;
    let most = table.ranks.allocated.range()[2];
    panels(out, 0, sections, (most, "the highest peak"))?;
    out.push_str("</section>");
    Ok(())
}

/// The lines with blocks on several devices, and each device's part of these blocks.
fn parts(out: &mut String, table: &RankTable<'_>) -> fmt::Result {
    let (shared, count) = (table.shared(), table.devices.len());
    if shared.is_empty() || count > COLUMNS {
        return Ok(());
    }
    out.push_str("<h3>Lines with blocks on several devices, at each device's peak</h3><table class=\"across\"><thead><tr>");
    out.push_str("<th>total<th>blocks");
    (0..count).try_for_each(|nth| write!(out, "<th>{}", Text(table.name(nth))))?;
    out.push_str("<th>line<tbody>");
    for line in shared.iter().take(LINES) {
        write!(out, "<tr><td>{}<td>{}", Size(line.across.sum_bytes), line.sum_blocks())?;
        for nth in 0..count {
            let (of, part) = (Text(table.name(nth)), devices::part(line, nth));
            write!(out, "<td data-of=\"{of}\">{}, {part}", Size(line.across.bytes[nth]))?;
        }
        write!(out, "<td><code>{}</code>", Text(line_name(line)))?;
    }
    if let Some(rest) = shared.len().checked_sub(LINES).filter(|&rest| rest > 0) {
        out.push_str("<tr><td><td>");
        (0..count).for_each(|_| out.push_str("<td>"));
        write!(out, "<td>{}", words::counted(rest as u64, "more line"))?;
    }
    out.push_str("</table>");
    Ok(())
}
