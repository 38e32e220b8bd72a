//! Graphs that no backward pass uses: the memory that they keep, and where `torch.no_grad()` belongs.

use serde_json::{Value, json};

use crate::predict::answer::Outcome;
use crate::predict::recording::read::place;
use crate::protocol::UnusedGraph;

/// Graphs are left out if they are smaller than 1/`LEAST_PART` of the peak.
const LEAST_PART: u64 = 50;

/// The maximum number of lines.
const MOST: usize = 2;

/// `of 5.58 GiB, 4.90 GiB are saved for a backward pass that never runs: put torch.no_grad() around serve.py:20`, one
/// sentence per line, the largest first.
pub(in crate::predict) fn sentences(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    let Some(judged) = outcome.measured() else { return Vec::new() };
    let all_bytes = judged.peaks.allocated_bytes;
    let mut graphs: Vec<&UnusedGraph> =
        judged.report.graphs.iter().filter(|it| it.bytes > all_bytes / LEAST_PART).collect();
    graphs.sort_by_key(|it| std::cmp::Reverse(it.bytes));
    let sentence = |it: &UnusedGraph| {
        format!(
            "of {}, {} are saved for a backward pass that never runs: put torch.no_grad() around {}{}",
            size(all_bytes),
            size(it.bytes),
            place(&it.file, it.line),
            if it.likely {
                " (likely: memory ran out here, and the program has no optimizer so far)"
            } else {
                ""
            }
        )
    };
    graphs.into_iter().take(MOST).map(sentence).collect()
}

/// The graphs that no backward pass uses, as JSON.
pub(super) fn json(outcome: &Outcome) -> Vec<Value> {
    let graphs = outcome.measured().into_iter().flat_map(|judged| &judged.report.graphs);
    graphs
        .map(|it| json!({ "file": it.file, "line": it.line, "bytes": it.bytes, "calls": it.calls, "likely": it.likely }))
        .collect()
}
