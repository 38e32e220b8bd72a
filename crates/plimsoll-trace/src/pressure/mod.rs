//! Requests that the device refused first and that were served after a release: [`Pressure`].
//!
//! PyTorch counts these as `num_alloc_retries`. No event says "refused", but it shows: segments go back to the
//! device right before one comes, inside one request (`release.rs`). Each retry bounds what the
//! allocator could have: less than was reserved then and the segment that was refused.

mod release;

use plimsoll_alloc::StreamId;

use crate::failure::Limit;
use crate::snapshot::{EventIndex, Snapshot, StackId};
use crate::timeline::Timeline;
pub(crate) use release::{Cause, releases};

/// What a recording shows of memory running short, beside requests that failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pressure {
    /// Requests that were refused first and then served, in order.
    pub retries: Vec<Retry>,
    /// How often the program released the cache itself: `empty_cache()`.
    pub emptied: usize,
    /// How often `garbage_collection_threshold` released segments.
    pub collected: usize,
    /// How often it was one of the two, `empty_cache()` or a retry, and the recording does not say which.
    pub unclear: usize,
    /// What the allocator could have, as far as the retries tell; `None` without one.
    pub capacity: Option<Limit>,
}

/// A request that the device refused until the cache was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The event of the memory that came then.
    pub at: EventIndex,
    /// What was asked of the device, bytes.
    pub segment_bytes: u64,
    /// What was reserved when it was refused.
    pub reserved_bytes: u64,
    /// What was released for it.
    pub released_bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Where in the program it was asked for.
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
            // At another time there was more: others took some of the device, or gave it back.
            below_bytes: refused.max(at_least_bytes.saturating_add(1)),
        });
        found
    }
}
