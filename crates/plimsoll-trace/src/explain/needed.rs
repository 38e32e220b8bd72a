//! What a program would have needed beyond the request that failed: [`StillNeeded`], always at least.
//!
//! Who finds room for one request runs out at the next, where the same comes again: an optimizer makes its state for
//! one parameter after another, and a model of equal layers takes as much for each. `needed/layers.rs` does the second.

mod layers;

use std::collections::BTreeMap;

use plimsoll_alloc::Category;

use super::fragmentation::DeviceAnalysis;
use super::origin::{Activity, is_python};
use super::owners::held;
use super::passes::{PassKind, Passes};
use crate::failure::{Cause, Failure};
use crate::snapshot::{EventIndex, FrameId, Snapshot, StackId};
use crate::timeline::Life;

/// What would have been asked for after the request that failed, and held with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StillNeeded {
    /// Bytes beyond the request, at least.
    pub bytes: u64,
    /// Of what.
    pub rest: Rest,
    /// How sure that is, in the words of [`Why::confidence`](super::Why::confidence).
    pub confidence: &'static str,
}

/// What the rest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// An optimizer's state of the parameters that had none yet.
    OptimizerState {
        /// Tensors of a parameter's size for each parameter.
        parts: usize,
    },
    /// The same tensors of an optimizer's step for the other parameters.
    OptimizerStep,
    /// A layer of several that take as much each, and those behind it.
    Layers {
        /// The layer in which the request failed, from one.
        layer: usize,
        /// How many there are.
        layers: usize,
        /// What each takes, bytes.
        bytes_each: u64,
    },
}

impl Rest {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::OptimizerState { .. } => "optimizer state for the remaining parameters",
            Self::OptimizerStep => "the same optimizer step for the remaining parameters",
            Self::Layers { .. } => "the rest of this layer and the following layers",
        }
    }
}

impl StillNeeded {
    /// What was still needed as a request failed, if something shows it.
    pub(super) fn of(analysis: DeviceAnalysis<'_>, passes: &Passes, failure: &Failure) -> Option<Self> {
        match analysis.origins.get(failure.stack).activity {
            Activity::OptimizerState | Activity::OptimizerStep => of_optimizer(analysis, passes, failure),
            Activity::Forward => layers::find(analysis, passes, failure),
            _ => None,
        }
    }

    /// What is missing for the request and all that is still needed, bytes, at least; `None` if nothing is.
    pub fn short_bytes(&self, cause: Cause) -> Option<u64> {
        match cause {
            Cause::Capacity { short_bytes } => Some(short_bytes.saturating_add(self.bytes)),
            Cause::Fragmentation { spare_bytes } => {
                self.bytes.checked_sub(spare_bytes).filter(|&bytes| bytes > 0)
            }
            Cause::Limit { .. } | Cause::Unknown => None,
        }
    }
}

/// PyTorch's optimizers whose state is two tensors of each parameter's size, or three.
const TWO_PARTS: [&str; 7] =
    ["adadelta.py", "adam.py", "adamax.py", "adamw.py", "nadam.py", "radam.py", "sparse_adam.py"];

/// How many tensors there are of each size.
type Sizes = BTreeMap<u64, usize>;

/// What an optimizer makes of the size of each gradient, by the lines that do.
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
            return None; // one after another, not all at once
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
        _ if sum(&made[&failed]) == rounded(failure.asked_bytes) => return None, // the first of its line
        _ => Rest::OptimizerStep,
    };
    let parts = if let Rest::OptimizerState { parts } = rest { parts as u64 } else { 1 };
    let all = sum(&gradients).saturating_mul(parts);
    let bytes = all.saturating_sub(made.values().map(sum).fold(0, u64::saturating_add));
    (bytes > 0).then_some(StillNeeded { bytes, rest, confidence: "likely" })
}

/// The first event of the optimizer's step that an event lies in.
fn begin_of_step(passes: &Passes, event: EventIndex) -> EventIndex {
    let pass = passes.iter().filter(|pass| pass.first <= event).last();
    pass.filter(|pass| pass.kind == PassKind::Optimizer).map_or(event, |pass| pass.first)
}

/// The innermost line of Python.
fn line_of(snapshot: &Snapshot, stack: Option<StackId>) -> Option<FrameId> {
    let file = |id: FrameId| snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
    snapshot.stacks.frame_ids(stack?).find(|&id| is_python(file(id)))
}

/// The name of a file of PyTorch's optimizers.
fn file_of(snapshot: &Snapshot, line: FrameId) -> Option<&str> {
    let file = snapshot.texts.get(snapshot.stacks.get_frame(line).filename);
    let (_, name) = file.rsplit_once(['/', '\\'])?;
    file.contains("torch").then_some(name)
}

/// Whether there are no more of any size than in another count.
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
