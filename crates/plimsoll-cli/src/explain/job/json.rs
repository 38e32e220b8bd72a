//! A comparison of ranks as JSON: `plimsoll.ranks/1`. Figures of all ranks are lists in the order of `ranks`.

use plimsoll_alloc::Bytes;
use plimsoll_trace::explain::{Across, Place};
use plimsoll_trace::render::ranks::RankTable;
use plimsoll_trace::render::verdict;
use serde_json::{Value, json};

/// The complete answer.
pub(super) fn render(job: &RankTable<'_>) -> String {
    let ranks = job.devices.iter().zip(&job.ranks.ranks).map(|((file, device), rank)| {
        json!({
            "name": rank.name,
            "file": file.file,
            "device": rank.device,
            "verdict": verdict::sentence(device, |bytes| Bytes(bytes).to_string()),
            "failed": device.failure.is_some(),
            "allocations": rank.totals.allocations,
        })
    });
    let lines = job.ranks.lines.iter().map(|line| {
        let mut row = across(&line.across);
        row["line"] = place(line.place.as_ref());
        row["package_line"] = place(line.package.as_ref());
        row["blocks"] = line.blocks.as_slice().into();
        row
    });
    let unreadable = job.unreadable.iter().map(|(name, why)| json!({ "name": name, "why": why }));
    let unused = job.unused.iter().map(|unused| {
        json!({
            "name": unused.rank,
            "file": unused.file,
            "used": unused.used,
            "why": unused.why,
            "verdict": unused.brief,
        })
    });
    let value = json!({
        "schema": "plimsoll.ranks/1",
        "complete": job.unreadable.is_empty(),
        "ranks": ranks.collect::<Vec<_>>(),
        "unreadable": unreadable.collect::<Vec<_>>(),
        "unused": unused.collect::<Vec<_>>(),
        "verdict": job.verdict(|bytes| Bytes(bytes).to_string()),
        "peak_allocated": across(&job.ranks.allocated),
        "peak_reserved": across(&job.ranks.reserved),
        "lines": lines.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

/// A line of the program; `null` for blocks that have no line.
pub(in crate::explain) fn place(place: Option<&Place>) -> Value {
    place.map_or(Value::Null, |it| json!({ "file": it.file, "line": it.line, "function": it.function }))
}

fn across(across: &Across) -> Value {
    json!({
        "bytes": across.bytes,
        "median_bytes": across.median_bytes,
        "spread_bytes": across.spread_bytes(),
        "odd_ranks": across.odd,
    })
}
