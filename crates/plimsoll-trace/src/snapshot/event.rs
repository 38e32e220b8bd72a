//! One entry of a trace: [`Event`].

use plimsoll_alloc::{Addr, StreamId};

use super::{CategoryId, MaybeU64, PoolIndex, StackId, TextId};

/// The kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A block was allocated; `size` is the requested size.
    Alloc,
    /// The user freed a block.
    FreeRequested,
    /// The block can be reused from now on.
    FreeCompleted,
    /// A segment was allocated on the device.
    SegmentAlloc,
    /// A segment was returned to the device.
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap,
    /// An earlier snapshot was taken; `size` is the active bytes at that time.
    Snapshot,
    /// A request failed; `size` is its rounded size, [`Event::device_free`] the device's free bytes.
    Oom,
    /// The user attached a text to a tensor. The text is in `user_metadata`.
    Annotate,
}

impl Action {
    /// Every action, in the order of the variants.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
        Self::Annotate,
    ];

    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::Annotate => "annotate",
        }
    }
}

/// One entry of a trace, 56 bytes.
///
/// ```
/// # use plimsoll_trace::snapshot::{Action, Event};
/// # use plimsoll_alloc::{Addr, StreamId};
/// let event = Event::new(Action::Alloc, Addr(0x7000), 512, StreamId(0));
/// assert_eq!((event.addr(), event.device_free(), event.stack), (Some(Addr(0x7000)), None, None));
/// assert_eq!(size_of::<Event>(), 56);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The address; for an `oom`, the free bytes of the device.
    place: MaybeU64,
    /// A number of bytes; [`Action`] says which.
    pub size: u64,
    /// The block's stream.
    pub stream: StreamId,
    /// Microseconds since 1970, on a clock that may go backwards: the order of events is their order in the list.
    /// Absent in files from before PyTorch 2.1.
    pub time_us: MaybeU64,
    /// The call stack; `None` if the event has no `frames` key.
    pub stack: Option<StackId>,
    /// The compile context of `torch.compile`.
    pub compile_context: Option<TextId>,
    /// The user's metadata: set globally, or attached to the tensor.
    pub user_metadata: Option<TextId>,
    /// The allocator's own metadata.
    pub internal_metadata: Option<TextId>,
    /// The block's pool; absent in files from before PyTorch 2.12.
    pub pool: Option<PoolIndex>,
    /// The category, if a profiler or our runtime recorded it.
    pub category: Option<CategoryId>,
    /// The kind of event.
    pub action: Action,
}

impl Event {
    /// Makes an event with an address, that is, any event except [`Action::Oom`].
    pub fn new(action: Action, addr: Addr, size: u64, stream: StreamId) -> Self {
        Self { place: addr.0.into(), ..Self::bare(action, size, stream) }
    }

    /// Makes the event of a failed request.
    pub fn oom(size: u64, device_free: Option<u64>, stream: StreamId) -> Self {
        Self { place: device_free.into(), ..Self::bare(Action::Oom, size, stream) }
    }

    fn bare(action: Action, size: u64, stream: StreamId) -> Self {
        Self {
            place: MaybeU64::ABSENT,
            size,
            stream,
            time_us: MaybeU64::ABSENT,
            stack: None,
            compile_context: None,
            user_metadata: None,
            internal_metadata: None,
            pool: None,
            category: None,
            action,
        }
    }

    /// The address; `None` for [`Action::Oom`].
    pub fn addr(&self) -> Option<Addr> {
        if self.action == Action::Oom { None } else { self.place.get().map(Addr) }
    }

    pub(crate) fn set_place(&mut self, place: u64) {
        self.place = place.into();
    }

    /// The bytes that the device had free when the request failed; `None` for all other events.
    pub fn device_free(&self) -> Option<u64> {
        if self.action == Action::Oom { self.place.get() } else { None }
    }
}
