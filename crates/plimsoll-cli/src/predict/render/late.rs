//! Lines about code of the training loop that did not run in its first steps and may need more memory: at most three.

use super::reads;
use crate::bytes;
use crate::bytes::thousands;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::recording::read::place;
use crate::protocol::{Batches, Climb, Late};

/// The maximum number of lines to print.
const MOST: usize = 3;

/// The lines, in the order in which they would run. Empty for a program that failed, runs out of memory or was not cut short.
pub(super) fn lines(outcome: &Outcome) -> Vec<String> {
    if !matches!(outcome.verdict, Verdict::Fits { .. } | Verdict::Unknown(_)) {
        return Vec::new();
    }
    let mut lines: Vec<String> = Vec::new();
    for report in outcome.reports.iter().filter(|report| report.cut) {
        for late in &report.late {
            let sentence = sentence(late, report.steps);
            if !lines.contains(&sentence) {
                lines.push(sentence);
            }
        }
    }
    let climbs =
        outcome.reports.iter().filter(|report| report.cut).filter_map(|report| report.climbs.first());
    // If the peak at the end is computed, the verdict says so.
    let is_computed = outcome.growth.as_ref().is_some_and(|growth| growth.is_peak);
    lines.extend(climbs.take(1).filter(|_| !is_computed).map(climb));
    lines.extend(outcome.reports.iter().filter_map(|report| report.batches).take(1).map(batches));
    if lines.len() > MOST {
        let rest = lines.len() - (MOST - 1);
        lines.truncate(MOST - 1);
        lines.push(format!("not seen: {rest} more parts of the training loop did not run; add --whole"));
    }
    lines
}

fn climb(climb: &Climb) -> String {
    format!(
        "not seen: the peak rose in each step so far, by {} in step {}; add --whole, or a larger --steps",
        bytes::shown(climb.bytes, false),
        climb.steps
    )
}

fn batches(Batches { made, total }: Batches) -> String {
    let of = total.map_or_else(String::new, |total| format!(" of {}", thousands(total)));
    format!(
        "not seen: batches differ in size; the largest of the first {}{of} was tried; add --whole",
        thousands(made)
    )
}

fn sentence(late: &Late, steps: u64) -> String {
    let Late { file, line, end, text, steps: after, first, changes } = late;
    let end = if end > line { format!("-{end}") } else { String::new() };
    let next = after.map_or_else(String::new, |after| format!("--steps {after} or "));
    let at = place(file, *line);
    if *changes {
        let step = after.map_or_else(String::new, |after| format!(" in step {}", thousands(after)));
        return format!("not seen: {at} (`{text}`) changes{step}; add {next}--whole");
    }
    let ran = if *first {
        "ran only in the first step, when the optimizer had no state".to_owned()
    } else {
        format!("did not run in {}", reads::counted(steps))
    };
    let when = if text.starts_with("if ") { format!("`{text}`") } else { text.clone() };
    format!("not seen: {at}{end} ({when}) {ran}; add {next}--whole")
}
