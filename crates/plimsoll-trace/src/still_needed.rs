//! What a program would have needed after the request that failed: [`StillNeeded`], a lower bound. `explain/needed.rs` finds it.

use crate::failure::Failure;

/// What the program would have requested after the request that failed, to hold at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillNeeded {
    /// Bytes beyond the failed request, a lower bound.
    pub bytes: u64,
    /// The bytes of each of these requests, the largest first. Empty where only their sum is known.
    pub requests: Vec<u64>,
    /// What the bytes are for.
    pub rest: Rest,
    /// How sure this is, in the words of [`Why::confidence`](crate::explain::Why::confidence).
    pub confidence: &'static str,
}

/// What the bytes that were still needed are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Optimizer state for the parameters that had none yet.
    OptimizerState {
        /// State tensors of each parameter, of the parameter's size.
        parts: usize,
    },
    /// The tensors that an optimizer step creates for the other parameters.
    OptimizerStep,
    /// The rest of one of several equal layers, and the layers after it.
    Layers {
        /// The layer in which the request failed, from one.
        layer: usize,
        /// How many layers there are.
        layers: usize,
        /// Bytes that each layer takes.
        bytes_each: u64,
    },
}

impl Rest {
    /// What the bytes are for, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::OptimizerState { .. } => "optimizer state for the remaining parameters",
            Self::OptimizerStep => "the same optimizer step for the remaining parameters",
            Self::Layers { .. } => "the rest of this layer and the following layers",
        }
    }
}

impl StillNeeded {
    /// By how many bytes the request and all that was still needed exceed the capacity, a lower bound: `None` if they
    /// fit, or if the capacity is unknown.
    pub fn short_bytes(&self, failure: &Failure) -> Option<u64> {
        let needed = failure.needed_bytes().saturating_add(self.bytes);
        needed.checked_sub(failure.most_capacity_bytes()?).filter(|&bytes| bytes > 0)
    }
}
