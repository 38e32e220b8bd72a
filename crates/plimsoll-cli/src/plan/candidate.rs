//! A set that was tried: [`Candidate`].

use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial};
use crate::techniques::{Set, Technique};

use super::time::Cost;

/// Of the GPU's memory, what a set should leave: one part in this many. Where cuDNN chooses other kernels or the driver other addresses,
/// reserved bytes on a card differ from the trial's by about as much (note 0019).
const SPARE_PART: u64 = 50;

/// A set, its trial, and what it costs.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) set: Set,
    pub(super) trial: Trial,
    /// Whether it fits the GPU; `None` if the program did not run with it.
    pub(super) fits: Option<bool>,
    /// Whether it fits only because the allocator gives cached memory back when memory runs short, which takes time.
    pub(super) is_tight: bool,
    /// Whether it fits, but leaves so little that it may not on a card.
    pub(super) is_close: bool,
    /// The trial under the GPU's limit, if the set fits only because the program catches running out of memory and goes on with
    /// less; `trial` then has the program without that limit, where it ends well without it.
    pub(super) caught: Option<Trial>,
    /// `None` if the work of a step is unknown.
    pub(super) cost: Option<Cost>,
}

impl Candidate {
    /// A set that was not tried, because the search had to end.
    pub(super) fn untried(set: &Set) -> Candidate {
        Candidate {
            set: set.clone(),
            trial: Trial::without_answer(End::Interrupted),
            fits: None,
            is_tight: false,
            is_close: false,
            caught: None,
            cost: None,
        }
    }

    /// Takes over what the run on the GPU itself showed, after more steps than those of the trial.
    pub(super) fn settle(&mut self, itself: &Trial, target: &Target) {
        self.trial.allocated_bytes = itself.allocated_bytes;
        self.trial.reserved_bytes = itself.reserved_bytes;
        self.trial.steps = itself.steps;
        self.is_tight |= itself.retries > 0;
        self.is_close = is_close(target, itself.reserved_bytes);
    }

    /// Whether the program ran with it, and each of its techniques had an effect.
    pub(super) fn is_effective(&self) -> bool {
        self.trial.end == End::Ran && self.trial.techniques.iter().all(|it| it.applied)
    }

    /// Whether it fits with memory to spare.
    pub(super) fn has_room(&self) -> bool {
        self.fits == Some(true) && !self.is_tight && !self.is_close && self.is_effective()
    }

    /// Bytes of pinned host memory for what it moves there in a step.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.trial.technique(Technique::Offload.name()).map_or(0, |it| it.bytes)
    }

    /// What its headroom is called where it is small.
    pub(super) fn room(&self) -> &'static str {
        match (self.fits, self.is_tight, self.is_close) {
            (Some(true), true, _) => ", tight",
            (Some(true), false, true) => Candidate::CLOSE,
            _ => "",
        }
    }

    /// That of a set that fits and [is close](Candidate::is_close).
    pub(super) const CLOSE: &str = ", close";

    /// Why the set is not an option.
    pub(super) fn objection(&self) -> Option<String> {
        match &self.trial.end {
            End::Refused(it) => Some(format!("{}: {}", it.technique, it.reason)),
            End::Failed(how) => Some(format!("failed: {how}")),
            End::Unknown(why) => Some(format!("no answer: {why}")),
            End::RanOut(why) => Some(why.clone()),
            End::Interrupted => Some("interrupted".to_owned()),
            End::Ran => {
                let idle = self.trial.techniques.iter().find(|it| !it.applied);
                idle.map(|it| format!("{}: no effect: {}", it.name, it.detail))
            }
        }
    }

    /// Estimated seconds of a step; the order of candidates without an estimate is that of their trials.
    pub(super) fn step_s(&self) -> f64 {
        self.cost.map_or(0.0, |cost| cost.step_s)
    }
}

/// The most reserved bytes that leave enough of the GPU.
pub(super) fn most_bytes(target: &Target) -> u64 {
    target.capacity_bytes().saturating_sub(target.total_bytes / SPARE_PART)
}

/// Whether so many reserved bytes leave less than that.
pub(super) fn is_close(target: &Target, reserved_bytes: u64) -> bool {
    reserved_bytes > most_bytes(target)
}
