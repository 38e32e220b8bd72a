//! What a program that ran out of memory needs: [`Need`].

use super::growth::Growth;
use super::judged::Judged;

/// The peaks of a program with all the memory that it asks for.
pub(crate) struct Need {
    /// The process and the device.
    pub(crate) judged: Judged,
    /// What it needs, including the computed part of loops: the allocated bytes if they alone exceed what
    /// the GPU offers, otherwise the reserved ones.
    pub(crate) bytes: u64,
    /// How many of these bytes the GPU lacks.
    pub(crate) more_bytes: u64,
    /// Whether this run did not end, either: then the program needs at least this.
    pub(crate) is_least: bool,
    /// What grows in that run, if anything.
    pub(crate) growth: Option<Growth>,
    /// Sentences about loops that were cut short.
    pub(crate) cut: Vec<String>,
}
