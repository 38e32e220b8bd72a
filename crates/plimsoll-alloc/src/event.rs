//! What happened, for those who count or write it down: [`Event`] and the [`Observer`] seam.
//!
//! The core announces and does not count. Each event carries all that PyTorch's statistics need
//! (`stats.rs`), so that an observer never has to ask back. An observer cannot call the allocator.

use crate::pool::PoolKind;
use crate::request::{Addr, PoolId, StackId, StreamId, Tag};

/// One thing that the allocator did. `Free` and `FreeCompleted` are PyTorch's `free_requested` and
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
    /// A block was given to a caller.
    Alloc {
        /// The block, as given.
        block: LiveBlock,
        /// What cutting or using up a piece did to the cached pieces.
        inactive_split: SplitChange,
        /// Whether the block is beyond `max_split_size`.
        oversize: bool,
    },
    /// A caller gave a block back.
    Free {
        /// The block, as it was held.
        block: LiveBlock,
        /// Whether the block is beyond `max_split_size` now.
        oversize: bool,
    },
    /// A block that was given back, and that no stream uses any more, is in the cache, merged with its neighbours.
    FreeCompleted {
        /// The block, as it was held.
        block: LiveBlock,
        /// What the new piece and the merged ones did to the cached pieces.
        inactive_split: SplitChange,
        /// Whether it was given back just now, rather than before it waited for other streams.
        at_once: bool,
    },
    /// A live block is now for something else.
    Retag {
        /// The block, with its new tag.
        block: LiveBlock,
        /// What it was for.
        from: Tag,
    },
    /// The device gave a segment.
    SegmentAlloc {
        /// What it gave.
        memory: DeviceRange,
        /// Whether the segment is beyond `max_split_size`.
        oversize: bool,
        /// Who asked.
        stack: Option<StackId>,
    },
    /// A segment went back to the device.
    SegmentFree {
        /// What went back.
        memory: DeviceRange,
        /// Whether the segment is beyond `max_split_size` now.
        oversize: bool,
    },
    /// The device put memory behind a part of an expandable segment.
    SegmentMap {
        /// Where, and how much.
        memory: DeviceRange,
        /// Who asked.
        stack: Option<StackId>,
    },
    /// The device took the memory behind a part of an expandable segment back.
    SegmentUnmap {
        /// Where, and how much.
        memory: DeviceRange,
    },
    /// The cache is about to be released, which waits for all streams first.
    SyncAllStreams,
    /// After a release, the device is about to be asked again.
    Retry {
        /// What it is asked for, bytes.
        segment_bytes: u64,
    },
    /// A request was refused without a try, because it would pass `per_process_memory_fraction`.
    Rejected {
        /// What the device would have been asked for, bytes.
        segment_bytes: u64,
    },
    /// A picture of the state was taken.
    Snapshot {
        /// Bytes in blocks not in the cache.
        active_bytes: u64,
    },
    /// The program says that a step begins.
    StepMark {
        /// The step's number.
        number: u64,
    },
    /// A request failed for want of memory.
    OutOfMemory {
        /// What the caller asked for, bytes.
        requested_bytes: u64,
        /// The block that this needs, bytes.
        rounded_bytes: u64,
        /// What the device was asked for, bytes.
        segment_bytes: u64,
        /// The stream of the request.
        stream: StreamId,
        /// The pool of the request.
        pool_id: PoolId,
        /// What the bytes were to be for.
        tag: Tag,
        /// Who asked.
        stack: Option<StackId>,
        /// What the device had free, bytes.
        device_free_bytes: u64,
    },
}

/// A block that a caller holds, or gave back last.
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
    /// Where it starts.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// What its holder asked for, bytes.
    pub requested_bytes: u64,
    /// The stream that it serves.
    pub stream: StreamId,
    /// The half of the pool that it is from.
    pub pool: PoolKind,
    /// The pool that it is from.
    pub pool_id: PoolId,
    /// What it is for.
    pub tag: Tag,
    /// Who asked for it.
    pub stack: Option<StackId>,
}

/// Memory that the device gave or took back: a segment, or pages of an expandable one.
///
/// ```
/// # use plimsoll_alloc::{Addr, DeviceRange, PoolId, PoolKind, StreamId};
/// let (addr, stream) = (Addr(0x5000_0000_0000), StreamId(0));
/// let memory = DeviceRange { addr, bytes: 2 << 20, stream, pool: PoolKind::Small, pool_id: PoolId::DEFAULT };
/// assert_eq!(memory.bytes, 2 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRange {
    /// Where it starts.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// The stream that it serves.
    pub stream: StreamId,
    /// The half of the pool that it serves.
    pub pool: PoolKind,
    /// The pool that it serves.
    pub pool_id: PoolId,
}

/// The net change that one step made to the cached pieces of split segments (PyTorch's `inactive_split`):
/// memory that is free here but cannot be returned to the device. Net, because PyTorch applies it as one
/// increase or one decrease, which its accumulated statistics show.
///
/// ```
/// # use plimsoll_alloc::SplitChange;
/// let merged_two_neighbours = SplitChange { blocks: -1, bytes: 4096 };
/// assert_ne!(merged_two_neighbours, SplitChange::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitChange {
    /// More (or fewer) pieces.
    pub blocks: i64,
    /// More (or fewer) bytes in them.
    pub bytes: i64,
}

/// Who listens. Tuples compose, `()` hears nothing, and a `Vec<Event>` keeps the whole story.
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
    /// Takes note. Called after the state has changed, in the order of what happened.
    fn on(&mut self, event: &Event);
}

impl Observer for () {
    fn on(&mut self, _: &Event) {}
}

impl<A: Observer, B: Observer, C: Observer> Observer for (A, B, C) {
    #[inline(always)] // as for two
    fn on(&mut self, event: &Event) {
        self.0.on(event);
        self.1.on(event);
        self.2.on(event);
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    #[inline(always)] // it is a call to each, and no work of its own
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
