//! Unknown values that decide sizes, in at most three lines. Each line gives the place, the assumed value, and the
//! number of bytes that depend on this value.

use std::collections::{BTreeMap, BTreeSet};

use super::reads::{self, SizedLine, Stake};
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::recording::read::{file_name, place};

/// The maximum number of lines.
const MOST: usize = 3;

/// A warning, and the lines of the program that it is about.
struct Row {
    /// The lines by file.
    lines: BTreeMap<String, BTreeSet<u64>>,
    what: String,
    stake: Stake,
    /// The bytes that depend on the values at these lines alone; 0 if they were not computed.
    own_bytes: u64,
}

/// The lines, sorted by the number of bytes that depend on them, in descending order. Empty for a program that
/// failed.
pub(super) fn lines(outcome: &Outcome, capacity_bytes: u64, size: impl Fn(u64) -> String) -> Vec<String> {
    if matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_)) {
        return Vec::new();
    }
    let rows = rows(outcome);
    let shared = outcome.without_assumptions.as_ref().map_or(Stake::Open, |_| Stake::Given);
    let share = rows.iter().filter(|row| row.stake == shared).map(Row::count).sum();
    let together = together(outcome, share, capacity_bytes, &size);
    let mut lines: Vec<String> = Vec::new();
    for row in &rows {
        let at = row.places();
        let at_stake = match (row.stake, &together) {
            (stake, Some(together)) if stake == shared => together.clone(),
            (Stake::Nothing, _) => String::new(),
            _ if row.own_bytes > 0 => format!("; at stake: up to {} more", size(row.own_bytes)),
            _ => format!("; at stake: unknown, --assume {}=N shows it", row.first()),
        };
        let at = if at.is_empty() { at } else { format!("{at}: ") };
        lines.push(format!("{at}{}{at_stake}", row.what));
    }
    lines.extend(reads::of_loops(&outcome.reports).into_iter().map(|at| {
        format!("{at}: a value read from the GPU ends the loop, assumed 0: the loop may run for more or fewer steps")
    }));
    if lines.len() > MOST {
        let rest = lines.len() - (MOST - 1);
        lines.truncate(MOST - 1);
        lines.push(format!("{rest} more lines where unknown values decide sizes: --full lists them"));
    }
    lines
}

/// The warnings, each with its lines. If the bytes were computed for the lines of a warning alone, the warning comes
/// first, in descending order of bytes.
fn rows(outcome: &Outcome) -> Vec<Row> {
    let reports = &outcome.reports;
    let mut warned: Vec<_> = reports.iter().flat_map(|report| &report.warnings).collect();
    warned.sort_by_key(|warning| std::cmp::Reverse(warning.bytes));
    let warned = warned.into_iter().map(|warning| {
        let place = warning.place.as_ref().map(|(file, line)| (file_name(file).to_owned(), *line));
        let stake = if place.is_some() { Stake::Open } else { Stake::Unknown };
        (place, warning.what.clone(), stake, warning.bytes)
    });
    let sized = reads::of_sizes(reports);
    let known: BTreeSet<(String, u64)> = sized.iter().map(|it| (it.file.clone(), it.line)).collect();
    let sized = sized.into_iter().map(|SizedLine { file, line, assumed, stake }| {
        let is_unknown = stake == Stake::Open && has_no_largest(outcome, &file, line);
        let stake = if is_unknown { Stake::Unknown } else { stake };
        (Some((file, line)), assumed, stake, 0)
    });
    let reached = outcome.with_largest.iter().flat_map(|largest| reads::of_sizes(&largest.reports));
    let reached =
        reached.filter(|it| it.stake == Stake::Given && !known.contains(&(it.file.clone(), it.line)));
    let reached = reached.map(|SizedLine { file, line, .. }| {
        let what = "a value read from the GPU decides a size (the line runs only if other values are larger)"
            .to_owned();
        (Some((file, line)), what, Stake::Open, 0)
    });
    let mut rows: Vec<Row> = Vec::new();
    for (place, what, stake, own_bytes) in warned.chain(sized).chain(reached) {
        let same = rows.iter_mut().find(|row| (&row.what, row.stake) == (&what, stake));
        let row = match same {
            Some(row) => row,
            None => {
                rows.push(Row { lines: BTreeMap::new(), what, stake, own_bytes });
                rows.last_mut().expect("one was added")
            }
        };
        if let Some((file, line)) = place {
            row.lines.entry(file).or_default().insert(line);
        }
    }
    rows
}

/// Whether the run with the largest values found no largest value for this line.
fn has_no_largest(outcome: &Outcome, file: &str, line: u64) -> bool {
    let start = format!("--assume {}:", place(file, line));
    let largest = outcome.with_largest.iter().flat_map(|largest| &largest.reports);
    largest.flat_map(|report| &report.problems).any(|problem| problem.starts_with(&start))
}

impl Row {
    fn count(&self) -> usize {
        self.lines.values().map(BTreeSet::len).sum()
    }

    /// The lines as text: `train.py:5, 9, model.py:3`.
    fn places(&self) -> String {
        let of_file = |(file, lines): (&String, &BTreeSet<u64>)| {
            let lines: Vec<String> = lines.iter().map(u64::to_string).collect();
            format!("{file}:{}", lines.join(", "))
        };
        self.lines.iter().map(of_file).collect::<Vec<_>>().join(", ")
    }

    /// The first line as text: `train.py:5`.
    fn first(&self) -> String {
        let first = self.lines.iter().find_map(|(file, lines)| Some((file, lines.first()?)));
        first.map_or_else(|| "FILE:LINE".to_owned(), |(file, line)| format!("{file}:{line}"))
    }
}

/// The end of a warning about all lines with such values: how much the values of `--assume`, or the largest values,
/// change the peak. `None` if this is unknown.
fn together(
    outcome: &Outcome,
    share: usize,
    capacity_bytes: u64,
    size: impl Fn(u64) -> String,
) -> Option<String> {
    let other = |it: &Option<Box<Outcome>>| it.as_deref().and_then(Outcome::reserved_bytes);
    let bytes = outcome.reserved_bytes()?;
    let difference = match (other(&outcome.without_assumptions), other(&outcome.with_largest)) {
        (Some(zero), _) => format!("{} between zero and this value", size(bytes.abs_diff(zero))),
        (None, Some(most)) if most > capacity_bytes => {
            format!("up to {} more, which does not fit", size(most.saturating_sub(bytes)))
        }
        (None, Some(most)) if most > bytes => format!("up to {} more", size(most - bytes)),
        (None, Some(_)) => "nothing, even with the largest values".to_owned(),
        (None, None) => match other(&outcome.with_least) {
            Some(least) => format!("up to {} less", size(bytes.saturating_sub(least))),
            None => return None,
        },
    };
    let lines = if share > 1 { format!(", all {share} lines together") } else { String::new() };
    Some(format!("; at stake{lines}: {difference}"))
}
