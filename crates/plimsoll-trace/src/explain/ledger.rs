//! Where the device's bytes are at one moment: [`Ledger`], whose rows close exactly.
//!
//! device total = outside the allocator + free + reserved; reserved = requested + rounding + waiting + cached.
//! A snapshot tells nothing of the device but what it had free when a request failed; what is not known is
//! `None`, and the rows around it still close as far as they are known.

use super::cached::{CachedBytes, Releasing};
use super::state::{AllocatorState, Use};
use crate::snapshot::{Action, Event, EventIndex, Snapshot};
use crate::timeline::Timeline;

/// The bytes of one device at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// The moment; `None` is before the first event, one past the last the snapshot itself.
    pub after: Option<EventIndex>,
    /// The device around the allocator.
    pub device: DeviceBytes,
    /// Of the device, by the allocator: the sum of all that follow up to `cached`.
    pub reserved: u64,
    /// What the holders of blocks asked for.
    pub requested: u64,
    /// What their blocks have beyond that.
    pub rounding: u64,
    /// Blocks that are held, of which the recording does not say what was asked for.
    pub unsplit: u64,
    /// Blocks that were let go and wait for a stream.
    pub waiting: u64,
    /// In no block.
    pub cached: CachedBytes,
    /// Blocks, held or waiting, in no memory that the recording tells of: not in `reserved`.
    pub unplaced: u64,
}

/// The device around the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceBytes {
    /// All that the device has, as the caller says.
    pub total: Option<u64>,
    /// What is not reserved: the two below. Known where the total is.
    pub rest: Option<u64>,
    /// What nobody has: told by a request that failed at this moment, or what `outside` leaves.
    pub free: Option<u64>,
    /// What is neither free nor reserved: the context, kernels, other libraries and processes.
    pub outside: Option<u64>,
    /// The failed request at which `outside` was measured: another moment's if nothing failed at this one. It
    /// is taken to have been the same.
    pub measured_at: Option<EventIndex>,
}

/// A row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Which.
    pub part: Part,
    /// How many; `None` if that cannot be known.
    pub bytes: Option<u64>,
}

/// Which row. The order is that of reading: a sum, then its parts.
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
    /// [`CachedBytes::reusable`].
    Reusable,
    /// [`CachedBytes::private`].
    Private,
    /// [`CachedBytes::pinned`].
    Pinned,
}

impl Part {
    /// In words.
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
            Self::Reusable => "cached, reusable",
            Self::Private => "cached, private pools",
            Self::Pinned => "cached, pinned by live blocks",
        }
    }

    /// What gives the same in PyTorch: a function of `torch.cuda`, or a key of its `memory_stats()`.
    pub fn pytorch(self) -> &'static str {
        match self {
            Self::Total => "mem_get_info()[1]",
            Self::Outside => "mem_get_info()[1] - mem_get_info()[0] - memory_reserved()",
            Self::Free => "mem_get_info()[0], device_free",
            Self::Reserved => "memory_reserved()",
            Self::Requested => "requested_bytes.all.current (which counts waiting blocks, too)",
            Self::Rounding => "memory_allocated() - requested_bytes.all.current",
            Self::Unsplit => "memory_allocated()",
            Self::Waiting => "active_bytes.all.current - memory_allocated()",
            Self::Reusable => {
                "memory_reserved() - active_bytes.all.current - inactive_split_bytes.all.current"
            }
            Self::Private => "segments with a segment_pool_id other than (0, 0)",
            Self::Pinned => "inactive_split_bytes.all.current (0 for expandable segments)",
        }
    }

    /// The row that it is a part of.
    pub fn within(self) -> Option<Self> {
        match self {
            Self::Total => None,
            Self::Outside | Self::Free | Self::Reserved => Some(Self::Total),
            _ => Some(Self::Reserved),
        }
    }
}

impl Ledger {
    /// The ledger of a device after an event. `device_total` is what the whole device has, where that is known.
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

    /// The ledger of a state, of which the device is not known.
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
            cached: cached.fold(CachedBytes::default(), CachedBytes::plus),
            unplaced: state.unplaced_bytes().sum(),
        };
        let mut last = Part::Rounding;
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
                Use::Uncut => (last, piece.bytes), // it counts as its block does
                Use::Cached => continue,
            };
            let sum = match part {
                Part::Waiting => &mut ledger.waiting,
                Part::Unsplit => &mut ledger.unsplit,
                _ => &mut ledger.rounding,
            };
            *sum = sum.saturating_add(bytes);
            last = part;
        }
        ledger
    }

    /// What blocks that are held take. As PyTorch: `memory_allocated`.
    pub fn allocated(&self) -> u64 {
        self.requested.saturating_add(self.rounding).saturating_add(self.unsplit)
    }

    /// Every row, in order; what is 0 because it does not occur is there, too.
    pub fn rows(&self) -> Vec<Row> {
        let known = [
            (Part::Reserved, self.reserved),
            (Part::Requested, self.requested),
            (Part::Rounding, self.rounding),
            (Part::Unsplit, self.unsplit),
            (Part::Waiting, self.waiting),
            (Part::Reusable, self.cached.reusable),
            (Part::Private, self.cached.private),
            (Part::Pinned, self.cached.pinned),
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
        // The failed request at this moment, else the last before, else the first behind.
        let here = after.map_or(0, |event| event.index() + 1).min(trace.len());
        let (before, behind) = trace.split_at(here);
        let is_told = |event: &Event| event.action == Action::Oom && event.device_free().is_some();
        let place = before.iter().rposition(is_told);
        let place = place.or_else(|| behind.iter().position(is_told).map(|nth| here + nth));
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
