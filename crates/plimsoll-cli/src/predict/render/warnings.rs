//! Unknown values that decide sizes, in at most three lines: where, what was assumed, and the bytes at stake.

use super::reads;
use crate::predict::analysis::growth::place;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;

/// The most lines.
const MOST: usize = 3;

/// The lines, those with the most bytes at stake first. Empty for a program that failed.
pub(super) fn lines(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
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
    let at_stake = at_stake(outcome, &size);
    lines.extend(
        reads::of_sizes(reports).into_iter().map(|(at, assumed)| format!("{at}: {assumed}{at_stake}")),
    );
    if lines.len() > MOST {
        let rest = lines.len() - (MOST - 1);
        lines.truncate(MOST - 1);
        lines.push(format!("{rest} more lines where unknown values decide sizes: --full lists them"));
    }
    lines
}

/// The difference that the values of `--assume` made, as the end of a sentence.
fn at_stake(outcome: &Outcome, size: impl Fn(u64) -> String) -> String {
    let peak = |it: &Outcome| it.judged.as_ref().map(|judged| judged.peaks.reserved_bytes);
    let zero = outcome.without_assumptions.as_deref().and_then(peak);
    match (peak(outcome), zero) {
        (Some(one), Some(zero)) => format!("; at stake: {} from zero to that", size(one.abs_diff(zero))),
        _ => "; at stake: unknown, --assume FILE:LINE=max shows it".to_owned(),
    }
}
