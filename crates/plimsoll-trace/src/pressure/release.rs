//! Finds out why memory was returned to the device: [`releases`], one [`Release`] for each burst of `segment_free` and
//! `segment_unmap`.
//!
//! Five things release memory: `empty_cache()`, a retry, `garbage_collection_threshold`, room for a segment above
//! `max_split_size`, and a request that fails. All but the first happen inside a request and have its stack; the next
//! event is the allocation of the requested memory, or an `oom`. With `context="all"`, the frees of `empty_cache()`
//! have a stack that names it. With `context="alloc"`, they have the stack of the request for which the segment was
//! allocated, and the next request may have the same stack. In that case, the capacity decides, if it is known;
//! otherwise the cause is unclear.

use std::collections::BTreeMap;

use plimsoll_alloc::{Addr, Config};

use crate::failure::Failure;
use crate::snapshot::{Action, Event, FrameId, Snapshot, StackId};
use crate::timeline::Timeline;

/// Memory that was returned to the device in one burst of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Release {
    /// The index of the last event of the burst.
    pub(crate) last: usize,
    /// The number of bytes.
    pub(crate) bytes: u64,
    /// The reserved bytes before the release.
    pub(crate) reserved_bytes: u64,
    pub(crate) cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program released the cache.
    EmptyCache,
    /// The device rejected memory, and provided it after the release.
    Retry { at: usize, segment_bytes: u64 },
    /// Like `Retry`, but releasing segments above `max_split_size` was enough. PyTorch counts no retry.
    Oversize { at: usize, segment_bytes: u64 },
    /// The cache had grown past `garbage_collection_threshold`.
    GarbageCollection,
    /// The request failed after the release.
    Failure,
    /// `empty_cache()` or a retry: the recording does not say which.
    Unclear,
}

/// Every release of a trace, in order.
pub(crate) fn releases(snapshot: &Snapshot, timeline: &Timeline) -> Vec<Release> {
    let trace = &snapshot.trace(timeline.device)[..timeline.quality.events];
    if !trace.iter().any(|event| is_release(event.action)) {
        return Vec::new();
    }
    let failures = Failure::all(snapshot, timeline);
    let mut judge = Judge {
        timeline,
        trace,
        empties: empties_cache(snapshot),
        made_at: BTreeMap::new(),
        capacity_bytes: failures.first().and_then(Failure::capacity_bytes),
        total_bytes: snapshot.recorder().device_total_bytes(timeline.device),
        config: snapshot.config(),
    };
    let mut found = Vec::new();
    let mut reserved_bytes = timeline.start.reserved_bytes;
    let mut nth = 0;
    while nth < trace.len() {
        let event = &trace[nth];
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                reserved_bytes = reserved_bytes.saturating_add(event.size);
                judge.made_at.extend(event.addr().map(|addr| (addr, event.stack)));
            }
            action if is_release(action) => {
                let burst = trace[nth..].iter().take_while(|event| is_release(event.action)).count();
                let events = nth..nth + burst;
                let bytes =
                    trace[events.clone()].iter().fold(0, |sum: u64, event| sum.saturating_add(event.size));
                let cause = judge.cause(&trace[events], nth + burst, reserved_bytes);
                found.push(Release { last: nth + burst - 1, bytes, reserved_bytes, cause });
                reserved_bytes = reserved_bytes.saturating_sub(bytes);
                nth += burst - 1;
            }
            _ => {}
        }
        nth += 1;
    }
    found
}

fn is_release(action: Action) -> bool {
    matches!(action, Action::SegmentFree | Action::SegmentUnmap)
}

struct Judge<'a> {
    timeline: &'a Timeline,
    trace: &'a [Event],
    /// For each stack, whether it is in `empty_cache()`.
    empties: Vec<bool>,
    /// By address: the stack of the request for which a segment was last allocated at the address.
    made_at: BTreeMap<Addr, Option<StackId>>,
    /// The memory available to the allocator, if a failed request shows it.
    capacity_bytes: Option<u64>,
    /// The device's total memory, if the recorder wrote it.
    total_bytes: Option<u64>,
    config: Config,
}

