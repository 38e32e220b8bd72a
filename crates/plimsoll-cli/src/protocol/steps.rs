//! Memory from step to step, and parts of the program's loops that did not run: what `growth.py`, `varying.py`, `late.py`, `loops.py` and
//! `batches.py` report.

use serde::Deserialize;

/// A device whose memory grew in the latest steps (`growth.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingSteps {
    pub(crate) device: i32,
    /// The bytes by which memory grew in one of `every` steps.
    pub(crate) bytes: u64,
    pub(crate) every: u64,
    /// How often growth was seen.
    pub(crate) times: u64,
    /// The steps that ran.
    pub(crate) steps: u64,
    /// The number of steps of the complete program, or of one round of an outer loop; `None` if unknown.
    pub(crate) total: Option<u64>,
    /// Whether the memory is dropped after `total` steps, in each round of an outer loop.
    pub(crate) resets: bool,
    /// The number of bytes by which each growth is larger than the one before.
    pub(crate) quickens: u64,
}

/// A device whose requests differed from step to step, so that memory fragments (`varying.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Varying {
    pub(crate) device: i32,
    /// The bytes by which its reserved bytes still grew in the last `steps` steps; 0 if they had settled.
    pub(crate) bytes: u64,
    pub(crate) steps: u64,
}

/// A device whose peak rose in each of the latest steps (`growth.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Climb {
    pub(crate) device: i32,
    /// The bytes by which it rose in the last step.
    pub(crate) bytes: u64,
    /// The steps that ran.
    pub(crate) steps: u64,
}

/// Statements of the training loop that did not run in its first steps but may matter for memory (`late.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Late {
    pub(crate) file: String,
    /// Their first and last line.
    pub(crate) line: u64,
    pub(crate) end: u64,
    /// When they run, as in the source: `if step % 500 == 0`.
    pub(crate) text: String,
    /// The number of steps after which they have run; `None` if unknown.
    pub(crate) steps: Option<u64>,
    /// Whether they ran in the first step, when the optimizer had no state.
    pub(crate) first: bool,
}

/// A loop over a DataLoader, after the steps, that did not get all of its batches (`loops.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CutLoop {
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// The batches that the program got, copies included.
    pub(crate) given: u64,
    /// The batches that the loader made.
    pub(crate) made: u64,
    /// The loader's length; `None` if it has none.
    pub(crate) total: Option<u64>,
    /// The batches that the program did not get.
    pub(crate) left: u64,
    /// The devices whose memory grew from batch to batch.
    pub(crate) grows: Vec<GrowingBatches>,
    pub(crate) is_cut: bool,
    /// Microseconds since 1970.
    pub(crate) ended_us: u64,
}

/// Batches of the training that differ in size: the number that was made, and the total (`batches.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Batches {
    pub(crate) made: u64,
    /// `None` for a dataset without a length.
    pub(crate) total: Option<u64>,
}

/// A device whose memory grew from batch to batch.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingBatches {
    pub(crate) device: i32,
    /// Bytes per batch.
    pub(crate) bytes: u64,
    /// Allocated bytes at the first request for a batch, and at the last.
    pub(crate) first_bytes: u64,
    pub(crate) last_bytes: u64,
}
