//! How much memory a program needs if it ran out: [`Need`].

use super::growth::Growth;
use super::judged::Judged;

/// The peaks of a program when it gets all the memory that it requests.
pub(crate) struct Need {
    /// The process and the device.
    pub(crate) judged: Judged,
    /// The bytes that the program needs, including the extrapolated part of loops: the allocated bytes if these alone
    /// exceed the GPU's memory, and otherwise the reserved bytes. If memory outside the allocator peaked before
    /// PyTorch's memory, the peak of the entire process counts.
    pub(crate) bytes: u64,
    /// How many of these bytes the GPU lacks.
    pub(crate) more_bytes: u64,
    /// Whether the need is only a lower bound, because the run with more memory did not reach the program's end either.
    pub(crate) is_least: bool,
    /// Memory that grows in the run with more memory, if any.
    pub(crate) growth: Option<Growth>,
    /// Sentences about loops that were cut short.
    pub(crate) cut: Vec<String>,
}
