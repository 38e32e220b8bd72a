//! How the device's bytes are used at one moment: [`Ledger`], whose rows add up exactly.
//!
//! device total = outside the allocator + free + reserved; reserved = requested + rounding + waiting + cached. A
//! snapshot contains only one figure of the device itself: the free bytes when a request failed. Unknown figures are
//! `None`; the other rows still add up.

use super::cached::{CachedBytes, Releasing};
use super::state::{AllocatorState, Use};
use crate::snapshot::{Action, Event, EventIndex, Snapshot};
use crate::timeline::Timeline;

/// The bytes of one device at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// The last event that this state includes. `None` stands for the state before the first event, and the index after
    /// the last event for the snapshot itself.
    pub after: Option<EventIndex>,
    /// The device's memory outside the allocator.
    pub device: DeviceBytes,
    /// Memory that the allocator has from the device: the sum of the following fields, up to `cached`.
    pub reserved: u64,
    /// The requested bytes of live blocks.
    pub requested: u64,
    /// The bytes that these blocks have in addition to the requested bytes.
    pub rounding: u64,
    /// Live blocks whose requested size is not recorded.
    pub unsplit: u64,
    /// Freed blocks that wait for a stream.
    pub waiting: u64,
    /// Bytes after blocks whose size is not recorded: they either belong to the block before them or are cached
    /// ([`Use::Uncut`]).
    pub uncut: u64,
    /// Bytes that are in no block.
    pub cached: CachedBytes,
    /// Live blocks that are in no recorded segment, and so not in `reserved`.
    pub unplaced: u64,
    /// Freed blocks that are in no recorded segment, and wait for a stream.
    pub unplaced_waiting: u64,
}

/// The device's memory outside the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceBytes {
    /// The device's total memory, as given by the caller.
    pub total: Option<u64>,
    /// Memory that is not reserved: `free` plus `outside`. `None` if the total is unknown.
    pub rest: Option<u64>,
    /// Free memory of the device: as recorded by a request that failed at this moment, or computed from `outside`.
    pub free: Option<u64>,
    /// Memory that is neither free nor reserved: the CUDA context, kernels, other libraries and processes.
    pub outside: Option<u64>,
    /// The failed request from which `outside` is computed. If no request failed at this moment, this request failed at
    /// another moment, and `outside` is assumed to be the same at both moments.
    pub measured_at: Option<EventIndex>,
}

/// A row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The part of the memory.
    pub part: Part,
    /// The bytes of the part; `None` if they are unknown.
    pub bytes: Option<u64>,
}

/// A part of the device's memory, in the order of the rows: a sum, then its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// [`DeviceBytes::total`].
    Total,
    /// [`DeviceBytes::outside`].
    Outside,
    /// [`DeviceBytes::free`].
    Free,
    /// [`Ledger::reserved`].
    Reserved,
    /// [`Ledger::requested`].
    Requested,
    /// [`Ledger::rounding`].
    Rounding,
    /// [`Ledger::unsplit`].
    Unsplit,
    /// [`Ledger::waiting`].
    Waiting,
    /// [`Ledger::uncut`].
    Uncut,
    /// [`CachedBytes::reusable`].
    Reusable,
    /// [`CachedBytes::private`].
    Private,
    /// [`CachedBytes::pinned`].
    Pinned,
    /// [`Ledger::unplaced`].
    Unplaced,
}

impl Part {
    /// The name of the part.
    pub fn name(self) -> &'static str {
        match self {
            Self::Total => "device total",
            Self::Outside => "outside the allocator",
            Self::Free => "free on the device",
            Self::Reserved => "reserved",
            Self::Requested => "live, as requested",
            Self::Rounding => "rounding of live blocks",
            Self::Unsplit => "live, request not recorded",
            Self::Waiting => "freed, waiting for a stream",
            Self::Uncut => "end of a block, or cached",
            Self::Reusable => "cached, reusable",
            Self::Private => "cached, private pools",
            Self::Pinned => "cached, pinned by live blocks",
            Self::Unplaced => "live, in no recorded segment",
        }
    }

    /// Where PyTorch reports the same figure: a function of `torch.cuda`, or a key of its `memory_stats()`.
    pub fn pytorch(self) -> &'static str {
        match self {
            Self::Total => "mem_get_info()[1]",
            Self::Outside => "mem_get_info()[1] - mem_get_info()[0] - memory_reserved()",
            Self::Free => "mem_get_info()[0], device_free",
            Self::Reserved => "memory_reserved()",
            Self::Requested => "requested_bytes.all.current (which also counts waiting blocks)",
            Self::Rounding => "memory_allocated() - requested_bytes.all.current",
            Self::Unsplit => "memory_allocated()",
            Self::Waiting => "active_bytes.all.current - memory_allocated()",
            Self::Reusable => {
                "memory_reserved() - active_bytes.all.current - inactive_split_bytes.all.current"
            }
            Self::Private => "segments with a segment_pool_id other than (0, 0)",
            Self::Pinned => "inactive_split_bytes.all.current (0 for expandable segments)",
            Self::Uncut => "the block's size is not recorded",
            Self::Unplaced => "in memory_allocated(); the recording contradicts itself or lacks segments",
        }
    }

    /// The part that includes this part.
    pub fn within(self) -> Option<Self> {
        match self {
            Self::Total | Self::Unplaced => None,
            Self::Outside | Self::Free | Self::Reserved => Some(Self::Total),
            _ => Some(Self::Reserved),
        }
    }
}

