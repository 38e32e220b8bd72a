//! The order of cached blocks, which decides the one that serves a request.

use crate::block::Block;
use crate::config::TieOrder;

// Note [Best fit order]
// Of the cached blocks of a request's own stream, the smallest that holds it is used. Among equal sizes: the one in the
// oldest segment, then the one at the lowest address. So the result does not depend on the addresses that the device
// returns, and traces replay on any machine. In PyTorch 2.15: `BlockComparatorSizeCounterAddress`. Until about 2.12,
// PyTorch broke ties by address alone: `TieOrder::Address`, for which every segment has number 0.

impl TieOrder {
    /// A block's rank among the blocks of its stream.
    pub(super) fn rank(self, block: &Block) -> (u64, u64, u64) {
        match self {
            Self::RegistrationCounter => (block.bytes, block.segment_number, block.addr.0),
            Self::Address => (block.bytes, 0, block.addr.0),
        }
    }
}
