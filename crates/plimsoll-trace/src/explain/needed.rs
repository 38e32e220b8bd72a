//! Finds what a program would have needed after the request that failed: [`still_needed`].
//!
//! Room for one request is not enough if more requests like it follow. An optimizer creates its state for one
//! parameter after another, and each of a model's identical layers needs the same amount. `needed/layers.rs` handles
//! the layers.

mod layers;

use std::collections::BTreeMap;

use plimsoll_alloc::Category;

use super::fragmentation::DeviceAnalysis;
use super::origin::{Activity, is_python};
use super::owners::held;
use super::passes::{PassKind, Passes};
use crate::failure::Failure;
use crate::snapshot::{EventIndex, FrameId, Snapshot, StackId};
use crate::still_needed::{Rest, StillNeeded};
use crate::timeline::Life;

/// Returns what was still needed when a request failed, if the recording shows it.
pub(super) fn still_needed(
    analysis: DeviceAnalysis<'_>,
    passes: &Passes,
    failure: &Failure,
) -> Option<StillNeeded> {
    match analysis.origins.get(failure.stack).activity {
        Activity::OptimizerState | Activity::OptimizerStep => of_optimizer(analysis, passes, failure),
        Activity::Forward => layers::find(analysis, passes, failure),
        _ => None,
    }
}

/// Files of PyTorch's optimizers that keep at least two tensors of each parameter's size.
const TWO_PARTS: [&str; 7] =
    ["adadelta.py", "adam.py", "adamax.py", "adamw.py", "nadam.py", "radam.py", "sparse_adam.py"];

/// The number of tensors of each size.
type Sizes = BTreeMap<u64, usize>;

/// More requests than this are not listed. No model has so many, but a forged file may.
const MOST_REQUESTS: usize = 1 << 20;

/// The tensors that an optimizer creates for each gradient, counted by the line that creates them.
fn of_optimizer(analysis: DeviceAnalysis<'_>, passes: &Passes, failure: &Failure) -> Option<StillNeeded> {
    let DeviceAnalysis { snapshot, timeline, origins, purposes } = analysis;
    let mut gradients = Sizes::new();
    for (index, life) in held(timeline, Some(failure.at)) {
        if purposes.get(index).category == Some(Category::Gradient) {
            *gradients.entry(size(life)).or_default() += 1;
        }
    }
    let activity = origins.get(failure.stack).activity;
    let failed = line_of(snapshot, failure.stack)?;
    let mut made: BTreeMap<FrameId, Sizes> = BTreeMap::from([(failed, Sizes::new())]);
    let begin = begin_of_step(passes, failure.at);
    let born = timeline.lives.iter().filter(|life| life.born >= Some(begin) && life.born < Some(failure.at));
    for life in born.filter(|life| origins.get(life.stack).activity == activity) {
        let Some(line) = line_of(snapshot, life.stack) else { continue };
        if activity == Activity::OptimizerStep && line == failed && !life.is_held_after(Some(failure.at)) {
            return None; // each tensor is freed before the next is created, so they are not live at the same time
        }
        *made.entry(line).or_default().entry(size(life)).or_default() += 1;
    }
    *made.get_mut(&failed)?.entry(rounded(failure.asked_bytes)).or_default() += 1;
    if !is_within(&made[&failed], &gradients) {
        return None;
    }
    let is_part = |line: &FrameId, sizes: &Sizes| {
        is_within(sizes, &gradients) && (activity == Activity::OptimizerState || *line == failed)
    };
    made.retain(|line, sizes| is_part(line, sizes));
    let rest = match activity {
        Activity::OptimizerState => {
            let documented =
                if file_of(snapshot, failed).is_some_and(|file| TWO_PARTS.contains(&file)) { 2 } else { 1 };
            Rest::OptimizerState { parts: made.len().max(documented) }
        }
        _ if sum(&made[&failed]) == rounded(failure.asked_bytes) => return None, // the first request of this line
        _ => Rest::OptimizerStep,
    };
    let parts = if let Rest::OptimizerState { parts } = rest { parts as u64 } else { 1 };
    let all = sum(&gradients).saturating_mul(parts);
    let bytes = all.saturating_sub(made.values().map(sum).fold(0, u64::saturating_add));
    let requests = remaining(&gradients, parts, made.values());
    (bytes > 0).then_some(StillNeeded { bytes, requests, rest, confidence: "likely" })
}

/// The requests for `parts` tensors of each gradient's size, without those that were already made.
fn remaining<'a>(gradients: &Sizes, parts: u64, made: impl Iterator<Item = &'a Sizes>) -> Vec<u64> {
    let mut counts: BTreeMap<u64, u64> =
        gradients.iter().map(|(&bytes, &count)| (bytes, parts.saturating_mul(count as u64))).collect();
    for (bytes, &count) in made.flatten() {
        counts.entry(*bytes).and_modify(|left| *left = left.saturating_sub(count as u64));
    }
    if counts.values().fold(0, |sum: u64, &count| sum.saturating_add(count)) > MOST_REQUESTS as u64 {
        return Vec::new();
    }
    let of_size = |(&bytes, &count): (&u64, &u64)| std::iter::repeat_n(bytes, count as usize);
    counts.iter().rev().flat_map(of_size).collect()
}

/// The first event of the optimizer step that contains an event.
fn begin_of_step(passes: &Passes, event: EventIndex) -> EventIndex {
    let pass = passes.iter().filter(|pass| pass.first <= event).last();
    pass.filter(|pass| pass.kind == PassKind::Optimizer).map_or(event, |pass| pass.first)
}

/// The innermost Python frame of a stack.
fn line_of(snapshot: &Snapshot, stack: Option<StackId>) -> Option<FrameId> {
    let file = |id: FrameId| snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
    snapshot.stacks.frame_ids(stack?).find(|&id| is_python(file(id)))
}

/// The name of the file of a frame, if it is a file of PyTorch.
fn file_of(snapshot: &Snapshot, line: FrameId) -> Option<&str> {
    let file = snapshot.texts.get(snapshot.stacks.get_frame(line).filename);
    let (_, name) = file.rsplit_once(['/', '\\'])?;
    file.contains("torch").then_some(name)
}

/// Whether no size occurs more often in `sizes` than in `others`.
fn is_within(sizes: &Sizes, others: &Sizes) -> bool {
    sizes.iter().all(|(bytes, count)| others.get(bytes).is_some_and(|others| count <= others))
}

fn sum(sizes: &Sizes) -> u64 {
    let bytes = sizes.iter().map(|(bytes, &count)| bytes.saturating_mul(count as u64));
    bytes.fold(0, u64::saturating_add)
}

fn size(life: &Life) -> u64 {
    life.requested_bytes.get().map_or(life.bytes, rounded)
}

fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(512).saturating_mul(512)
}
