//! Finds requests that the device rejected at first, and that were served after the cache was released: [`Pressure`].
//!
//! PyTorch counts these as `num_alloc_retries`. No event records a rejection, but it can be inferred: segments are
//! freed right before one is allocated, within one request (`release.rs`). Each retry gives an upper bound of the
//! available memory: it was less than the reserved memory at that time plus the rejected segment.

mod release;

use plimsoll_alloc::StreamId;

use crate::failure::Limit;
use crate::snapshot::{EventIndex, Snapshot, StackId};
use crate::timeline::Timeline;
pub(crate) use release::{Cause, releases};

/// The evidence of memory pressure in a recording, apart from failed requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pressure {
    /// Requests that were rejected at first and then served, in order.
    pub retries: Vec<Retry>,
    /// How often the program released the cache itself: `empty_cache()`.
    pub emptied: usize,
    /// How often `garbage_collection_threshold` released segments.
    pub collected: usize,
    /// How often the release was either `empty_cache()` or a retry, and the recording does not show which.
    pub unclear: usize,
    /// The bounds of the available memory, from the retries; `None` if there was no retry.
    pub capacity: Option<Limit>,
}

/// A request that the device rejected until the cache was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The event of the segment that was then allocated.
    pub at: EventIndex,
    /// The size requested from the device, bytes.
    pub segment_bytes: u64,
    /// The bytes that were reserved when the request was rejected.
    pub reserved_bytes: u64,
    /// The bytes that were released for the request.
    pub released_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The stack of the request.
    pub stack: Option<StackId>,
}

impl Pressure {
    /// Reads one device's trace.
    pub fn of(snapshot: &Snapshot, timeline: &Timeline) -> Self {
        let trace = snapshot.trace(timeline.device);
        let mut found = Self::default();
        for release in releases(snapshot, timeline) {
            match release.cause {
                Cause::EmptyCache => found.emptied += 1,
                Cause::GarbageCollection => found.collected += 1,
                Cause::Unclear => found.unclear += 1,
                Cause::Failure => {}
                Cause::Retry { at, segment_bytes } | Cause::Oversize { at, segment_bytes } => {
                    let event = &trace[at];
                    found.retries.extend(EventIndex::new(at).map(|index| Retry {
                        at: index,
                        segment_bytes,
                        reserved_bytes: release.reserved_bytes,
                        released_bytes: release.bytes,
                        stream: event.stream,
                        stack: event.stack,
                    }));
                }
            }
        }
        let refused = found.retries.iter().map(|it| it.reserved_bytes.saturating_add(it.segment_bytes)).min();
        let at_least_bytes = timeline.peak_reserved.level.reserved_bytes;
        found.capacity = refused.map(|refused| Limit {
            at_least_bytes,
            // More memory may have been available at another time: other processes may have allocated or freed memory.
            below_bytes: refused.max(at_least_bytes.saturating_add(1)),
        });
        found
    }
}
