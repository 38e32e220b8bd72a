//! Who held which block, and when: [`Timeline`], one for each device.
//!
//! A trace tells of changes, a snapshot's segments of the state after them. Together they tell the state before
//! them: what is freed and was never handed out, and what is held and was never handed out, was held when the
//! recording began. `build.rs` follows the events, `before.rs` undoes those about memory of the device,
//! `curve.rs` sums.
//!
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

use plimsoll_alloc::{Addr, StreamId};

use crate::snapshot::{CategoryId, MaybeU64, PoolIndex, Segment, Snapshot, StackId, TextId};
pub use crate::snapshot::{EventIndex, LifeIndex};
pub use before::Memory;
pub(crate) use before::MemoryMap;
pub use curve::{Level, Moment};
use pools::PoolsBySegment;

/// One block that somebody held during the recording, 64 bytes.
///
/// Events are named by their place in the device's trace; one past the last means that the snapshot shows
/// something that no event tells, so that events were lost or not recorded ([`Quality`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Where the block begins.
    pub addr: Addr,
    /// The block's size. Exact where the snapshot shows the block; else the request as it is rounded, which
    /// a larger block may have served.
    pub bytes: u64,
    /// What was asked for.
    pub requested_bytes: MaybeU64,
    /// The stream that the block belongs to.
    pub stream: StreamId,
    /// Its `alloc`; `None` if it was held before the recording.
    pub born: Option<EventIndex>,
    /// Its `free_requested`; `None` if it is held at the end.
    pub freed: Option<EventIndex>,
    /// Its `free_completed`; `None` if it is held at the end or still waits for a stream.
    pub completed: Option<EventIndex>,
    /// Where in the program it was asked for, where that was recorded.
    pub stack: Option<StackId>,
    /// What `torch.compile` was at.
    pub compile_context: Option<TextId>,
    /// What the user had set, or tied to the tensor.
    pub user_metadata: Option<TextId>,
    /// The block's pool.
    pub pool: Option<PoolIndex>,
    /// What the bytes are for, where that was recorded.
    pub category: Option<CategoryId>,
}

impl Life {
    /// Whether the block is held after an event; `None` is the moment before the first.
    pub fn is_held_after(&self, event: Option<EventIndex>) -> bool {
        self.born <= event && self.freed.is_none_or(|freed| Some(freed) > event)
    }
}

/// What one device's recording tells, block by block.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The device's number; [`HOST_DEVICE`](crate::snapshot::HOST_DEVICE) for pinned host memory.
    pub device: i32,
    /// Every block that was held: those from before the recording first, by address, then by birth.
    pub lives: Vec<Life>,
    /// Blocks that were let go before the recording, and waited for a stream as it began, by address.
    pub waiting_before: Vec<Life>,
    /// The device's memory before the recording, by address.
    pub memory_before: Vec<Memory>,
    /// Bytes before the first event.
    pub start: Level,
    /// When the most was allocated: the first such moment.
    pub peak_allocated: Moment,
    /// When the most was reserved: the first such moment.
    pub peak_reserved: Moment,
    /// How far all that can be relied on.
    pub quality: Quality,
    /// The life that each event is about.
    concerns: Vec<Option<LifeIndex>>,
    /// The pools of events that do not tell them.
    pub(crate) pools: PoolsBySegment,
    /// Lives that an `alloc` at their place ends, by its event: their own end was not recorded.
    pub(crate) overtaken: Vec<LifeIndex>,
}

/// How far a timeline can be relied on. All zero and false: every event fits, and nothing is from before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quality {
    /// Events of the trace.
    pub events: usize,
    /// Blocks that were held before the recording.
    pub held_before: usize,
    /// Blocks handed out of which the end was not recorded, though they are gone.
    pub lost_frees: usize,
    /// Blocks that came and were held without a record of how, though the place was free in between.
    pub lost_allocs: usize,
    /// Frees of what nobody held.
    pub stray_frees: usize,
    /// Segments or pages that came or went in a way that does not fit the rest.
    pub stray_segments: usize,
    /// Whether events at the beginning were certainly lost: the recording was longer than its ring
    /// (`max_entries`). What happened then, a higher peak for one, cannot be known. False where only the
    /// recording may have begun late, which nothing tells from a ring that ran over.
    pub is_cut: bool,
}

impl Quality {
    /// Everything that does not fit.
    pub fn conflicts(&self) -> usize {
        self.lost_frees + self.lost_allocs + self.stray_frees + self.stray_segments
    }
}

impl Timeline {
    /// The timeline of one device; empty for a number that the snapshot does not know.
    /// [`HOST_DEVICE`](crate::snapshot::HOST_DEVICE) is pinned host memory. Costs some tens of nanoseconds an event.
    pub fn of(snapshot: &Snapshot, device: i32) -> Self {
        let segments: Vec<&Segment> = snapshot.segments_of(device).collect();
        build::build(snapshot, device, &segments)
    }

    /// The life that an event is about: none for those about segments, and for strays.
    pub fn life_of(&self, event: EventIndex) -> Option<LifeIndex> {
        self.concerns.get(event.index()).copied().flatten()
    }

    /// What is held after an event, in the order of [`lives`](Self::lives); `None` is the moment before the
    /// first. Costs a walk over all lives born until then.
    pub fn held_after(&self, event: Option<EventIndex>) -> impl Iterator<Item = &Life> {
        let born = self.lives.partition_point(|life| life.born <= event);
        self.lives[..born].iter().filter(move |life| life.is_held_after(event))
    }

    /// What is held at the end, in the order of [`lives`](Self::lives).
    pub fn held_at_end(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(|life| life.freed.is_none())
    }

    /// The moment after the last event; `None` if there is none.
    pub fn last(&self) -> Option<EventIndex> {
        self.quality.events.checked_sub(1).and_then(EventIndex::new)
    }
}
