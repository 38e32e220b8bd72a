//! What is kept and what is recomputed in a sequence of blocks: [`Schedule`], and the costs on which the choice is
//! based.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};

/// How much memory a sequence may keep for its backward pass.
///
/// The bytes are those that the blocks save: the inputs of checkpointed parts, what the other blocks save, and what the
/// piece being recomputed saves. Gradients, temporary tensors inside operations, and the 16-bit copies of parameters
/// under autocast are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// This many equal segments, all checkpointed except the last. Like the argument `segments` of
    /// `torch.utils.checkpoint.checkpoint_sequential`.
    Segments(usize),
    /// At most this many bytes, with as little recomputation as possible. If one extra forward pass is not enough,
    /// parts are checkpointed inside parts.
    Bytes(u64),
    /// As few bytes as possible while each block runs at most twice.
    Auto,
}

impl From<usize> for Budget {
    fn from(segments: usize) -> Budget {
        Budget::Segments(segments)
    }
}

/// What a block of a sequence costs: its bytes, and the time of its forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Bytes of its input.
    pub input_bytes: u64,
    /// Whether the block saves its input for the backward pass.
    pub saves_input: bool,
    /// Bytes that the block saves, not counting its input and output.
    pub inner_bytes: u64,
    /// Bytes that the block saves only in a checkpointed part, for [recomputed outputs](super::recompute_output).
    pub recipe_bytes: u64,
    /// Bytes of its output.
    pub output_bytes: u64,
    /// Whether the block saves its output.
    pub saves_output: bool,
    /// Seconds of its forward pass, or any other unit, as long as it is the same for all blocks.
    pub forward_seconds: f64,
    /// The seconds of the forward pass after the block has saved its last tensor. The last block of a checkpointed part
    /// does not repeat that time.
    pub tail_seconds: f64,
    /// Seconds to copy what it saves, with its input, to the host. 0 if that is unknown or not possible; the saved
    /// tensors then stay on the device.
    pub copy_seconds: f64,
    /// Bytes of the largest tensor that it saves.
    pub largest_bytes: u64,
}

/// A part of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// These blocks keep what they save.
    Keep(Range<usize>),
    /// Only the input of the first of these blocks is kept. When they are recomputed, they follow their own schedule,
    /// if they have one; it counts blocks from the first of these.
    Checkpoint(Range<usize>, Option<Arc<Schedule>>),
}

impl Part {
    pub(super) fn range(&self) -> Range<usize> {
        match self {
            Part::Keep(range) | Part::Checkpoint(range, _) => range.clone(),
        }
    }
}

/// Which blocks of a sequence keep what they save, and which are recomputed.
///
/// ```
/// use plimsoll_tensor::checkpoint::{BlockCost, Budget, Schedule};
/// // Each of 100 layers saves 1 MiB: its output.
/// let layer = BlockCost {
///     input_bytes: 1 << 20,
///     output_bytes: 1 << 20,
///     saves_output: true,
///     forward_seconds: 1.0,
///     ..BlockCost::default()
/// };
/// let least = Schedule::of(&[layer; 100], Budget::Auto)?;
/// assert_eq!((least.kept_bytes() >> 20, least.recomputed()), (15, 0.95)); // about √(2·100), not 100
/// let half = Schedule::of(&[layer; 100], Budget::Bytes(50 << 20))?;
/// assert!(half.kept_bytes() <= 50 << 20 && half.recomputed() < 0.56);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub(super) parts: Vec<Part>,
    pub(super) kept_bytes: u64,
    pub(super) recomputed: f64,
    /// For each block: whether its saved tensors wait on the host, if it is in a part that is kept. Empty if none does.
    pub(super) is_offloaded: Vec<bool>,
}

impl Schedule {
    /// The most bytes that the blocks keep for the backward pass at any time, including the input of the sequence.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// How much is recomputed, in forward passes of the whole sequence: 0 if everything is kept, below 1 if no block
    /// runs more than twice.
    pub fn recomputed(&self) -> f64 {
        self.recomputed
    }

    /// The blocks whose saved tensors wait on the host until the backward pass.
    pub fn offloaded(&self) -> Vec<usize> {
        let kept = self.parts.iter().filter(|part| matches!(part, Part::Keep(_))).flat_map(Part::range);
        kept.filter(|&block| self.is_offloaded.get(block) == Some(&true)).collect()
    }
}

/// Equal segments, as PyTorch cuts them; the last one contains the rest and is kept.
pub(super) fn equal(blocks: usize, segments: usize) -> Result<Vec<Part>> {
    if segments == 0 || segments > blocks {
        let message = format!("{segments} segments of {blocks} functions: use 1 to {blocks}");
        return Err(Error::argument("checkpoint_sequential", message));
    }
    let len = blocks / segments;
    let last = len * (segments - 1);
    let mut parts: Vec<Part> =
        (0..last).step_by(len).map(|first| Part::Checkpoint(first..first + len, None)).collect();
    parts.push(Part::Keep(last..blocks));
    Ok(parts)
}
