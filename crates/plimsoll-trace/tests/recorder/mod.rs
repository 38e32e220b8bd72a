//! Random programs that run on our allocator while it is recorded. They are returned as snapshots, together with the
//! true state of the allocator at some moments.

#[path = "../../../plimsoll-alloc/tests/programs/mod.rs"]
mod programs;

use plimsoll_alloc::{
    Action as Did, Allocator, BlockState, Config, Driver, Entry, Event as Notice, History, HistoryOptions,
    PoolKind, Segment, SimDriver,
};
use plimsoll_trace::snapshot::{self, Action, Event, EventIndex, SegmentType, Snapshot};
use plimsoll_trace::timeline::Timeline;

pub(crate) use programs::MIB;

/// A recording, and the true states.
pub(crate) struct Recording {
    pub(crate) snapshot: Snapshot,
    /// The timeline, with the true sizes of the blocks.
    pub(crate) timeline: Timeline,
    /// The allocator's segments and the device's free bytes after some events.
    pub(crate) pictures: Vec<(Option<EventIndex>, Vec<Segment>, u64)>,
    /// The bytes that `empty_cache` released at the end.
    pub(crate) emptied_bytes: u64,
}

pub(crate) const DEVICE_BYTES: u64 = 600 * MIB;

/// Runs a program of `steps` steps, the first quarter of them unrecorded if `is_late`.
pub(crate) fn record(seed: u64, steps: usize, config: &Config, is_late: bool) -> Recording {
    let observer = (History::default(), Vec::<Notice>::new());
    let allocator = Allocator::new(config.clone(), SimDriver::with_capacity(DEVICE_BYTES), observer);
    let mut run = programs::Run::new(allocator, seed);
    let mut pictures = Vec::new();
    for (nth, op) in programs::program_with_uses(seed, steps).into_iter().enumerate() {
        if nth == if is_late { steps / 4 } else { 0 } {
            let options = HistoryOptions { skip: vec!["retag", "step_mark"], ..HistoryOptions::default() };
            run.allocator.observer_mut().0.record(options, Box::new(|| 0));
            run.allocator.observer_mut().1.clear();
        }
        let _ = run.step(op); // a request may fail, which is recorded
        let events = run.allocator.observer().0.entries().count();
        if run.allocator.observer().0.is_recording() && nth % 7 == 0 {
            let after = events.checked_sub(1).and_then(EventIndex::new);
            let free_bytes = run.allocator.driver().memory().free_bytes;
            pictures.push((after, run.allocator.segments(), free_bytes));
        }
    }
    let mut snapshot = Snapshot::default();
    let (history, events) = run.allocator.observer();
    let trace: Vec<Event> = history.entries().map(|entry| event(&mut snapshot, entry)).collect();
    let segments = run.allocator.segments();
    snapshot.segments = segments.iter().map(|segment| shown(&mut snapshot, segment)).collect();
    snapshot.traces = vec![trace];
    let mut timeline = Timeline::of(&snapshot, 0);
    set_sizes(&mut timeline, snapshot.trace(0), events);
    let emptied_bytes = run.allocator.empty_cache().expect("the device works");
    Recording { snapshot, timeline, pictures, emptied_bytes }
}

fn event(snapshot: &mut Snapshot, entry: &Entry) -> Event {
    let action = match entry.action {
        Did::Alloc => Action::Alloc,
        Did::FreeRequested => Action::FreeRequested,
        Did::FreeCompleted => Action::FreeCompleted,
        Did::SegmentAlloc => Action::SegmentAlloc,
        Did::SegmentFree => Action::SegmentFree,
        Did::SegmentMap => Action::SegmentMap,
        Did::SegmentUnmap => Action::SegmentUnmap,
        Did::Snapshot => Action::Snapshot,
        Did::Oom { device_free_bytes } => {
            return Event::oom(entry.bytes, Some(device_free_bytes), entry.stream);
        }
        Did::Retag { .. } | Did::StepMark { .. } => unreachable!("they are skipped"),
    };
    let mut event = Event::new(action, entry.addr, entry.bytes, entry.stream);
    event.pool = snapshot.pools.intern(entry.pool);
    event
}

fn shown(snapshot: &mut Snapshot, segment: &Segment) -> snapshot::Segment {
    let blocks = segment.blocks.iter().map(|block| snapshot::Block {
        address: block.addr,
        size: block.bytes,
        requested_size: block.requested_bytes.into(),
        state: match block.state {
            BlockState::Active => snapshot::BlockState::ActiveAllocated,
            BlockState::Pending => snapshot::BlockState::ActivePendingFree,
            BlockState::Cached => snapshot::BlockState::Inactive,
        },
        stack: None,
    });
    snapshot::Segment {
        device: Some(0),
        address: segment.addr,
        total_size: segment.bytes,
        allocated_size: segment.allocated_bytes().into(),
        active_size: None.into(),
        requested_size: None.into(),
        stream: segment.stream,
        segment_type: segment_type(segment.pool),
        pool: snapshot.pools.intern(segment.pool_id),
        is_expandable: Some(segment.is_expandable),
        stack: None,
        blocks: blocks.collect(),
    }
}

pub(crate) fn segment_type(kind: PoolKind) -> SegmentType {
    match kind {
        PoolKind::Small => SegmentType::Small,
        PoolKind::Large => SegmentType::Large,
    }
}

/// Sets the size of every life to its true size, as a replay would.
fn set_sizes(timeline: &mut Timeline, trace: &[Event], events: &[Notice]) {
    let about_blocks = trace.iter().enumerate().filter(|(_, event)| {
        matches!(event.action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted)
    });
    let blocks = events.iter().filter_map(|event| match event {
        Notice::Alloc { block, .. } | Notice::Free { block, .. } | Notice::FreeCompleted { block, .. } => {
            Some(block)
        }
        _ => None,
    });
    for ((index, event), block) in about_blocks.zip(blocks) {
        assert_eq!(event.addr(), Some(block.addr));
        let index = EventIndex::new(index).expect("few events");
        if let Some(life) = timeline.life_of(index) {
            timeline.lives[life.index()].bytes = block.bytes;
        }
        let waited = timeline.waiting_before.iter_mut().filter(|life| life.completed == Some(index));
        waited.for_each(|life| life.bytes = block.bytes);
    }
}
