//! What changed, for programs: `plimsoll.diff/1`. Pairs are before and after.

use plimsoll_trace::explain::{Amount, Change, Totals};
use serde_json::{Value, json};

use super::{Both, Pair};

/// The whole answer; the changes of all lines sum to that of the peak, and so do those of all categories.
pub(super) fn render(both: &Both) -> String {
    let devices: Vec<Value> = both.pairs.iter().map(|pair| device(both, pair)).collect();
    let alone = both.alone.iter();
    let value = json!({
        "schema": "plimsoll.diff/1",
        "files": both.files.each_ref().map(|file| file.file.as_str()),
        "devices": devices,
        "devices_in_one_file":
            alone.map(|(side, device)| json!({ "file": both.files[*side].file, "device": device })).collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

fn device(both: &Both, pair: &Pair) -> Value {
    let comparison = &pair.comparison;
    let lines = comparison.lines.iter().map(|change| {
        let [a, b] = [0, 1].map(|side| change.key.frames[side].map(|frame| both.files[side].line(frame)));
        row(change, json!({ "lines": [a, b], "category": change.key.category.map(|it| it.name()) }))
    });
    let categories = comparison
        .categories
        .iter()
        .map(|change| row(change, json!({ "category": change.key.map(|it| it.name()) })));
    let total = |of: fn(&Totals) -> u64| comparison.totals.each_ref().map(of);
    let devices = both.devices(pair);
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