impl Ledger {
    /// The ledger of a device after an event. `device_total` is the device's total memory, if known.
    pub fn of(
        snapshot: &Snapshot,
        timeline: &Timeline,
        after: Option<EventIndex>,
        device_total: Option<u64>,
    ) -> Self {
        let trace = snapshot.trace(timeline.device);
        let state = AllocatorState::of(timeline, trace, after);
        let mut ledger = Self::of_state(snapshot, timeline, &state);
        ledger.device = DeviceBytes::of(timeline, trace, after, ledger.reserved, device_total);
        ledger
    }

    /// The ledger of a state, without the device's own figures.
    fn of_state(snapshot: &Snapshot, timeline: &Timeline, state: &AllocatorState) -> Self {
        let releasing = Releasing::of(snapshot);
        let cached = state.segments.iter().map(|segment| releasing.cached(state, segment));
        let mut ledger = Self {
            after: state.after,
            device: DeviceBytes::default(),
            reserved: state.reserved_bytes(),
            requested: 0,
            rounding: 0,
            unsplit: 0,
            waiting: 0,
            uncut: 0,
            cached: cached.fold(CachedBytes::default(), CachedBytes::plus),
            unplaced: state.unplaced_bytes().live,
            unplaced_waiting: state.unplaced_bytes().waiting,
        };
        for piece in state.pieces() {
            let (part, bytes) = match piece.usage {
                Use::Live(life) => match timeline.lives[life.index()].requested_bytes.get() {
                    Some(requested) => {
                        let requested = requested.min(piece.bytes);
                        ledger.requested = ledger.requested.saturating_add(requested);
                        (Part::Rounding, piece.bytes - requested)
                    }
                    None => (Part::Unsplit, piece.bytes),
                },
                Use::Waiting(_) => (Part::Waiting, piece.bytes),
                Use::Uncut => (Part::Uncut, piece.bytes),
                Use::Cached => continue,
            };
            let sum = match part {
                Part::Waiting => &mut ledger.waiting,
                Part::Unsplit => &mut ledger.unsplit,
                Part::Uncut => &mut ledger.uncut,
                _ => &mut ledger.rounding,
            };
            *sum = sum.saturating_add(bytes);
        }
        ledger
    }

    /// The bytes of live blocks. In PyTorch: `memory_allocated`.
    pub fn allocated(&self) -> u64 {
        let parts = [self.requested, self.rounding, self.unsplit, self.unplaced];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Every row, in order, including those of 0 bytes.
    pub fn rows(&self) -> Vec<Row> {
        let known = [
            (Part::Reserved, self.reserved),
            (Part::Requested, self.requested),
            (Part::Rounding, self.rounding),
            (Part::Unsplit, self.unsplit),
            (Part::Waiting, self.waiting),
            (Part::Uncut, self.uncut),
            (Part::Reusable, self.cached.reusable),
            (Part::Private, self.cached.private),
            (Part::Pinned, self.cached.pinned),
            (Part::Unplaced, self.unplaced),
        ];
        let device = [
            (Part::Total, self.device.total),
            (Part::Outside, self.device.outside),
            (Part::Free, self.device.free),
        ];
        let known = known.map(|(part, bytes)| (part, Some(bytes)));
        device.into_iter().chain(known).map(|(part, bytes)| Row { part, bytes }).collect()
    }
}

impl DeviceBytes {
    fn of(
        timeline: &Timeline,
        trace: &[Event],
        after: Option<EventIndex>,
        reserved: u64,
        total: Option<u64>,
    ) -> Self {
        let total = total.filter(|&total| total >= reserved);
        let rest = total.map(|total| total - reserved);
        // The failed request at this moment, or else the last failed request before it, or else the first failed
        // request after it.
        let here = after.map_or(0, |event| event.index() + 1).min(trace.len());
        let (before, behind) = trace.split_at(here);
        let has_free = |event: &Event| event.action == Action::Oom && event.device_free().is_some();
        let place = before.iter().rposition(has_free);
        let place = place.or_else(|| behind.iter().position(has_free).map(|nth| here + nth));
        let measured_at = place.and_then(EventIndex::new);
        let free = place.and_then(|place| trace[place].device_free());
        if measured_at == after {
            let outside = rest.zip(free).and_then(|(rest, free)| rest.checked_sub(free));
            return Self { total, rest, free, outside, measured_at };
        }
        let reserved_then = place.and_then(|place| timeline.curve(trace).nth(place));
        let outside = total.zip(reserved_then).zip(free).and_then(|((total, then), free)| {
            total.checked_sub(then.level.reserved_bytes)?.checked_sub(free)
        });
        let free = rest.zip(outside).and_then(|(rest, outside)| rest.checked_sub(outside));
        let (outside, measured_at) =
            (outside.filter(|_| free.is_some()), measured_at.filter(|_| free.is_some()));
        Self { total, rest, free, outside, measured_at }
    }
}
