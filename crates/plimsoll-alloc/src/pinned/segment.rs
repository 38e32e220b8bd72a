//! A picture of the state: [`PinnedSegment`], one for each block.

use super::allocator::PinnedAllocator;
use super::block::{Block, State};
use crate::request::{Addr, PoolId};

/// One block of pinned memory, as PyTorch's `host_segments` show it.
///
/// ```
/// # use plimsoll_alloc::{PinnedAllocator, PinnedConfig, PinnedRequest, PinnedState, SimHost};
/// let mut pinned = PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(1 << 20), ());
/// let x = pinned.alloc(PinnedRequest::of(1000))?;
/// pinned.free(x)?;
/// let segments = pinned.segments();
/// assert_eq!((segments[0].bytes, segments[0].state), (1024, PinnedState::Cached));
/// # Ok::<(), plimsoll_alloc::PinnedError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedSegment {
    /// Where it starts.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// What its last holder asked for, bytes.
    pub requested_bytes: u64,
    /// The pool that it is for.
    pub pool: PoolId,
    /// Where it is in its life.
    pub state: PinnedState,
}

/// Where a block of pinned memory is in its life.
///
/// ```
/// # use plimsoll_alloc::PinnedState;
/// assert!(PinnedState::Waiting.is_active() && !PinnedState::Cached.is_active());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedState {
    /// A caller has it.
    Held,
    /// Given back, while a stream may still use it.
    Waiting,
    /// Given back, and nothing can tell when it is done with: a graph that was captured may use it at any
    /// time, or an event could not be recorded. It is never used again.
    Retired,
    /// Free for the next request of its bucket.
    Cached,
}

impl PinnedState {
    /// Whether it counts as active, as everything does that is not in the cache.
    pub fn is_active(self) -> bool {
        self != Self::Cached
    }
}

impl Block {
    /// The block at `addr` as others see it.
    pub(super) fn seen(&self, addr: Addr) -> PinnedSegment {
        let Self { bytes, requested_bytes, pool, state, .. } = *self;
        PinnedSegment { addr, bytes, requested_bytes, pool, state: state.seen() }
    }
}

impl<D, O> PinnedAllocator<D, O> {
    /// All blocks, by address.
    pub fn segments(&self) -> Vec<PinnedSegment> {
        self.blocks.iter().map(|(&addr, block)| block.seen(addr)).collect()
    }

    /// Bytes in blocks that callers hold or streams may still use, and bytes in cached ones.
    pub(super) fn active_and_cached_bytes(&self) -> (u64, u64) {
        let sum = |cached: bool| {
            let blocks = self.blocks.values().filter(|block| (block.state == State::Cached) == cached);
            blocks.map(|block| block.bytes).sum()
        };
        (sum(false), sum(true))
    }
}
