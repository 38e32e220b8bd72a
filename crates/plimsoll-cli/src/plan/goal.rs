//! What the user wants from a plan: a [`Wish`], which consists of a [`Goal`] and of how much techniques
//! may change the numbers.

use crate::techniques::Numbers;

/// The user's goal, and the changes that the user accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) goal: Goal,
    /// How much a set may change the numbers.
    pub(super) numbers: Numbers,
}

/// What to optimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Goal {
    /// The set that fits and changes the numbers least; among equals, the fastest
    Fit,
    /// The least memory
    Memory,
    /// The fastest set that fits, even if it rounds differently
    Speed,
    /// The largest {BATCH} that fits
    Batch,
}

impl Goal {
    /// Whether the goal is the least memory, regardless of the time.
    pub(super) fn is_memory(self) -> bool {
        matches!(self, Goal::Memory | Goal::Batch)
    }
}
