//! The peaks of phases and steps, side by side, and why one step took more than another.

use std::fmt::Write;

use plimsoll_trace::explain::{DeviceExplanation, Phase};
use plimsoll_trace::render::{phases as say, words};
use plimsoll_trace::timeline::Moment;
use serde_json::{Value, json};

use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::shown::Shown;

/// How many scopes to show, the highest first: a program may give each a different name.
const MOST_SCOPES: usize = 1000;
/// How many lines of a rise to name.
const MOST_LINES: usize = 4;

/// The highest moment of each phase, if there are several.
pub(super) fn phases(out: &mut String, explained: &Explained, device: &DeviceExplanation, shown: Shown) {
    let phases = &device.peaks.phases;
    if phases.len() < 2 {
        return;
    }
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "\n{BOLD}Peaks by phase{RESET}, counting all memory allocated at that time");
    for &(phase, moment) in phases.iter().take(shown.rows) {
        let (size, name) = (shown.size(moment.level.allocated_bytes), say::phase(&explained.snapshot, phase));
        let step = device.step_at(moment).map_or_else(String::new, |step| format!("step {step}"));
        let line = device.asker_at(&explained.snapshot, &explained.origins, moment);
        let line = line.map_or_else(String::new, |frame| words::line(&explained.snapshot, frame));
        let _ = writeln!(out, "{}", format!("  {size:>12}  {name:<32}  {step:<9}  {line}").trim_end());
    }
    if phases.len() > shown.rows {
        let _ = writeln!(out, "  {} more", phases.len() - shown.rows);
    }
}

/// The highest moments of the first steps and of all steps, and what makes the difference.
pub(super) fn steps(out: &mut String, explained: &Explained, device: &DeviceExplanation, shown: Shown) {
    for rise in device.peaks.rises(explained.analysis(device)) {
        let sentence = say::rise(&explained.snapshot, device, &rise, |bytes| shown.size(bytes));
        let _ = writeln!(out, "  {sentence}");
        for line in rise.lines.iter().filter(|line| line.bytes() != 0).take(MOST_LINES) {
            let place = line.key.frame();
            let place = place
                .map_or_else(|| words::NO_LINE.to_owned(), |frame| words::line(&explained.snapshot, frame));
            let _ = writeln!(
                out,
                "  {:>13}  {:<15}  {place}",
                shown.change(line.bytes()),
                words::purpose(&explained.snapshot, line.key.category)
            );
        }
    }
}

/// All of it as JSON.
pub(super) fn as_json(explained: &Explained, device: &DeviceExplanation) -> Value {
    let peak = |moment: Moment| {
        json!({
            "after_event": moment.after.map(|event| event.index()),
            "allocated_bytes": moment.level.allocated_bytes,
            "reserved_bytes": moment.level.reserved_bytes,
            "step": device.step_at(moment),
        })
    };
    let is_scope = |phase: Phase| matches!(phase, Phase::Scope(_));
    let scopes = device.peaks.phases.iter().filter(|(phase, _)| is_scope(*phase)).count();
    let mut scopes_told = 0;
    let shown_phases = device.peaks.phases.iter().filter(|(phase, _)| {
        scopes_told += usize::from(is_scope(*phase));
        !is_scope(*phase) || scopes_told <= MOST_SCOPES
    });
    let phases = shown_phases.map(|&(phase, moment)| {
        let mut value = peak(moment);
        value["phase"] = phase.name(&explained.snapshot).into();
        value["scope"] = is_scope(phase).into();
        value
    });
    let rises = device.peaks.rises(explained.analysis(device)).into_iter().map(|rise| {
        let lines = rise.lines.iter().filter(|line| line.bytes() != 0).map(|line| {
            json!({
                "line": line.key.frame().map(|frame| explained.line(frame)),
                "category": line.key.category.name(&explained.snapshot),
                "bytes": line.amounts.map(|amount| amount.bytes),
            })
        });
        json!({
            // `null` is what follows the last step.
            "steps": rise.steps.map(|step| (step < device.steps.len()).then_some(step + 1)),
            "pass": Phase::Pass(rise.pass).name(&explained.snapshot),
            "allocated_bytes": rise.moments.map(|moment| moment.level.allocated_bytes),
            "lines": lines.collect::<Vec<_>>(),
        })
    });
    json!({
        "phases": phases.collect::<Vec<_>>(),
        "scopes_left_out": scopes.saturating_sub(MOST_SCOPES),
        "steps": device.peaks.steps.iter().map(|&moment| peak(moment)).collect::<Vec<_>>(),
        "rises": rises.collect::<Vec<_>>(),
        "failed_in": device.peaks.failed_in.map(|phase| phase.name(&explained.snapshot)),
    })
}
