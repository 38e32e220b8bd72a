//! Events of pinned memory: [`PinnedEvent`], and the [`PinnedObserver`] trait that receives them.

use super::segment::PinnedSegment;
use crate::request::{Addr, PoolId};

/// An event. Its names are those of PyTorch's `host_traces`, and its sizes are block sizes, as there. `ReserveAlloc`
/// and `PoolErased` do not appear in `host_traces`.
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
    /// A block was allocated.
    Alloc {
        /// The block, as allocated.
        block: PinnedSegment,
    },
    /// A block was freed by its caller.
    FreeRequested {
        /// The block, as it was allocated.
        block: PinnedSegment,
    },
    /// No stream uses the block any more; it is cached, or released to the system.
    FreeCompleted {
        /// The block, as it was allocated.
        block: PinnedSegment,
    },
    /// A block was created.
    SegmentAlloc {
        /// Its address.
        addr: Addr,
        /// Its size, bytes.
        bytes: u64,
        /// Its pool.
        pool: PoolId,
        /// The duration of the driver call, or None if it was carved from the reserve.
        elapsed_us: Option<u64>,
    },
    /// A block was removed.
    SegmentFree {
        /// Its start address.
        addr: Addr,
        /// Its size, bytes.
        bytes: u64,
        /// Its pool.
        pool: PoolId,
        /// The duration of the driver call, or None if it was part of the reserve.
        elapsed_us: Option<u64>,
    },
    /// The reserve was pinned.
    ReserveAlloc {
        /// Its address.
        addr: Addr,
        /// Its size, bytes.
        bytes: u64,
        /// The duration of the driver call.
        elapsed_us: u64,
    },
    /// A pool that no graph uses lost its last block, and was removed.
    PoolErased {
        /// The pool.
        pool: PoolId,
    },
}

/// Receives events. Tuples of observers are observers, `()` ignores events, and a `Vec<PinnedEvent>` stores them.
///
/// ```
/// # use plimsoll_alloc::{PinnedEvent, PinnedObserver, PoolId};
/// let mut story = (Vec::new(), ());
/// story.on(&PinnedEvent::PoolErased { pool: PoolId(1, 0) });
/// assert_eq!(story.0.len(), 1);
/// ```
pub trait PinnedObserver {
    /// Called for each event, in order.
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
