//! Requests that failed because memory ran out: [`Failure`], from the trace's `oom` events and the levels at these events.
//!
//! PyTorch records the device's free memory at a failure, but not the process's limit
//! (`set_per_process_memory_fraction`). If the device had room for the segment, then a limit of the process rejected
//! the request, not the device. The levels show the bounds of this limit.

use plimsoll_alloc::{Config, StreamId};

use crate::snapshot::{Action, EventIndex, Setting, Snapshot, StackId};
use crate::timeline::{Level, Timeline};

/// A request that failed, and the state of memory when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The `oom` event of the request.
    pub at: EventIndex,
    /// The size of the block that the request needed, in bytes.
    pub asked_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The stack of the request.
    pub stack: Option<StackId>,
    /// The level at the failure. The allocator had already released everything that it could, so another `empty_cache`
    /// would not help.
    pub level: Level,
    /// The device's free memory at the failure; `None` if it is not recorded.
    pub device_free_bytes: Option<u64>,
    /// The size of the segment that the device would have had to allocate, bytes.
    pub segment_bytes: u64,
    /// The process's limit, if a limit rejected the request.
    pub limit: Option<Limit>,
    /// Whether less memory was available than on any GPU that PyTorch supports, so that other processes must be using
    /// the rest. Set only for recordings of PyTorch, and only without a [`Limit`].
    pub is_shared: bool,
    /// The number of failed requests, including this one.
    pub failures: usize,
}

/// Every GPU that PyTorch supports has more memory than this.
const LEAST_DEVICE_BYTES: u64 = 3 << 30;

/// The bounds of the process's limit on reserved memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The limit is at least this, because this many bytes were reserved.
    pub at_least_bytes: u64,
    /// The limit is less than this, because a request with which this many bytes would have been reserved was rejected.
    /// If the recording contains the limit itself, this is `at_least_bytes` plus one.
    pub below_bytes: u64,
}

/// Why a request was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Live memory plus the request exceed the capacity, regardless of the placement of blocks.
    Capacity {
        /// The missing bytes; an upper bound if the [`Limit`] is not exact.
        short_bytes: u64,
    },
    /// The request would fit if free memory were contiguous.
    Fragmentation {
        /// The bytes that would be left over; a lower bound if the [`Limit`] is not exact.
        spare_bytes: u64,
    },
    /// A limit of the process rejected the request, and its bounds do not show which of the two causes applies.
    Limit {
        /// The bytes that would be missing even if free memory were contiguous, an upper bound.
        short_bytes: u64,
    },
    /// The device's free memory is not recorded.
    Unknown,
}

impl Cause {
    /// The cause in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Capacity { .. } => "capacity",
            Self::Fragmentation { .. } => "fragmentation",
            Self::Limit { .. } => "limit",
            Self::Unknown => "unknown",
        }
    }

    /// The missing bytes, or an upper bound under a [`Limit`]; `None` if none are missing, or if this is unknown.
    pub fn short_bytes(self) -> Option<u64> {
        match self {
            Self::Capacity { short_bytes } | Self::Limit { short_bytes } => Some(short_bytes),
            Self::Fragmentation { .. } | Self::Unknown => None,
        }
    }

    /// The bytes that would be left over if free memory were contiguous; `None` if memory would not suffice, or if this
    /// is unknown.
    pub fn spare_bytes(self) -> Option<u64> {
        match self {
            Self::Fragmentation { spare_bytes } => Some(spare_bytes),
            Self::Capacity { .. } | Self::Limit { .. } | Self::Unknown => None,
        }
    }
}

impl Failure {
    /// The last failure of a trace, at which the program usually ended.
    pub fn last(snapshot: &Snapshot, timeline: &Timeline) -> Option<Self> {
        Self::all(snapshot, timeline).pop()
    }

    /// All failures of a trace, in order.
    pub fn all(snapshot: &Snapshot, timeline: &Timeline) -> Vec<Self> {
        let trace = snapshot.trace(timeline.device);
        let failures = trace.iter().filter(|event| event.action == Action::Oom).count();
        if failures == 0 {
            return Vec::new();
        }
        let config = snapshot.config();
        let recorded_limit = recorded_limit(snapshot);
        let is_own = snapshot.is_own();
        let failed = timeline.curve(trace).zip(trace).filter(|(_, event)| event.action == Action::Oom);
        let failed = failed.filter_map(|(moment, event)| {
            let segment_bytes = segment_bytes(&config, event.size);
            let reserved = moment.level.reserved_bytes;
            let refused = reserved.saturating_add(segment_bytes);
            let free = event.device_free();
            let has_room = free.is_some_and(|free| free >= segment_bytes);
            let is_small = free.is_some_and(|free| free.saturating_add(reserved) < LEAST_DEVICE_BYTES);
            Some(Self {
                at: moment.after?,
                asked_bytes: event.size,
                stream: event.stream,
                stack: event.stack,
                level: moment.level,
                device_free_bytes: free,
                segment_bytes,
                is_shared: is_small && !has_room && !is_own,
                limit: has_room.then(|| Limit::between(reserved, refused, recorded_limit)),
                failures,
            })
        });
        failed.collect()
    }

    /// The bytes available to the allocator: reserved plus free memory, or the lower bound of the process's limit.
    /// `None` if neither is known. Memory outside the allocator is not included.
    pub fn capacity_bytes(&self) -> Option<u64> {
        let whole = self.device_free_bytes.map(|free| free.saturating_add(self.level.reserved_bytes));
        self.limit.map(|limit| limit.at_least_bytes).or(whole)
    }

