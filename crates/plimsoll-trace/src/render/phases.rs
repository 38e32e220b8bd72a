//! The phases and steps of a program, and why one step has a higher peak than another step, in words.

use super::words::plain;
use crate::explain::{DeviceExplanation, PassKind, Phase, Rise};
use crate::snapshot::Snapshot;

/// The name of a phase. The program's own scopes are marked as such.
pub fn phase(snapshot: &Snapshot, phase: Phase) -> String {
    let name = plain(phase.name(snapshot));
    if matches!(phase, Phase::Scope(_)) { format!("scope {name}") } else { name.into_owned() }
}

/// A sentence that says how much the peak of one step exceeds the peak of another step, and in which pass.
pub fn rise(
    snapshot: &Snapshot,
    device: &DeviceExplanation,
    rise: &Rise,
    size: impl Fn(u64) -> String,
) -> String {
    let [from, to] = rise.steps;
    let [less, more] = rise.moments.map(|moment| moment.level.allocated_bytes);
    let (change, less, more) = (size(more.saturating_sub(less)), size(less), size(more));
    let to =
        if to < device.steps.len() { format!("step {}", to + 1) } else { "after the last step".to_owned() };
    let pass = Phase::Pass(rise.pass).name(snapshot);
    let highest = if from == 0 { "" } else { ", the highest" };
    format!("step {} -> {to}{highest}: +{change} at the {pass} peak, from {less} to {more}", from + 1)
}

/// The phase of the last failed request, as the end of a sentence; empty if there is only one phase.
pub fn failed_in(device: &DeviceExplanation) -> &'static str {
    match device.peaks.failed_in.filter(|_| device.peaks.phases.len() > 1) {
        Some(Phase::Building) => " while building the model",
        Some(Phase::Checkpoint) => " while loading or saving a checkpoint",
        Some(Phase::Evaluation) => " during evaluation",
        Some(Phase::Pass(PassKind::Forward)) => " in the forward pass",
        Some(Phase::Pass(PassKind::Backward)) => " in the backward pass",
        Some(Phase::Pass(PassKind::Optimizer)) => " in the optimizer step",
        Some(Phase::Scope(_)) | None => "",
    }
}
