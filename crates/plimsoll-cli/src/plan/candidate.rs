//! A set that was tried: [`Candidate`].

use super::facts::{Fact, Ran};
use super::fit::{Fit, Limits};
use super::time::Cost;
use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial};
use crate::techniques::{Levels, Set, Technique, Time};

/// A set should leave at least 1/`SPARE_PART` of the GPU's memory free: 50 means 2 %. If cuDNN chooses other kernels
/// on the real GPU, or the driver returns other addresses, the reserved bytes differ from those of the trial by about
/// that much (note 0019).
const SPARE_PART: u64 = 50;

/// A set, its trial, and its cost.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) set: Set,
    pub(super) trial: Trial,
    pub(super) fit: Fit,
    /// The trial under the GPU's limit, if the set fits only because the program catches out-of-memory errors and
    /// continues with less memory. `trial` is then the run without that limit, if it succeeded.
    pub(super) caught: Option<Trial>,
    /// `None` if the work of a step is unknown.
    pub(super) cost: Option<Cost>,
}

impl Candidate {
    /// Replaces the trial's result with that of the run at the GPU's size, which has more steps.
    pub(super) fn settle(&mut self, itself: &Trial, limits: Limits) {
        self.trial.allocated_bytes = itself.allocated_bytes;
        self.trial.reserved_bytes = itself.reserved_bytes;
        self.trial.outside_bytes = itself.outside_bytes;
        self.trial.steps = itself.steps;
        let gives_back = self.fit.is_tight() || itself.retries > 0;
        let bytes = itself.reserved_bytes;
        self.fit = if gives_back { limits.tight(bytes) } else { limits.fit(bytes) };
    }

    /// Whether the program ran with this set, and every technique in it had an effect.
    pub(super) fn is_effective(&self) -> bool {
        self.trial.end == End::Ran && self.trial.techniques.iter().all(|it| it.applied)
    }

    /// Whether the set fits with enough headroom.
    pub(super) fn has_room(&self) -> bool {
        self.fit.has_room() && self.is_effective()
    }

    /// If the set moves tensors to the host: the bytes of all pinned memory of the program, in PyTorch's block sizes,
    /// which are powers of two. If these are unknown, the size of the moved tensors.
    pub(super) fn pinned_bytes(&self) -> u64 {
        let moves =
            |it: &Technique| matches!(it.row().time, Time::Copies | Time::WeightCopies | Time::StepCopies);
        if self.set.techniques().any(|it| moves(&it))
            && let Some(bytes) = self.trial.pinned_bytes
        {
            return bytes;
        }
        let copying = self.set.techniques().filter(moves);
        copying.filter_map(|it| self.trial.technique(it.name())).map(|it| it.bytes).sum()
    }

    /// Why the set cannot be chosen.
    pub(super) fn objection(&self) -> Option<String> {
        if self.trial.end != End::Ran {
            return Some(objection(&self.trial.end));
        }
        let idle = self.trial.techniques.iter().find(|it| !it.applied);
        idle.map(|it| format!("{}: no effect: {}", it.name, it.detail))
    }

    /// Estimated seconds of a step. Candidates without an estimate count as equally fast, so they stay in the order of
    /// their trials.
    pub(super) fn step_s(&self) -> f64 {
        self.cost.map_or(0.0, |cost| cost.step_s)
    }

    /// The facts about this set that the strategy uses.
    pub(super) fn fact(&self) -> Fact {
        let blocks = self.set.techniques().find(|it| it.row().levels == Levels::Blocks);
        Fact {
            set: self.set.clone(),
            fit: self.fit.clone(),
            run: self.ran(),
            is_caught: self.caught.is_some(),
            allocated_bytes: self.trial.allocated_bytes,
            reserved_bytes: self.trial.reserved_bytes,
            step_s: self.cost.map(|cost| cost.step_s),
            blocks: blocks.and_then(|it| self.trial.technique(it.name())).map_or(0, |it| it.blocks),
        }
    }

    fn ran(&self) -> Ran {
        let idle = self.trial.techniques.iter().filter(|it| !it.applied);
        match &self.trial.end {
            End::Ran if self.is_effective() => Ran::Well,
            End::Ran => Ran::Idle(idle.filter_map(|it| Technique::named(&it.name)).collect()),
            End::Refused(it) => Technique::named(&it.technique).map_or(Ran::Failed, Ran::Refused),
            End::Failed(_) | End::Unknown(_) | End::RanOut(_) | End::Interrupted => Ran::Failed,
        }
    }
}

/// Why a trial has no peaks.
pub(super) fn objection(end: &End) -> String {
    match end {
        End::Refused(it) => format!("{}: {}", it.technique, it.reason),
        End::Failed(how) => format!("failed: {how}"),
        End::Unknown(why) => format!("no answer: {why}"),
        End::RanOut(why) => why.clone(),
        End::Ran | End::Interrupted => "interrupted".to_owned(),
    }
}

/// The limits on the memory that a program may reserve on a GPU.
pub(super) fn limits(target: &Target) -> Limits {
    let capacity_bytes = target.capacity_bytes();
    Limits { capacity_bytes, roomy_bytes: capacity_bytes.saturating_sub(target.total_bytes / SPARE_PART) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trial_has_outside_the_allocator_lowers_its_limits() {
        let target = Target::new("24GiB", Some("8.9"), Some(1 << 30)).expect("a GPU");
        let of = |outside_bytes| Trial { outside_bytes, ..Trial::without_answer(End::Ran) };
        let left = |outside_bytes| {
            let expected = limits(&target);
            let Limits { capacity_bytes, roomy_bytes } = limits(&of(outside_bytes).target(&target));
            (expected.capacity_bytes - capacity_bytes, expected.roomy_bytes - roomy_bytes)
        };
        assert_eq!(left(Some(3 << 30)), (2 << 30, 2 << 30));
        assert_eq!((left(Some(1)), left(None)), ((0, 0), (0, 0)));
    }
}