    /// An upper bound of the capacity. Under a [`Limit`], it is one byte less than the total that was rejected.
    pub fn most_capacity_bytes(&self) -> Option<u64> {
        self.limit.map(|limit| limit.below_bytes.saturating_sub(1)).or(self.capacity_bytes())
    }

    /// Bytes in use plus the request.
    pub fn needed_bytes(&self) -> u64 {
        self.level.active_bytes.saturating_add(self.asked_bytes)
    }

    /// Why the request was not served.
    pub fn cause(&self) -> Cause {
        let needed = self.needed_bytes();
        match (self.capacity_bytes(), self.limit) {
            (None, _) => Cause::Unknown,
            (Some(capacity), _) if needed <= capacity => {
                Cause::Fragmentation { spare_bytes: capacity - needed }
            }
            (Some(capacity), Some(limit)) if needed < limit.below_bytes => {
                Cause::Limit { short_bytes: needed - capacity }
            }
            (Some(capacity), _) => Cause::Capacity { short_bytes: needed - capacity },
        }
    }
}

impl Limit {
    /// The bounds of a limit. Levels at other times do not count, because the limit may have been set later.
    fn between(reserved: u64, refused: u64, recorded: Option<u64>) -> Self {
        match recorded {
            Some(recorded) => Self { at_least_bytes: recorded, below_bytes: recorded.saturating_add(1) },
            None => Self { at_least_bytes: reserved, below_bytes: refused },
        }
    }

    /// Whether the recording contains the limit itself.
    pub fn is_exact(&self) -> bool {
        self.below_bytes - self.at_least_bytes <= 1
    }
}

/// The bytes that the device would have had to allocate. An expandable segment grows by whole pages.
fn segment_bytes(config: &Config, block_bytes: u64) -> u64 {
    let segment = config.segment_bytes(block_bytes);
    if config.expandable_segments() && block_bytes > config.large_segment_bytes() {
        segment.next_multiple_of(config.large_segment_bytes())
    } else {
        segment
    }
}

/// The limit that our own recordings contain.
fn recorded_limit(snapshot: &Snapshot) -> Option<u64> {
    let Some(Setting::Map(entries)) = snapshot.setting("plimsoll") else { return None };
    match entries.iter().find(|(name, _)| name == "limit_bytes") {
        Some((_, Setting::Int(bytes))) => u64::try_from(*bytes).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::Addr;

    use super::*;
    use crate::snapshot::Event;

    const MIB: u64 = 1 << 20;

    /// A request of 6 MiB that fails on a device with 10 MiB reserved, of which `active` bytes are in use, and `free`
    /// bytes free.
    fn failure(active: u64, free: Option<u64>) -> Failure {
        let event = |action, addr, size| Event::new(action, Addr(addr), size, StreamId(0));
        let trace = vec![
            event(Action::SegmentAlloc, 0x1000_0000, 10 * MIB),
            event(Action::Alloc, 0x1000_0000, active),
            Event::oom(6 * MIB, free, StreamId(0)),
        ];
        let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
        Failure::last(&snapshot, &Timeline::of(&snapshot, 0)).unwrap()
    }

    #[test]
    fn what_does_not_fit_however_it_is_placed_is_for_want_of_capacity() {
        let failure = failure(9 * MIB, Some(4 * MIB));
        assert_eq!(failure.cause(), Cause::Capacity { short_bytes: MIB });
        assert_eq!((failure.failures, failure.capacity_bytes()), (1, Some(14 * MIB)));
    }

    #[test]
    fn what_would_fit_if_blocks_could_be_moved_is_fragmentation() {
        assert_eq!(failure(6 * MIB, Some(2 * MIB)).cause(), Cause::Fragmentation { spare_bytes: 0 });
    }

    #[test]
    fn without_the_devices_free_bytes_the_cause_is_unknown() {
        assert_eq!(failure(6 * MIB, None).cause(), Cause::Unknown);
    }

    #[test]
    fn a_trace_without_a_failure_has_none() {
        let snapshot = Snapshot::default();
        assert_eq!(Failure::last(&snapshot, &Timeline::of(&snapshot, 0)), None);
    }

    #[test]
    fn a_device_with_room_for_the_segment_did_not_refuse_it() {
        // 10 MiB were reserved and a segment of 20 MiB was rejected, so the limit is between 10 and 30 MiB.
        let limit = Some(Limit { at_least_bytes: 10 * MIB, below_bytes: 30 * MIB });
        let check = |active, cause| {
            let failure = failure(active, Some(1 << 40));
            assert_eq!((failure.segment_bytes, failure.limit), (20 * MIB, limit));
            assert_eq!((failure.capacity_bytes(), failure.cause()), (Some(10 * MIB), cause));
        };
        check(4 * MIB, Cause::Fragmentation { spare_bytes: 0 });
        check(10 * MIB, Cause::Limit { short_bytes: 6 * MIB });
        assert_eq!(failure(9 * MIB, Some(4 * MIB)).limit, None);
    }

    #[test]
    fn less_than_any_gpu_has_is_shared_with_others_unless_a_limit_refused() {
        assert!(failure(9 * MIB, Some(4 * MIB)).is_shared);
        assert!(!failure(9 * MIB, Some(20 * MIB)).is_shared);
        assert!(!failure(9 * MIB, None).is_shared);
    }

    #[test]
    fn a_recorded_limit_is_exact() {
        let recorded = Limit::between(10, 30, Some(17));
        assert_eq!((recorded.at_least_bytes, recorded.is_exact()), (17, true));
        assert!(!Limit::between(10, 30, None).is_exact());
    }
}
