//! The knowledge of a search: [`Facts`], with a [`Fact`] about each set that was tried. The strategy uses no other
//! data.

use super::fit::{Fit, Limits};
use super::goal::Wish;
use crate::techniques::{Set, Technique};

/// The facts, and what the user wants.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) wish: Wish,
    /// The number of GPUs.
    pub(super) devices: u32,
    pub(super) limits: Limits,
    /// All sets that were tried, in order. The first is the unchanged program.
    pub(super) tried: Vec<Fact>,
    /// The number of facts that were known when a run at the GPU's size last corrected a fact. The search continues
    /// from there.
    pub(super) known_before: usize,
    /// Whether the unmodified program's memory grows from step to step, and its size at the end is known.
    pub(super) grows: bool,
    /// Whether the program compiles its model.
    pub(super) compiles: bool,
    /// Whether it is an inference program, which reads no gradient.
    pub(super) infers: bool,
    /// Whether there are repeated blocks inside the model's repeated blocks.
    pub(super) has_nested_blocks: bool,
}

/// The facts about a set.
#[derive(Debug, Clone)]
pub(super) struct Fact {
    pub(super) set: Set,
    pub(super) fit: Fit,
    pub(super) run: Ran,
    /// Whether the program fits only because it catches out-of-memory errors.
    pub(super) is_caught: bool,
    pub(super) allocated_bytes: u64,
    pub(super) reserved_bytes: u64,
    /// Estimated seconds of a step; `None` if the work of a step is unknown.
    pub(super) step_s: Option<f64>,
    /// The number of repeated blocks in the model, if the set checkpoints some.
    pub(super) blocks: u64,
}

/// How the program ran with a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    /// Each technique had an effect.
    Well,
    /// The program ran, but these techniques had no effect.
    Idle(Vec<Technique>),
    /// This technique cannot be applied to the program.
    Refused(Technique),
    /// The program failed, or there is no answer.
    Failed,
}

impl Fact {
    /// Whether the program ran with the set, and each of its techniques had an effect.
    pub(super) fn is_effective(&self) -> bool {
        self.run == Ran::Well
    }

    /// Whether the peaks are known.
    pub(super) fn has_peaks(&self) -> bool {
        matches!(self.run, Ran::Well | Ran::Idle(_))
    }

    /// Whether the set fits with enough headroom.
    pub(super) fn has_room(&self) -> bool {
        self.fit.has_room() && self.is_effective()
    }

    /// Seconds by which to sort sets; sets without an estimate keep the order of their trials.
    pub(super) fn order_s(&self) -> f64 {
        self.step_s.unwrap_or(0.0)
    }

    /// Whether the peak with this set is clearly lower than with the other set. Small differences do not count, because
    /// even a different order of requests changes a peak slightly.
    pub(super) fn saves_beside(&self, other: &Fact) -> bool {
        let lower = |other: u64, own: u64| other.saturating_sub(own) > other / 200;
        lower(other.allocated_bytes, self.allocated_bytes) || lower(other.reserved_bytes, self.reserved_bytes)
    }

    /// Whether the set consists of only this technique.
    pub(super) fn is_alone(&self, technique: Technique) -> bool {
        self.set.techniques().eq([technique])
    }
}
