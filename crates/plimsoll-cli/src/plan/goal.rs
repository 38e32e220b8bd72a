//! What the user wants from a plan: [`Goal`], and [`Wish`] with what techniques may do to the numbers.

use crate::techniques::Numbers;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) goal: Goal,
    /// How much a set may change the numbers.
    pub(super) numbers: Numbers,
}

/// What to optimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Goal {
    /// The set that fits and changes the numbers least, then the fastest
    Fit,
    /// The least memory
    Memory,
    /// The fastest set that fits, even if it rounds differently
    Speed,
    /// The largest {BATCH} that fits
    Batch,
}

impl Goal {
    /// Whether the least memory is wanted, whatever the time.
    pub(super) fn is_memory(self) -> bool {
        matches!(self, Goal::Memory | Goal::Batch)
    }
}
