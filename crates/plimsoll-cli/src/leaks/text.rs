//! Growing memory, for people: the verdict, the lines of code, and the level after each step.

use std::fmt::Write;

use plimsoll_trace::explain::leaks::{Growth, Line, Verdict};
use plimsoll_trace::explain::{DeviceExplanation, Source};
use plimsoll_trace::render::words;
use plimsoll_trace::report::{Rank, Section};

use super::{LeaksArgs, staircase};
use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::predicted::Predicted;
use crate::report::section;

/// The complete answer.
pub(super) fn render(explained: &Explained, args: &LeaksArgs) -> String {
    let size = |bytes| args.shown.size(bytes);
    let is_own = explained.snapshot.is_own();
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    for device in &explained.devices {
        if !out.is_empty() {
            out.push('\n');
        }
        let verdict = words::growth(device, size);
        let _ = writeln!(out, "{}{BOLD}{verdict}{RESET}", explained.prefix(device));
        let leaks = device.leaks.whole.verdict == Verdict::Leaking;
        if let Some(pattern) = device.leaks.pattern.filter(|_| leaks) {
            let _ = writeln!(out, "{}", pattern.advice_for(is_own));
        }
        if let Some(sentence) = words::unused_graph(&explained.snapshot, device, size) {
            let _ = writeln!(out, "{sentence}");
        }
        if device.steps.source == Source::Nothing {
            let next = match (words::has_events(device), is_own) {
                (false, _) => "record with events: `plimsoll record` prints the code",
                (true, true) => "mark the steps with Device::mark_step",
                (true, false) => {
                    "mark the steps with the code that `plimsoll record` prints, or with torch.profiler's step()"
                }
            };
            let _ = writeln!(out, "{next}");
            continue;
        }
        if device.leaks.whole.verdict == Verdict::TooFewSteps {
            let _ = writeln!(out, "{}", more_steps(device.steps.len()));
            out += &section(&kept_of_each(explained, device, args.shown.rows, size), &size);
        }
        if device.leaks.leaking().next().is_some() {
            let but = if leaks {
                ""
            } else {
                ": total memory does not leak, as other memory is freed at the same rate"
            };
            let _ = writeln!(out, "\n{BOLD}Memory kept per step, by line{RESET}{but}");
            let mut lines = lines(explained, device, args.shown.rows, size);
            match Predicted::read(&explained.snapshot, device.timeline.device) {
                Some(it) if !it.kept_by().is_empty() => lines.extend_from_slice(it.kept_by()),
                _ => lines.push(words::NO_HOLDER.to_owned()),
            }
            lines.iter().for_each(|line| out.extend(["  ", line.as_str(), "\n"]));
        }
        others(&mut out, explained, device, args.shown.rows, size);
        let told_by = device.steps.evidence();
        let count = words::counted(device.steps.len() as u64, "step");
        let confidence = device.steps.confidence;
        let _ = writeln!(
            out,
            "\n{BOLD}Live memory after each step{RESET} ({count}; a step ends where {told_by}: {confidence})"
        );
        let change = |by| args.shown.change(by);
        staircase::render(&mut out, &device.leaks.whole.held, size, change);
    }
    out
}

/// The lines that leak, with their bytes per step and in total.
pub(crate) fn lines(
    explained: &Explained,
    device: &DeviceExplanation,
    rows: usize,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let leaking: Vec<&Line> = device.leaks.leaking().collect();
    let (listed, rest) = leaking.split_at(leaking.len().min(rows));
    let said = listed.iter().map(|line| {
        let Growth { usual_bytes, bytes, grew, steps, every, .. } = line.course.growth;
        let (per_step, all) = (size(usual_bytes), size(bytes));
        let place = words::leaking_place(&explained.snapshot, line);
        let often = match every {
            Some(every) => format!("every {every} steps"),
            None => format!("per step in {grew} of {steps}"),
        };
        format!("{per_step:>12} {often}  {all:>12} in total  {place}")
    });
    let rest = (!rest.is_empty()).then(|| {
        let bytes = rest.iter().map(|line| line.course.growth.bytes).fold(0, u64::saturating_add);
        format!("{:>12} in total from {} more", size(bytes), rest.len())
    });
    said.chain(rest).collect()
}

/// The lines that keep memory from each step, if there are too few steps to call it a leak.
pub(crate) fn kept_of_each(
    explained: &Explained,
    device: &DeviceExplanation,
    rows: usize,
    size: impl Fn(u64) -> String,
) -> Section {
    let kept: Vec<(&Line, u64)> = device.leaks.kept_of_each().collect();
    let said = kept.iter().take(rows).map(|(line, bytes)| {
        format!("{:>12} per step  {}", size(*bytes), words::leaking_place(&explained.snapshot, line))
    });
    let more = (kept.len() > rows).then(|| format!("{:14}{} more", "", kept.len() - rows));
    let steps = device.steps.len();
    Section::lines("", Rank::Full, said.chain(more))
        .headed(format!("Live at the end from each of the {steps} steps, by line"))
}

/// The lines whose memory changes but does not leak, described by kind.
fn others(
    out: &mut String,
    explained: &Explained,
    device: &DeviceExplanation,
    rows: usize,
    size: impl Fn(u64) -> String,
) {
    let moves = |line: &&Line| {
        let is_quiet =
            matches!(line.course.verdict, Verdict::Leaking | Verdict::Steady | Verdict::TooFewSteps);
        // Lines that freed everything are not relevant.
        let is_gone = line.course.verdict == Verdict::Falling && line.course.held.last() == Some(&0);
        !is_quiet && !is_gone || line.pattern.is_some()
    };
    let moving: Vec<&Line> = device.leaks.lines.iter().filter(moves).collect();
    if moving.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Lines that grow or vary but do not leak{RESET}, by live bytes at the end");
    for line in moving.iter().take(rows) {
        let held = size(line.course.held.last().copied().unwrap_or(0));
        let place = words::leaking_place(&explained.snapshot, line);
        let _ = writeln!(out, "  {held:>12}  {:<20}  {place}", line.course.verdict.name());
        if let Some(pattern) = line.pattern {
            let _ = writeln!(out, "{:16}{}", "", pattern.advice_for(explained.snapshot.is_own()));
        }
    }
    if moving.len() > rows {
        let _ = writeln!(out, "{:16}{} more", "", moving.len() - rows);
    }
}

/// What to do if a recording of this many steps is too short for a verdict.
fn more_steps(steps: usize) -> String {
    match steps {
        ..6 => "record at least 6 steps; 20 are better".to_owned(),
        6..20 => "record 20 steps".to_owned(),
        _ => format!("record more steps, for example {}", 2 * steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_steps_than_there_are_get_recommended() {
        assert_eq!(more_steps(3), "record at least 6 steps; 20 are better");
        assert_eq!(more_steps(19), "record 20 steps");
        assert_eq!(more_steps(24), "record more steps, for example 48");
    }
}