impl Judge<'_> {
    /// The cause of a burst of releases, given the event after it, `next`.
    fn cause(&self, burst: &[Event], next: usize, reserved_bytes: u64) -> Cause {
        let names_empty_cache =
            |stack: Option<StackId>| stack.is_some_and(|id| self.empties.get(id.index()) == Some(&true));
        // Releases after the last free by `empty_cache()` may belong to a request.
        let own = burst.iter().rposition(|event| names_empty_cache(event.stack)).map_or(0, |last| last + 1);
        let own = &burst[own..];
        let Some(came) = self.trace.get(next).filter(|_| !own.is_empty()) else { return Cause::EmptyCache };
        let is_memory = matches!(came.action, Action::SegmentAlloc | Action::SegmentMap);
        if !(is_memory || came.action == Action::Oom) || !of_one_request(own, came) {
            return Cause::EmptyCache;
        }
        if came.action == Action::Oom {
            return Cause::Failure;
        }
        let request = self.request_behind(next);
        let block_bytes = request.map_or(came.size, |request| self.config.block_bytes(request.size));
        // Pages are mapped in several calls, so more memory may have been rejected than the first call mapped.
        let segment_bytes = came.size.max(self.config.segment_bytes(block_bytes));
        let needed_bytes = reserved_bytes.saturating_add(segment_bytes);
        if !self.is_proven(own, came) {
            let peak = self.timeline.peak_reserved.level.reserved_bytes;
            if needed_bytes <= peak || self.would_have_served(own, came, block_bytes) {
                return Cause::EmptyCache;
            }
            match (self.capacity_bytes, self.total_bytes) {
                (Some(capacity), _) if needed_bytes <= capacity => return Cause::EmptyCache,
                (Some(_), _) => {}
                (None, Some(total)) if needed_bytes > total => {}
                (None, _) => return Cause::Unclear,
            }
        }
        let most_split = self.config.max_split_bytes();
        let is_oversize =
            |event: &Event| most_split.is_some_and(|most| event.size >= most) && !is_paged(event);
        let collects = self.config.garbage_collection_threshold() > 0.0;
        if collects && !own.iter().any(|event| event.size == SMALL_SEGMENT_BYTES || is_paged(event)) {
            Cause::GarbageCollection
        } else if own.iter().all(is_oversize) {
            Cause::Oversize { at: next, segment_bytes }
        } else {
            Cause::Retry { at: next, segment_bytes }
        }
    }

    /// Whether the frees are proven to belong to the request whose stack they have. Frees by `empty_cache()` would have
    /// a stack that names `empty_cache()`, or the stack with which their segment was allocated; pages have no such
    /// stack.
    fn is_proven(&self, burst: &[Event], came: &Event) -> bool {
        let is_from_before = self.timeline.quality.is_cut || self.timeline.quality.is_restarted;
        let has_another = |event: &Event| match event.addr().and_then(|addr| self.made_at.get(&addr)) {
            Some(&made_at) => made_at != came.stack,
            None => !is_from_before,
        };
        let shows = |event: &Event| is_paged(event) || has_another(event);
        is_recorded(came.stack) && (self.timeline.frees_have_stacks || burst.iter().any(shows))
    }

    /// Whether the request after a release would have found a block in the released memory. If so, the request did not
    /// cause the release.
    fn would_have_served(&self, burst: &[Event], came: &Event, block_bytes: u64) -> bool {
        let is_alike = |event: &&Event| event.stream == came.stream && event.pool == came.pool;
        self.config.max_split_bytes().is_none()
            && burst.iter().filter(is_alike).any(|event| event.size >= block_bytes)
    }

    /// The request for which memory was allocated.
    fn request_behind(&self, next: usize) -> Option<&Event> {
        let mut behind = self.trace[next..].iter();
        let behind = behind.find(|event| !matches!(event.action, Action::SegmentAlloc | Action::SegmentMap));
        behind.filter(|event| event.action == Action::Alloc)
    }
}

/// The size of a small pool's segment, bytes. Garbage collection does not release segments of this size.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

fn is_paged(event: &Event) -> bool {
    event.action == Action::SegmentUnmap
}

fn is_recorded(stack: Option<StackId>) -> bool {
    stack.is_some_and(|stack| stack != StackId::EMPTY)
}

/// Whether the frees may belong to a request: all of them have the stack of the request, or neither they nor the
/// request have a stack.
fn of_one_request(burst: &[Event], came: &Event) -> bool {
    let stack = |event: &Event| event.stack.filter(|_| is_recorded(event.stack));
    burst.iter().all(|event| stack(event) == stack(came))
}

/// For each stack, by its id, whether `empty_cache()` is in it: PyTorch's function, or that of a package for another
/// device.
fn empties_cache(snapshot: &Snapshot) -> Vec<bool> {
    let stacks = &snapshot.stacks;
    let empties = |id: FrameId| {
        let frame = stacks.get_frame(id);
        let (name, file) = (snapshot.texts.get(frame.name), snapshot.texts.get(frame.filename));
        name == "empty_cache" && file.contains("torch") && file.ends_with("memory.py")
            || name.contains("emptyCache")
    };
    let frames: Vec<bool> = (0..stacks.frame_count()).filter_map(FrameId::new).map(empties).collect();
    let ids = (0..stacks.len()).filter_map(StackId::new);
    ids.map(|id| stacks.frame_ids(id).any(|frame| frames[frame.index()])).collect()
}
