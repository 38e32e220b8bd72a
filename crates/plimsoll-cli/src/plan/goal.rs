//! What the user wants of a plan: [`Goal`], and [`Wish`] with what techniques may do to the numbers.

use crate::techniques::Numbers;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) goal: Goal,
    /// The most that a set may do to the numbers.
    pub(super) numbers: Numbers,
}

/// What to optimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Goal {
    /// The cheapest set that fits: those that keep the numbers first, then the fastest
    Fit,
    /// The least memory
    Memory,
    /// The fastest set that fits, whether it rounds differently or not
    Speed,
    /// The largest {BATCH} that fits
    Batch,
}

impl Goal {
    /// Whether the least memory is wanted, whatever time it takes.
    pub(super) fn is_memory(self) -> bool {
        matches!(self, Goal::Memory | Goal::Batch)
    }
}
