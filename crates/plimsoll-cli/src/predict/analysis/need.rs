//! What a program needs that ran out of memory: [`Need`].

use super::growth::Growth;
use super::judged::Judged;

/// The peaks of a program with all the memory that it asks for.
pub(crate) struct Need {
    /// The process and the device.
    pub(crate) judged: Judged,
    /// What it needs, also of what the run computed instead of doing it: the allocated bytes if they alone are more than the GPU
    /// offers, otherwise the reserved ones.
    pub(crate) bytes: u64,
    /// What the GPU does not have of them.
    pub(crate) more_bytes: u64,
    /// Whether the program did not come to its end either: it needs at least this.
    pub(crate) is_least: bool,
    /// What grows there, if something does.
    pub(crate) growth: Option<Growth>,
    /// What it got of loops that were cut.
    pub(crate) cut: Vec<String>,
}
