//! What is live when the recording ends, compared with the moment that is explained.

use std::fmt::Write;

use plimsoll_trace::explain::{Amount, Change, DeviceExplanation, Remaining};
use plimsoll_trace::render::{remaining as say, words};
use serde_json::{Value, json};

use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::shown::Shown;

/// The section of one device; empty if little remains.
pub(super) fn section(out: &mut String, explained: &Explained, device: &DeviceExplanation, shown: Shown) {
    let Some(remaining) = Remaining::of(explained.analysis(device), device) else { return };
    let sentence = say::sentence(&remaining, device, |bytes| shown.size(bytes));
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "\n{BOLD}Live at the end{RESET}: {sentence}");
    let then = words::when(device);
    let _ = writeln!(out, "  {:>12}  {then:>20}", "at the end");
    let mut row = |[then, end]: [u64; 2], what: &str| {
        let _ = writeln!(out, "  {:>12}  {:>20}  {what}", shown.size(end), shown.size(then));
    };
    let bytes = |amounts: [Amount; 2]| amounts.map(|amount| amount.bytes);
    for Change { key, amounts } in remaining.categories() {
        row(bytes(amounts), &words::category(&explained.snapshot, key));
    }
    let lines = remaining.lines();
    for Change { key, amounts } in lines.iter().take(shown.rows) {
        let place = key.frame().map(|frame| words::line(&explained.snapshot, frame));
        let place = place.as_deref().unwrap_or(words::NO_LINE);
        row(
            bytes(*amounts),
            &format!("  {:<15}  {place}", words::purpose(&explained.snapshot, key.category)),
        );
    }
    if lines.len() > shown.rows {
        let _ = writeln!(out, "  {} more", lines.len() - shown.rows);
    }
}

/// The same as JSON; `null` if little remains.
pub(super) fn as_json(explained: &Explained, device: &DeviceExplanation) -> Value {
    let Some(remaining) = Remaining::of(explained.analysis(device), device) else { return Value::Null };
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
