//! Why a request failed for want of memory: [`Failure`], at the event that says so.

use plimsoll_alloc::StreamId;

use crate::snapshot::{Action, Event, EventIndex, StackId};
use crate::timeline::{Level, Timeline};

/// A request that failed, and what there was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Its `oom`.
    pub at: EventIndex,
    /// The block that it needed, bytes.
    pub asked_bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Who asked.
    pub stack: Option<StackId>,
    /// The bytes that there were.
    pub level: Level,
    /// What the device had free then; `None` if that is not recorded.
    pub device_free_bytes: Option<u64>,
    /// How many requests failed in all, this one included.
    pub failures: usize,
}

/// What kept a request from being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// All that is in use, and the request, do not fit in all that there was, however they are placed.
    Capacity {
        /// What is missing, bytes.
        short_bytes: u64,
    },
    /// They would fit if every block could be moved.
    Fragmentation {
        /// What would be left, bytes.
        spare_bytes: u64,
    },
    /// How much the device had free is not recorded.
    Unknown,
}

impl Failure {
    /// The last failure of a trace: what a program that ran out of memory stopped at.
    pub fn of(timeline: &Timeline, trace: &[Event]) -> Option<Self> {
        let is_failure = |event: &Event| event.action == Action::Oom;
        let place = trace.iter().rposition(is_failure)?;
        let (at, event) = (EventIndex::new(place)?, &trace[place]);
        let moment = timeline.curve(trace).nth(place)?;
        Some(Self {
            at,
            asked_bytes: event.size,
            stream: event.stream,
            stack: event.stack,
            level: moment.level,
            device_free_bytes: event.device_free(),
            failures: trace.iter().filter(|event| is_failure(event)).count(),
        })
    }

    /// All that the allocator could have had: what it had and what the device had free; `None` if the latter is
    /// not recorded. Memory outside the allocator is not in it.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.device_free_bytes.map(|free| free.saturating_add(self.level.reserved_bytes))
    }

    /// What kept the request from being served.
    pub fn cause(&self) -> Cause {
        let needed = self.level.active_bytes.saturating_add(self.asked_bytes);
        match self.capacity_bytes() {
            None => Cause::Unknown,
            Some(capacity) if needed > capacity => Cause::Capacity { short_bytes: needed - capacity },
            Some(capacity) => Cause::Fragmentation { spare_bytes: capacity - needed },
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::Addr;

    use super::*;
    use crate::snapshot::Snapshot;

    const MIB: u64 = 1 << 20;

    /// A device of which 10 MiB are taken, `active` of them in use, and `free` are free; then 6 MiB are asked for.
    fn failure(active: u64, free: Option<u64>) -> Failure {
        let event = |action, addr, size| Event::new(action, Addr(addr), size, StreamId(0));
        let trace = vec![
            event(Action::SegmentAlloc, 0x1000_0000, 10 * MIB),
            event(Action::Alloc, 0x1000_0000, active),
            Event::oom(6 * MIB, free, StreamId(0)),
        ];
        let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
        Failure::of(&Timeline::of(&snapshot, 0), snapshot.trace(0)).unwrap()
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
        assert_eq!(Failure::of(&Timeline::of(&snapshot, 0), snapshot.trace(0)), None);
    }
}
