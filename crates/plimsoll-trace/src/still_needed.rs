//! The memory that a program would have needed after the request that failed: [`StillNeeded`], a lower
//! bound. `explain/needed.rs` finds it.

use crate::failure::Failure;

/// The requests that the program would have made after the failed request, whose blocks would all have been live at the
/// same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillNeeded {
    /// The bytes that were needed in addition to the failed request; a lower bound.
    pub bytes: u64,
    /// The bytes of each of these requests, the largest first. Empty if only their sum is known.
    pub requests: Vec<u64>,
    /// The purpose of the bytes.
    pub rest: Rest,
    /// The confidence, in the words of [`Why::confidence`](crate::explain::Why::confidence).
    pub confidence: &'static str,
}

/// The purpose of the bytes that were still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Optimizer state for the parameters that did not have state yet.
    OptimizerState {
        /// The number of state tensors per parameter, each of the parameter's size.
        parts: usize,
    },
    /// The tensors that an optimizer step creates for the other parameters.
    OptimizerStep,
    /// The rest of one of several identical layers, and the layers after it.
    Layers {
        /// The layer in which the request failed, counted from one.
        layer: usize,
        /// The number of layers.
        layers: usize,
        /// The bytes that each layer needs.
        bytes_each: u64,
    },
}

impl Rest {
    /// The purpose in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::OptimizerState { .. } => "optimizer state for the remaining parameters",
            Self::OptimizerStep => "the same optimizer step for the remaining parameters",
            Self::Layers { .. } => "the rest of this layer and the following layers",
        }
    }
}

impl StillNeeded {
    /// A lower bound of the bytes that are missing for the failed request and everything that was still needed; `None`
    /// if nothing is missing, or if the capacity is unknown.
    pub fn short_bytes(&self, failure: &Failure) -> Option<u64> {
        let needed = failure.needed_bytes().saturating_add(self.bytes);
        needed.checked_sub(failure.most_capacity_bytes()?).filter(|&bytes| bytes > 0)
    }
}
