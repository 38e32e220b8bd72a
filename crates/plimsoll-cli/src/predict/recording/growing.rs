//! Memory that grew while the program ran, as its processes report it: [`GrowingSteps`], and the loops of [`CutLoop`].

use serde::Deserialize;

/// A device whose memory grew in each of the latest steps (`growth.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingSteps {
    pub(crate) device: i32,
    /// Bytes a step.
    pub(crate) bytes: u64,
    /// The steps that ran.
    pub(crate) steps: u64,
    /// The steps of the whole program; `None` if unknown.
    pub(crate) total: Option<u64>,
}

/// A loop over a DataLoader, after the steps, that was not given all of its batches (`loops.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CutLoop {
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// The batches that it was given, copies included.
    pub(crate) given: u64,
    /// The batches that the loader made.
    pub(crate) made: u64,
    /// The loader's length; `None` if it has none.
    pub(crate) total: Option<u64>,
    /// The batches that it was not given.
    pub(crate) left: u64,
    /// The devices whose memory grew from batch to batch.
    pub(crate) grows: Vec<GrowingBatches>,
    pub(crate) is_cut: bool,
    /// Microseconds since 1970.
    pub(crate) ended_us: u64,
}

/// A device whose memory grew from batch to batch.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingBatches {
    pub(crate) device: i32,
    /// Bytes a batch.
    pub(crate) bytes: u64,
    /// Allocated bytes at the first request for a batch, and at the last.
    pub(crate) first_bytes: u64,
    pub(crate) last_bytes: u64,
}
