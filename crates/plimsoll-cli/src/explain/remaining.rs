//! The blocks that are live when the recording ends, compared with the explained moment.

use plimsoll_trace::explain::{Amount, Change, DeviceExplanation, Remaining};
use plimsoll_trace::render::{remaining as say, words};
use plimsoll_trace::report::{Rank, Section};
use serde_json::{Value, json};

use crate::explained::Explained;
use crate::shown::Shown;

/// The section of one device; empty if little remains.
pub(super) fn section(explained: &Explained, device: &DeviceExplanation, shown: Shown) -> Section {
    let Some(remaining) = Remaining::of(explained.analysis(device), device) else {
        return Section::data("held_at_end", Value::Null);
    };
    let sentence = say::sentence(&remaining, device, |bytes| shown.size(bytes));
    let mut said = vec![format!("{:>12}  {:>20}", "at the end", words::when(device))];
    let row = |amounts: [Amount; 2], what: &str| {
        let [then, end] = amounts.map(|amount| shown.size(amount.bytes));
        format!("{end:>12}  {then:>20}  {what}")
    };
    for Change { key, amounts } in remaining.categories() {
        said.push(row(amounts, &words::category(&explained.snapshot, key)));
    }
    let lines = remaining.lines();
    for Change { key, amounts } in lines.iter().take(shown.rows) {
        let place = key.frame().map(|frame| words::line(&explained.snapshot, frame));
        let place = place.as_deref().unwrap_or(words::NO_LINE);
        let purpose = words::purpose(&explained.snapshot, key.category);
        said.push(row(*amounts, &format!("  {purpose:<15}  {place}")));
    }
    if lines.len() > shown.rows {
        said.push(format!("{} more", lines.len() - shown.rows));
    }
    Section::lines("held_at_end", Rank::Full, said)
        .headed("Live at the end")
        .noted(format!(": {sentence}"))
        .valued(as_json(explained, &remaining))
}

/// The remaining memory as JSON.
fn as_json(explained: &Explained, remaining: &Remaining) -> Value {
    let categories = remaining.categories().into_iter().map(|Change { key, amounts: [then, end] }| {
        json!({
            "category": key.name(&explained.snapshot),
            "bytes": end.bytes,
            "blocks": end.blocks,
            "explained_moment_bytes": then.bytes,
        })
    });
    let lines = remaining.lines().into_iter().map(|Change { key, amounts: [then, end] }| {
        json!({
            "line": key.frame().map(|frame| explained.line(frame)),
            "category": key.category.name(&explained.snapshot),
            "bytes": end.bytes,
            "blocks": end.blocks,
            "explained_moment_bytes": then.bytes,
        })
    });
    json!({
        "bytes": remaining.end_bytes,
        "explained_moment_bytes": remaining.then_bytes,
        "by_category": categories.collect::<Vec<_>>(),
        "by_line": lines.collect::<Vec<_>>(),
    })
}
