//! The order of cached blocks: which of those that fit a request is taken.

use crate::block::Block;
use crate::config::TieOrder;

// Note [Best fit order]
// Of the cached blocks of a request's own stream, the smallest that holds it is taken. Among equal sizes:
// the oldest segment first, then the lowest address in it. So the result does not depend on the
// addresses that the device returns, and traces replay on any machine.
// As PyTorch 2.15: `BlockComparatorSizeCounterAddress`. Until about 2.12 the address alone broke ties:
// `TieOrder::Address`, for which every segment counts as number 0.

impl TieOrder {
    /// A block's rank among the blocks of its stream.
    pub(super) fn rank(self, block: &Block) -> (u64, u64, u64) {
        match self {
            Self::RegistrationCounter => (block.bytes, block.segment_number, block.addr.0),
            Self::Address => (block.bytes, 0, block.addr.0),
        }
    }
}
