//! Growing memory, for programs: `plimsoll.leaks/1`.

use plimsoll_trace::explain::DeviceExplanation;
use plimsoll_trace::explain::leaks::{Course, Place, Verdict};
use serde_json::{Value, json};

use crate::explained::Explained;

/// The complete answer.
pub(super) fn render(explained: &Explained) -> String {
    let devices = explained.devices.iter().map(|device| {
        let mut value = as_json(explained, device);
        value["device"] = device.timeline.device.into();
        value
    });
    let is_leaking = |device: &DeviceExplanation| device.leaks.whole.verdict == Verdict::Leaking;
    let value = json!({
        "schema": "plimsoll.leaks/1",
        "file": explained.file,
        "leaks": explained.devices.iter().any(is_leaking),
        "devices": devices.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

/// The growing memory of one device.
pub(crate) fn as_json(explained: &Explained, device: &DeviceExplanation) -> Value {
    let (leaks, is_own) = (&device.leaks, explained.snapshot.is_own());
    let lines = leaks.lines.iter().map(|line| {
        let (frame, operator) = match line.place {
            Place::Line(frame) => (Some(explained.line(frame)), line.operator),
            Place::Operator(name) => (None, Some(name)),
            Place::Stack(_) | Place::Unknown => (None, line.operator),
        };
        json!({
            "line": frame,
            "package_line": line.inner.map(|frame| explained.line(frame)),
            "operator": operator.map(|name| name.of(&explained.snapshot)),
            "kept_bytes_of_each_step": line.course.kept_of_each(),
            "course": course(&line.course, line.course.verdict == Verdict::Leaking),
            "pattern": line.pattern.map(|pattern| pattern.advice_for(is_own)),
        })
    });
    json!({
        "steps": device.steps.len(),
        "steps_told_by": device.steps.evidence(),
        "whole": course(&leaks.whole, true),
        "pattern": leaks.pattern.map(|pattern| pattern.advice_for(is_own)),
        "lines": lines.collect::<Vec<_>>(),
    })
}

/// A row of bytes with its verdict; the bytes themselves only if they are relevant.
fn course(course: &Course, with_held: bool) -> Value {
    let growth = course.growth;
    let mut value = json!({
        "verdict": course.verdict.name(),
        "confidence": course.confidence,
        "bytes_per_step": growth.usual_bytes,
        "steps_that_grew": growth.grew,
        "steps_judged": growth.steps,
        "first_step_judged": growth.from + 1,
        "grown_bytes": growth.bytes,
        "grows_every_steps": growth.every,
    });
    if with_held {
        value["held_bytes_after_each_step"] = course.held.as_slice().into();
    }
    value
}
