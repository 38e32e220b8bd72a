//! Unknown values that decide sizes, in at most three lines: where, what was assumed, and the bytes at stake.

use super::reads;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::recording::read::place;

/// The most lines.
const MOST: usize = 3;

/// The lines, those with the most bytes at stake first. Empty for a program that failed.
pub(super) fn lines(outcome: &Outcome, capacity_bytes: u64, size: impl Fn(u64) -> String) -> Vec<String> {
    if matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_)) {
        return Vec::new();
    }
    let reports = &outcome.reports;
    let mut known: Vec<(u64, String)> = Vec::new();
    for warning in reports.iter().flat_map(|report| &report.warnings) {
        let at = warning
            .place
            .as_ref()
            .map_or_else(String::new, |(file, line)| format!("{}: ", place(file, *line)));
        let line = format!("{at}{}; at stake: up to {} more", warning.what, size(warning.bytes));
        if known.iter().all(|(_, other)| *other != line) {
            known.push((warning.bytes, line));
        }
    }
    known.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let mut lines: Vec<String> = known.into_iter().map(|(_, line)| line).collect();
    lines.extend(reads::of_sizes(reports).into_iter().map(|(at, assumed)| {
        let at_stake = at_stake(outcome, &at, capacity_bytes, &size);
        format!("{at}: {assumed}{at_stake}")
    }));
    lines.extend(reads::of_loops(reports).into_iter().map(|at| {
        format!("{at}: a value read from the GPU ends the loop, assumed 0: the loop may run for more or fewer steps")
    }));
    if lines.len() > MOST {
        let rest = lines.len() - (MOST - 1);
        lines.truncate(MOST - 1);
        lines.push(format!("{rest} more lines where unknown values decide sizes: --full lists them"));
    }
    lines
}

/// The difference that the values of `--assume` made, or the largest values, as the end of a sentence about the line.
fn at_stake(outcome: &Outcome, at: &str, capacity_bytes: u64, size: impl Fn(u64) -> String) -> String {
    let other = |it: &Option<Box<Outcome>>| it.as_deref().and_then(Outcome::reserved_bytes);
    match (outcome.reserved_bytes(), other(&outcome.without_assumptions), other(&outcome.with_largest)) {
        (Some(one), Some(zero), _) => format!("; at stake: {} from zero to that", size(one.abs_diff(zero))),
        (Some(zero), None, Some(most)) if most > capacity_bytes => {
            format!("; at stake: up to {} more, which does not fit", size(most.saturating_sub(zero)))
        }
        (Some(zero), None, Some(most)) if most > zero => {
            format!("; at stake: up to {} more", size(most - zero))
        }
        (Some(_), None, Some(_)) => "; at stake: nothing, even with the largest value".to_owned(),
        _ => format!("; at stake: unknown, --assume {at}=N shows it"),
    }
}
