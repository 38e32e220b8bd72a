//! Allocator events: [`Event`], and the [`Observer`] trait that receives them.
//!
//! The core sends events and keeps no statistics. Each event carries everything that PyTorch's statistics need
//! (`stats.rs`), so an observer needs no other input. An observer cannot call the allocator.

use crate::request::{Addr, PoolId, StackId, StreamId, Tag};
use crate::size::PoolKind;

/// An event. `Free` and `FreeCompleted` are PyTorch's `free_requested` and
/// `free_completed`.
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, Event, Request, SimDriver};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Vec::new());
/// let x = allocator.malloc(Request::of(3 << 20))?;
/// let [Event::SegmentAlloc { memory, .. }, Event::Alloc { block, .. }] = allocator.observer()[..] else {
///     panic!("a first request makes a segment");
/// };
/// assert_eq!((memory.bytes, block.addr), (20 << 20, x.addr()));
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A block was allocated.
    Alloc {
        /// The block, as allocated.
        block: LiveBlock,
        /// The change in cached pieces of split segments.
        inactive_split: SplitChange,
        /// Whether the block is at least `max_split_size`.
        oversize: bool,
    },
    /// A block was freed by its caller.
    Free {
        /// The block, as it was allocated.
        block: LiveBlock,
        /// Whether the block is at least `max_split_size` now.
        oversize: bool,
    },
    /// The free of a block completed: no stream uses it any more, and it is cached, merged with its neighbours.
    FreeCompleted {
        /// The block, as it was allocated.
        block: LiveBlock,
        /// The change in cached pieces of split segments.
        inactive_split: SplitChange,
        /// Whether the free completed immediately, without waiting for other streams.
        at_once: bool,
    },
    /// A live block got a new tag.
    Retag {
        /// The block, with its new tag.
        block: LiveBlock,
        /// The old tag.
        from: Tag,
    },
    /// A segment was allocated on the device.
    SegmentAlloc {
        /// The segment.
        memory: DeviceRange,
        /// Whether the segment is at least `max_split_size`.
        oversize: bool,
        /// The stack of the request.
        stack: Option<StackId>,
    },
    /// A segment was freed on the device.
    SegmentFree {
        /// The segment.
        memory: DeviceRange,
        /// Whether the segment is at least `max_split_size` now.
        oversize: bool,
    },
    /// Pages of an expandable segment were mapped.
    SegmentMap {
        /// The range.
        memory: DeviceRange,
        /// The stack of the request.
        stack: Option<StackId>,
    },
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap {
        /// The range.
        memory: DeviceRange,
    },
    /// The cache is about to be released, after waiting for all streams.
    SyncAllStreams,
    /// The device allocation is about to be retried after a release of the cache.
    Retry {
        /// The segment's size, bytes.
        segment_bytes: u64,
    },
    /// A request was rejected because it would exceed `per_process_memory_fraction`.
    Rejected {
        /// The size of the segment that was needed, bytes.
        segment_bytes: u64,
    },
    /// A snapshot of the state was taken.
    Snapshot {
        /// Bytes in blocks that are not cached.
        active_bytes: u64,
    },
    /// A step of the program begins.
    StepMark {
        /// The step's number.
        number: u64,
    },
    /// A request failed: out of memory.
    OutOfMemory {
        /// The requested size, bytes.
        requested_bytes: u64,
        /// The request rounded up to a block, bytes.
        rounded_bytes: u64,
        /// The size of the segment that was needed, bytes.
        segment_bytes: u64,
        /// The stream of the request.
        stream: StreamId,
        /// The pool of the request.
        pool_id: PoolId,
        /// The tag of the request.
        tag: Tag,
        /// The stack of the request.
        stack: Option<StackId>,
        /// Free memory of the device, bytes.
        device_free_bytes: u64,
    },
}

/// An allocated block, or one that was just freed.
///
/// ```
/// # use plimsoll_alloc::{Allocator, Config, Event, PoolId, PoolKind, Request, SimDriver};
/// # let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Vec::new());
/// let x = allocator.malloc(Request::of(1000))?;
/// let Some(Event::Alloc { block, .. }) = allocator.observer().last() else { panic!("it was the last") };
/// assert_eq!((block.bytes - block.requested_bytes, block.pool), (24, PoolKind::Small));
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveBlock {
    /// Its address.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// The requested size, bytes.
    pub requested_bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Small or large.
    pub pool: PoolKind,
    /// The pool.
    pub pool_id: PoolId,
    /// Its category and label.
    pub tag: Tag,
    /// The stack of the request.
    pub stack: Option<StackId>,
}

/// Memory that was allocated or freed on the device: a segment, or pages of an expandable one.
///
/// ```
/// # use plimsoll_alloc::{Addr, DeviceRange, PoolId, PoolKind, StreamId};
/// let (addr, stream) = (Addr(0x5000_0000_0000), StreamId(0));
/// let memory = DeviceRange { addr, bytes: 2 << 20, stream, pool: PoolKind::Small, pool_id: PoolId::DEFAULT };
/// assert_eq!(memory.bytes, 2 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRange {
    /// Its address.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Small or large.
    pub pool: PoolKind,
    /// The pool.
    pub pool_id: PoolId,
}

/// The net change of one operation in the cached pieces of split segments (PyTorch's `inactive_split`): memory that is
/// free here but cannot be returned to the device. It is a net change because PyTorch applies it as one increase or one
/// decrease, which its accumulated statistics show.
///
/// ```
/// # use plimsoll_alloc::SplitChange;
/// let merged_two_neighbours = SplitChange { blocks: -1, bytes: 4096 };
/// assert_ne!(merged_two_neighbours, SplitChange::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitChange {
    /// Change in the number of pieces.
    pub blocks: i64,
    /// Change in their bytes.
    pub bytes: i64,
}

/// Receives events. Tuples of observers are observers, `()` ignores events, and a `Vec<Event>` stores them.
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, Event, Observer, Request, SimDriver};
///
/// #[derive(Default)]
/// struct Largest(u64);
/// impl Observer for Largest {
///     fn on(&mut self, event: &Event) {
///         if let Event::Alloc { block, .. } = event {
///             self.0 = self.0.max(block.bytes);
///         }
///     }
/// }
/// let driver = SimDriver::with_capacity(64 << 20);
/// let mut allocator = Allocator::new(Config::default(), driver, (Largest::default(), Vec::new()));
/// let x = allocator.malloc(Request::of(100))?;
/// allocator.free(x);
/// assert_eq!((allocator.observer().0.0, allocator.observer().1.len()), (512, 4));
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
pub trait Observer {
    /// Called after each change of state, in order.
    fn on(&mut self, event: &Event);
}

impl Observer for () {
    fn on(&mut self, _: &Event) {}
}

impl<A: Observer, B: Observer, C: Observer> Observer for (A, B, C) {
    #[inline(always)] // as for two observers, below
    fn on(&mut self, event: &Event) {
        self.0.on(event);
        self.1.on(event);
        self.2.on(event);
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    #[inline(always)] // it only forwards the call
    fn on(&mut self, event: &Event) {
        self.0.on(event);
        self.1.on(event);
    }
}

impl Observer for Vec<Event> {
    fn on(&mut self, event: &Event) {
        self.push(*event);
    }
}
