//! The lifetime of every block ([`Life`]): one [`Timeline`] for each device.
//!
//! A trace records changes, and a snapshot's segments are the state after them. Together, they show the state at the
//! beginning of the recording: if a block is freed or live but was never allocated in the trace, it was live when the
//! recording began. `build.rs` applies the events, `before.rs` undoes segment events, and `curve.rs` computes levels.
//! ```
//! use plimsoll_alloc::{Addr, StreamId};
//! use plimsoll_trace::snapshot::{Action, Event, Snapshot};
//! use plimsoll_trace::timeline::Timeline;
//!
//! let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
//! let trace = vec![
//!     event(Action::Alloc, 0x1000, 1000),
//!     event(Action::FreeRequested, 0x4000, 3000), // it was held before the recording
//!     event(Action::FreeCompleted, 0x4000, 3000),
//!     event(Action::FreeRequested, 0x1000, 1000),
//!     event(Action::FreeCompleted, 0x1000, 1000),
//! ];
//! let timeline = Timeline::of(&Snapshot { traces: vec![trace], ..Snapshot::default() }, 0);
//! let held: Vec<_> = timeline.lives.iter().map(|life| (life.addr.0, life.bytes, life.born)).collect();
//! assert_eq!(held[0], (0x4000, 3072, None));
//! assert_eq!((timeline.peak_allocated.level.allocated_bytes, timeline.start.allocated_bytes), (4096, 3072));
//! ```

mod before;
mod build;
mod curve;
mod pools;
mod ring;

use plimsoll_alloc::{Addr, StreamId};

use crate::snapshot::{CategoryId, MaybeU64, PoolIndex, Segment, Snapshot, StackId, TextId};
pub use crate::snapshot::{EventIndex, LifeIndex};
pub use before::Memory;
pub(crate) use before::MemoryMap;
pub use curve::{Level, Moment};
use pools::PoolsBySegment;

/// The lifetime of one block during the recording (64 bytes).
///
/// Events are given by their index in the device's trace. The index after the last event means that the snapshot shows
/// a change for which there is no event, so events were lost or not recorded ([`Quality`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// The block's address.
    pub addr: Addr,
    /// The block's size. It is exact if the snapshot shows the block; otherwise it is the rounded request, and the
    /// block may have been larger.
    pub bytes: u64,
    /// The requested size.
    pub requested_bytes: MaybeU64,
    /// The block's stream.
    pub stream: StreamId,
    /// The block's `alloc` event; `None` if the block was live before the recording.
    pub born: Option<EventIndex>,
    /// The block's `free_requested` event; `None` if the block is live at the end.
    pub freed: Option<EventIndex>,
    /// The block's `free_completed` event; `None` if the block is live at the end or still waits for a stream.
    pub completed: Option<EventIndex>,
    /// The call stack of the block's request, if it was recorded.
    pub stack: Option<StackId>,
    /// The compile context of `torch.compile`.
    pub compile_context: Option<TextId>,
    /// The user's metadata: set globally, or attached to the tensor.
    pub user_metadata: Option<TextId>,
    /// The block's pool.
    pub pool: Option<PoolIndex>,
    /// The category, if recorded.
    pub category: Option<CategoryId>,
}

impl Life {
    /// Whether the block is live after an event; `None` is the moment before the first event.
    pub fn is_held_after(&self, event: Option<EventIndex>) -> bool {
        self.born <= event && self.freed.is_none_or(|freed| Some(freed) > event)
    }
}

/// One device's recording, block by block.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The device's number; [`HOST_DEVICE`](crate::snapshot::HOST_DEVICE) for pinned host memory.
    pub device: i32,
    /// Every block that was ever live: first those from before the recording, in address order, then the others, oldest
    /// first.
    pub lives: Vec<Life>,
    /// Blocks that were freed before the recording and were waiting for a stream when it began, in address order.
    pub waiting_before: Vec<Life>,
    /// The device's memory before the recording, in address order.
    pub memory_before: Vec<Memory>,
    /// Bytes before the first event.
    pub start: Level,
    /// The first moment of the highest allocated bytes.
    pub peak_allocated: Moment,
    /// The first moment of the highest reserved bytes.
    pub peak_reserved: Moment,
    /// How reliable the timeline is.
    pub quality: Quality,
    /// Whether frees have their own stacks (`context="all"`) rather than those of their blocks.
    pub(crate) frees_have_stacks: bool,
    /// For each event, the block's lifetime to which it belongs.
    concerns: Vec<Option<LifeIndex>>,
    /// The indices of segment events that contradict the memory before them. The sums do not include these events.
    strays: Vec<usize>,
    /// The pools of events that do not record them.
    pub(crate) pools: PoolsBySegment,
    /// Lifetimes that ended because of another `alloc` at the block's address, in the order of these events. Their real
    /// ends were not recorded.
    pub(crate) overtaken: Vec<LifeIndex>,
}

/// How reliable a timeline is. If all fields are zero and false, every event is consistent, and no block is older than
/// the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quality {
    /// The number of events.
    pub events: usize,
    /// Blocks that were live before the recording.
    pub held_before: usize,
    /// Blocks that no longer exist although no free was recorded.
    pub lost_frees: usize,
    /// Live blocks without a recorded `alloc`, at an address that was free in the meantime.
    pub lost_allocs: usize,
    /// Frees of addresses that have no live block.
    pub stray_frees: usize,
    /// Segment events that contradict other events.
    pub stray_segments: usize,
    /// Whether events at the beginning were lost: the recording was longer than its ring (`max_entries`). What the lost
    /// events would show, for example a higher peak, is unknown. False if the recording may just have begun late.
    pub is_cut: bool,
    /// Whether there was an earlier recording that was stopped and started again, or cleared: blocks of the earlier
    /// recording are live or freed here, and nothing shows that the ring overflowed.
    pub is_restarted: bool,
}

impl Quality {
    /// The number of contradictions.
    pub fn conflicts(&self) -> usize {
        self.lost_frees + self.lost_allocs + self.stray_frees + self.stray_segments
    }
}

impl Timeline {
    /// The timeline of one device; empty for a device that is not in the snapshot.
    /// [`HOST_DEVICE`](crate::snapshot::HOST_DEVICE) is pinned host memory. Costs a few tens of nanoseconds per
    /// event.
    pub fn of(snapshot: &Snapshot, device: i32) -> Self {
        let segments: Vec<&Segment> = snapshot.segments_of(device).collect();
        build::build(snapshot, device, &segments)
    }

    /// The block's lifetime to which an event belongs; `None` for segment events and for contradictory events.
    pub fn life_of(&self, event: EventIndex) -> Option<LifeIndex> {
        self.concerns.get(event.index()).copied().flatten()
    }

    /// The live blocks after an event, in the order of [`lives`](Self::lives); `None` is the moment before the first
    /// event. Costs a walk over all blocks that were allocated up to this event.
    pub fn held_after(&self, event: Option<EventIndex>) -> impl Iterator<Item = &Life> {
        let born = self.lives.partition_point(|life| life.born <= event);
        self.lives[..born].iter().filter(move |life| life.is_held_after(event))
    }

    /// The live blocks at the end, in the order of [`lives`](Self::lives).
    pub fn held_at_end(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(|life| life.freed.is_none())
    }

    /// The index of the last event; `None` if there are no events.
    pub fn last(&self) -> Option<EventIndex> {
        self.quality.events.checked_sub(1).and_then(EventIndex::new)
    }
}
