//! Several devices in one recording: the verdict, a row for each device, and the bytes on each device of lines
//! that allocated on several devices.

use std::fmt::Write;

use plimsoll_trace::render::devices::{decisive, part, verdict};
use plimsoll_trace::render::ranks::{COLUMNS, RankTable, line as line_name};
use plimsoll_trace::render::{failure, words};
use serde_json::{Value, json};

use super::job;
use crate::bytes;
use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::shown::Shown;

/// The width of a column, in characters.
const COLUMN: usize = 30;

/// The part of the report about all devices, which comes before the parts about each device.
pub(super) fn head(out: &mut String, explained: &Explained, shown: Shown) {
    let size = |bytes| shown.size(bytes);
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{BOLD}{}{RESET}", verdict(&explained.devices, size));
    if let Some(device) = decisive(&explained.devices) {
        for line in failure::request(&explained.snapshot, &explained.origins, device, size) {
            let _ = writeln!(out, "{line}");
        }
    }
    let table = RankTable::of_devices(explained.report());
    job::rows(out, &table, shown);
    parts(out, &table, shown);
}

/// The lines with blocks on several devices.
fn parts(out: &mut String, table: &RankTable<'_>, shown: Shown) {
    let (shared, count) = (table.shared(), table.devices.len());
    if shared.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Lines with blocks on several devices, at each device's peak{RESET}");
    let is_wide = count <= COLUMNS;
    if is_wide {
        let names: String = (0..count).map(|nth| format!("{:>COLUMN$} ", table.name(nth))).collect();
        let _ = writeln!(out, "  {}", names.trim_end());
    }
    for line in shared.iter().take(shown.rows) {
        let place = line_name(line);
        if is_wide {
            let cell = |nth| format!("{}  {}", shown.size(line.across.bytes[nth]), part(line, nth));
            let cells: String = (0..count).map(|nth| format!("{:>COLUMN$} ", cell(nth))).collect();
            let _ = writeln!(out, "  {cells} {place}");
        } else {
            let [least, _, most] = line.across.range().map(|bytes| shown.size(bytes));
            let blocks = line.sum_blocks();
            let _ = writeln!(out, "  {least:>13} to {most:>13} of {blocks} blocks  {place}");
        }
    }
    if shared.len() > shown.rows {
        let _ = writeln!(out, "  {} more", shared.len() - shown.rows);
    }
}

/// The verdict of the recording, and the device that decides it: `null` if no device decides the verdict.
pub(super) fn verdict_as_json(explained: &Explained) -> Value {
    let failed = explained.devices.iter().any(|device| device.failure.is_some());
    // For a device without events, it is unknown whether memory ran out.
    let failed = (failed || explained.devices.iter().all(words::has_events)).then_some(failed);
    json!({
        "text": verdict(&explained.devices, |bytes| bytes::shown(bytes, false)),
        "device": decisive(&explained.devices).map(|device| device.timeline.device),
        "failed": failed,
    })
}

/// The lines with blocks on several devices; bytes and blocks in the order of the devices.
pub(super) fn parts_as_json(explained: &Explained) -> Value {
    let table = RankTable::of_devices(explained.report());
    let rows = table.shared().into_iter().map(|line| {
        json!({
            "line": job::place(line.place.as_ref()),
            "package_line": job::place(line.package.as_ref()),
            "bytes": line.across.bytes,
            "blocks": line.blocks,
        })
    });
    rows.collect()
}
