//! Memory from step to step, and parts of the program's loops that did not run, as reported by `growth.py`,
//! `varying.py`, `late.py`, `loops.py` and `batches.py`.

use serde::Deserialize;

/// What memory grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Step,
    Epoch,
    /// An iteration of an outer loop (`outer.py`).
    Round,
}

/// A device whose memory grew in the latest steps (`growth.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingSteps {
    pub(crate) device: i32,
    /// The bytes by which memory grew in one of every `every` steps.
    pub(crate) bytes: u64,
    pub(crate) every: u64,
    /// How often memory was seen to grow.
    pub(crate) times: u64,
    /// The number of steps that ran.
    pub(crate) steps: u64,
    /// The number of steps in the complete program, or in one iteration of an outer loop; `None` if unknown.
    pub(crate) total: Option<u64>,
    /// Whether the memory is freed after `total` steps, in each iteration of an outer loop.
    pub(crate) resets: bool,
    /// The bytes by which each increase is larger than the previous increase.
    pub(crate) quickens: u64,
    /// The bytes by which the peak rises per step; 0 if unknown.
    pub(crate) peak_bytes: u64,
    /// Whether only the peak grows, and not the memory that remains after a step.
    pub(crate) climbs: bool,
    /// What `every`, `steps` and `total` count.
    pub(crate) unit: Unit,
    /// Whether gradients and optimizer states grow, because the program unfreezes more and more parameters. After
    /// `total` steps, all parameters have them.
    pub(crate) states: bool,
}

/// A statement that ends the training loop depending on an unknown value, such as early stopping (`breaks.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Break {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) text: String,
    /// Whether the statement ended the loop before the loop's last step.
    pub(crate) is_early: bool,
}

/// A device whose requests differed from step to step, so that memory fragments (`varying.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Varying {
    pub(crate) device: i32,
    /// The bytes by which the device's reserved bytes still grew in the last `steps` steps; 0 if they had settled.
    pub(crate) bytes: u64,
    pub(crate) steps: u64,
    /// The steps that the program still makes; `None` if unknown.
    pub(crate) left: Option<u64>,
}

impl Varying {
    /// The bytes by which the reserved bytes still grow if they go on like this to the end of the program; `None` if that
    /// is unknown.
    pub(crate) fn more_bytes(&self) -> Option<u64> {
        match self.bytes {
            0 => Some(0),
            bytes => Some(bytes.saturating_mul(self.left?).div_ceil(self.steps.max(1))),
        }
    }
}

/// A device whose peak rose in each of the latest steps (`growth.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Climb {
    pub(crate) device: i32,
    /// The bytes by which the peak rose in the last step.
    pub(crate) bytes: u64,
    /// The number of steps that ran.
    pub(crate) steps: u64,
}

/// Statements of the training loop that did not run in its first steps but may matter for memory (`late.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Late {
    pub(crate) file: String,
    /// The first and the last line of the statements.
    pub(crate) line: u64,
    pub(crate) end: u64,
    /// When the statements run, as written in the source: `if step % 500 == 0`.
    pub(crate) text: String,
    /// The number of steps after which the statements will have run; `None` if unknown.
    pub(crate) steps: Option<u64>,
    /// Whether the statements ran in the first step, when the optimizer had no state.
    pub(crate) first: bool,
    /// Whether the line has run, and a size on it changes in step `steps` (`ramps.py`).
    pub(crate) changes: bool,
}

/// A loop over a DataLoader, after the steps, that did not get all of its batches (`loops.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct CutLoop {
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// The batches that the program got, including copies.
    pub(crate) given: u64,
    /// The batches that the loader made.
    pub(crate) made: u64,
    /// The number of batches of the loader; `None` if it has no length.
    pub(crate) total: Option<u64>,
    /// The batches that the program did not get.
    pub(crate) left: u64,
    /// The devices whose memory grew from batch to batch.
    pub(crate) grows: Vec<GrowingBatches>,
    /// The bytes by which the host's memory grew with each batch, for example because results are copied to it.
    pub(crate) host_bytes: u64,
    pub(crate) is_cut: bool,
    /// When the loop ended, in microseconds since 1970.
    pub(crate) ended_us: u64,
}

/// Training batches that differ in size: how many were made, and the total (`batches.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Batches {
    pub(crate) made: u64,
    /// The total number of batches; `None` for a dataset without a length.
    pub(crate) total: Option<u64>,
}

/// A device whose memory grew from batch to batch.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingBatches {
    pub(crate) device: i32,
    /// Bytes per batch.
    pub(crate) bytes: u64,
    /// Allocated bytes at the first and at the last request for a batch.
    pub(crate) first_bytes: u64,
    pub(crate) last_bytes: u64,
}
