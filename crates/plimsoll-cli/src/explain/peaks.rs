//! A comparison of the peaks of phases and steps, and why one step needed more memory than another.

use plimsoll_trace::explain::{DeviceExplanation, Phase, Rise};
use plimsoll_trace::render::{phases as say, words};
use plimsoll_trace::report::{Rank, Section};
use plimsoll_trace::timeline::Moment;
use serde_json::{Value, json};

use crate::explained::Explained;
use crate::shown::Shown;

/// How many scopes to show, the highest first. A program may give each scope a different name, so there may be many.
const MOST_SCOPES: usize = 1000;
/// The maximum number of lines of code that are named for a rise from one step to another.
const MOST_LINES: usize = 4;

/// The peak of each phase, if there are several.
pub(super) fn section(
    explained: &Explained,
    device: &DeviceExplanation,
    rises: &[Rise],
    shown: Shown,
) -> Section {
    let phases = &device.peaks.phases;
    let value = as_json(explained, device, rises);
    if phases.len() < 2 {
        return Section::data("peaks", value);
    }
    let row = |&(phase, moment): &(Phase, Moment)| {
        let (size, name) = (shown.size(moment.level.allocated_bytes), say::phase(&explained.snapshot, phase));
        let step = device.step_at(moment).map_or_else(String::new, |step| format!("step {step}"));
        let line = device.asker_at(&explained.snapshot, &explained.origins, moment);
        let line = line.map_or_else(String::new, |frame| words::line(&explained.snapshot, frame));
        format!("{size:>12}  {name:<32}  {step:<9}  {line}")
    };
    let more = (phases.len() > shown.rows).then(|| format!("{} more", phases.len() - shown.rows));
    Section::lines("peaks", Rank::Full, phases.iter().take(shown.rows).map(row).chain(more))
        .headed("Peaks by phase")
        .noted(", counting all memory allocated at that time")
        .valued(value)
}

/// The peaks of the first steps and of all steps, and what causes the difference.
pub(super) fn steps(
    explained: &Explained,
    device: &DeviceExplanation,
    rises: &[Rise],
    shown: Shown,
) -> Vec<String> {
    let mut said = Vec::new();
    for rise in rises {
        said.push(say::rise(&explained.snapshot, device, rise, |bytes| shown.size(bytes)));
        for line in rise.lines.iter().filter(|line| line.bytes() != 0).take(MOST_LINES) {
            let place = line.key.frame();
            let place = place
                .map_or_else(|| words::NO_LINE.to_owned(), |frame| words::line(&explained.snapshot, frame));
            let purpose = words::purpose(&explained.snapshot, line.key.category);
            said.push(format!("{:>13}  {purpose:<15}  {place}", shown.change(line.bytes())));
        }
    }
    said
}

/// The peaks and their differences as JSON.
fn as_json(explained: &Explained, device: &DeviceExplanation, rises: &[Rise]) -> Value {
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
    let rises = rises.iter().map(|rise| {
        let lines = rise.lines.iter().filter(|line| line.bytes() != 0).map(|line| {
            json!({
                "line": line.key.frame().map(|frame| explained.line(frame)),
                "category": line.key.category.name(&explained.snapshot),
                "bytes": line.amounts.map(|amount| amount.bytes),
            })
        });
        json!({
            // `null` stands for the time after the last step.
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
