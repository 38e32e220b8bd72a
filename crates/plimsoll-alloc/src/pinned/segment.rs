//! Snapshots of the state: one [`PinnedSegment`] for each block.

use crate::request::{Addr, PoolId};

/// One block of pinned memory, as in PyTorch's `host_segments`.
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
    /// Its address.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// The last requested size, bytes.
    pub requested_bytes: u64,
    /// Its pool.
    pub pool: PoolId,
    /// Its state.
    pub state: PinnedState,
}

/// The state of a block of pinned memory.
///
/// ```
/// # use plimsoll_alloc::PinnedState;
/// assert!(PinnedState::Waiting.is_active() && !PinnedState::Cached.is_active());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedState {
    /// Allocated.
    Held,
    /// Freed, but a stream may still use it.
    Waiting,
    /// Freed, but the end of its use cannot be determined: a captured graph may use it at any
    /// time, or an event could not be recorded. It is never reused.
    Retired,
    /// Cached, for requests of its bucket.
    Cached,
}

impl PinnedState {
    /// Whether it counts as active: every state except cached.
    pub fn is_active(self) -> bool {
        self != Self::Cached
    }
}
