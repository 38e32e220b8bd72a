//! The changes, for programs: `plimsoll.diff/1`. Pairs are before and after.

use plimsoll_trace::explain::{Amount, Change, Totals};
use plimsoll_trace::render::comparison::{Compared, SnapshotDiff};
use serde_json::{Value, json};

use crate::explained::Explained;

/// The complete answer. The changes of all lines sum to the change of the peak, and so do the changes of all
/// categories.
pub(super) fn render(files: &[Explained; 2], diff: &SnapshotDiff<'_>) -> String {
    let devices: Vec<Value> = diff.pairs.iter().map(|pair| device(files, pair)).collect();
    let alone = diff
        .alone
        .iter()
        .map(|&(side, device)| json!({ "file": diff.reports[side].file, "device": device.timeline.device }));
    let value = json!({
        "schema": "plimsoll.diff/1",
        "files": diff.reports.map(|report| report.file),
        "devices": devices,
        "devices_in_one_file": alone.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

fn device(files: &[Explained; 2], pair: &Compared<'_>) -> Value {
    let Compared { comparison, devices, .. } = pair;
    let lines = comparison.lines.iter().map(|change| {
        let [a, b] = [0, 1].map(|side| change.key.frames[side].map(|frame| files[side].line(frame)));
        row(change, json!({ "lines": [a, b], "category": change.key.category.name(&files[0].snapshot) }))
    });
    let categories = comparison
        .categories
        .iter()
        .map(|change| row(change, json!({ "category": change.key.name(&files[0].snapshot) })));
    let total = |of: fn(&Totals) -> u64| comparison.totals.each_ref().map(of);
    json!({
        "devices": devices.map(|device| device.timeline.device),
        "peak_allocated_bytes": total(|totals| totals.peak_allocated_bytes),
        "peak_reserved_bytes": total(|totals| totals.peak_reserved_bytes),
        "allocations": total(|totals| totals.allocations),
        "failed": devices.map(|device| device.failure.is_some()),
        "ring_overflowed": devices.map(|device| device.timeline.quality.is_cut),
        "by_category": categories.collect::<Vec<_>>(),
        "by_line": lines.collect::<Vec<_>>(),
    })
}

fn row<K>(change: &Change<K>, mut key: Value) -> Value {
    let amounts = |of: fn(&Amount) -> u64| json!(change.amounts.each_ref().map(of));
    key["change_bytes"] = (change.bytes().clamp(i64::MIN.into(), i64::MAX.into()) as i64).into();
    key["bytes"] = amounts(|amount| amount.bytes);
    key["blocks"] = amounts(|amount| amount.blocks);
    key
}
