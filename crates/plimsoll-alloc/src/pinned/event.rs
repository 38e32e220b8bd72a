//! What happened to pinned memory: [`PinnedEvent`] and the [`PinnedObserver`] seam.

use super::segment::PinnedSegment;
use crate::request::{Addr, PoolId};

/// One thing that the allocator did. The names are those of PyTorch's `host_traces`, whose sizes are those of
/// whole blocks too; `ReserveAlloc` and `PoolErased` leave no entry there.
///
/// ```
/// use plimsoll_alloc::{PinnedAllocator, PinnedConfig, PinnedEvent, PinnedRequest, SimHost};
///
/// let mut pinned = PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(1 << 20), Vec::new());
/// let x = pinned.alloc(PinnedRequest::of(1000))?;
/// let [PinnedEvent::SegmentAlloc { .. }, PinnedEvent::Alloc { block }] = pinned.observer()[..] else {
///     panic!("a first request pins memory");
/// };
/// assert_eq!((block.addr, block.bytes), (x.addr(), 1024));
/// # pinned.free(x)?;
/// # Ok::<(), plimsoll_alloc::PinnedError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedEvent {
    /// A block was given to a caller.
    Alloc {
        /// The block, as given.
        block: PinnedSegment,
    },
    /// A caller gave a block back.
    FreeRequested {
        /// The block, as it was held.
        block: PinnedSegment,
    },
    /// No stream uses the block any more; it goes to the cache, or to the system.
    FreeCompleted {
        /// The block, as it was held.
        block: PinnedSegment,
    },
    /// A new block.
    SegmentAlloc {
        /// Where it starts.
        addr: Addr,
        /// Its size, bytes.
        bytes: u64,
        /// The pool that it is for.
        pool: PoolId,
        /// How long the driver took, or None if it was carved from the reserve.
        elapsed_us: Option<u64>,
    },
    /// A block is no more.
    SegmentFree {
        /// Where it started.
        addr: Addr,
        /// Its size, bytes.
        bytes: u64,
        /// The pool that it was for.
        pool: PoolId,
        /// How long the driver took, or None if it was part of the reserve.
        elapsed_us: Option<u64>,
    },
    /// The reserve was pinned.
    ReserveAlloc {
        /// Where it starts.
        addr: Addr,
        /// Its size, bytes.
        bytes: u64,
        /// How long the driver took.
        elapsed_us: u64,
    },
    /// A pool that no graph holds has lost its last block, and is no more.
    PoolErased {
        /// The pool.
        pool: PoolId,
    },
}

/// Who listens. Tuples compose, `()` hears nothing, and a `Vec<PinnedEvent>` keeps the whole story.
///
/// ```
/// # use plimsoll_alloc::{PinnedEvent, PinnedObserver, PoolId};
/// let mut story = (Vec::new(), ());
/// story.on(&PinnedEvent::PoolErased { pool: PoolId(1, 0) });
/// assert_eq!(story.0.len(), 1);
/// ```
pub trait PinnedObserver {
    /// Takes note, in the order of what happened.
    fn on(&mut self, event: &PinnedEvent);
}

impl PinnedObserver for () {
    fn on(&mut self, _: &PinnedEvent) {}
}

impl<A: PinnedObserver, B: PinnedObserver> PinnedObserver for (A, B) {
    fn on(&mut self, event: &PinnedEvent) {
        self.0.on(event);
        self.1.on(event);
    }
}

impl PinnedObserver for Vec<PinnedEvent> {
    fn on(&mut self, event: &PinnedEvent) {
        self.push(*event);
    }
}
