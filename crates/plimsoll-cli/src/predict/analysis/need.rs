//! The need of a program that ran out of memory: [`Need`].

use super::growth::Growth;
use super::judged::Judged;

/// The peaks of a program with all the memory that it asks for.
pub(crate) struct Need {
    /// The process and the device.
    pub(crate) judged: Judged,
    /// The need, including the computed part of loops: the allocated bytes if they alone exceed what
    /// the GPU offers, otherwise the reserved ones. If memory outside the allocator peaked before PyTorch's, all of the process.
    pub(crate) bytes: u64,
    /// How many of these bytes the GPU lacks.
    pub(crate) more_bytes: u64,
    /// Whether this run did not end either, so that the program needs at least this much.
    pub(crate) is_least: bool,
    /// Memory that grows in that run, if any.
    pub(crate) growth: Option<Growth>,
    /// Sentences about loops that were cut short.
    pub(crate) cut: Vec<String>,
}
