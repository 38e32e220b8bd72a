//! The memory at any moment, piece by piece, compared with the allocator's own view of it.

use plimsoll_alloc::{Addr, BlockState, Config, StreamId};
use plimsoll_trace::explain::{AllocatorState, AllocatorStates, Ledger, Use};
use plimsoll_trace::snapshot::{
    self, Action, Event, EventIndex, HOST_DEVICE, Segment, SegmentType, Snapshot,
};
use plimsoll_trace::timeline::{Life, Timeline};

use crate::files;
use crate::recorder;

/// A segment in short form: address, size, type and stream; and its blocks, each with address, size, and whether it is
/// live, waits, or neither.
type Picture = (Addr, u64, SegmentType, StreamId, Vec<(Addr, u64, char)>);

fn of_state(state: &AllocatorState) -> Vec<Picture> {
    let pieces = |segment| {
        let pieces = state.pieces_of(segment).iter();
        pieces.map(|piece| match piece.usage {
            Use::Live(_) => (piece.addr, piece.bytes, 'h'),
            Use::Waiting(_) => (piece.addr, piece.bytes, 'w'),
            Use::Uncut => panic!("sizes are known: {piece:?}"),
            Use::Cached => (piece.addr, piece.bytes, 'c'),
        })
    };
    let segments = state.segments.iter().map(|segment| {
        let memory = segment.memory;
        (memory.addr, memory.bytes, memory.segment_type, memory.stream, pieces(segment).collect())
    });
    segments.collect()
}

/// Merges adjacent cached blocks, which expandable segments can have.
fn merged(blocks: impl Iterator<Item = (Addr, u64, char)>) -> Vec<(Addr, u64, char)> {
    let mut merged: Vec<(Addr, u64, char)> = Vec::new();
    for (addr, bytes, what) in blocks {
        match merged.last_mut().filter(|last| (last.2, what) == ('c', 'c')) {
            Some(last) => last.1 += bytes,
            None => merged.push((addr, bytes, what)),
        }
    }
    merged
}

#[test]
fn the_state_after_any_event_is_the_allocators_own() {
    let expandable = Config::default().with_expandable_segments(true);
    let mut waited = 0;
    for (seed, config) in (0..24).flat_map(|seed| [(seed, Config::default()), (seed, expandable.clone())]) {
        let recorded = recorder::record(seed, 600, &config, seed % 2 == 1);
        let (timeline, trace) = (&recorded.timeline, recorded.snapshot.trace(0));
        assert_eq!(timeline.quality.conflicts(), 0, "seed {seed}");
        let mut states = AllocatorStates::new(timeline, trace);
        for (after, segments, _) in &recorded.pictures {
            let expected: Vec<Picture> = segments
                .iter()
                .map(|segment| {
                    let blocks = segment.blocks.iter().map(|block| match block.state {
                        BlockState::Active => (block.addr, block.bytes, 'h'),
                        BlockState::Pending => (block.addr, block.bytes, 'w'),
                        BlockState::Cached => (block.addr, block.bytes, 'c'),
                    });
                    let kind = recorder::segment_type(segment.pool);
                    (segment.addr, segment.bytes, kind, segment.stream, merged(blocks))
                })
                .collect();
            let state = AllocatorState::of(timeline, trace, *after);
            assert_eq!(of_state(&state), expected, "seed {seed} after {after:?}");
            assert_eq!(states.at(*after), state, "seed {seed} after {after:?}: in one walk");
            waited += state.bytes().waiting;
        }
    }
    assert!(waited > 0, "no block waited for a stream");
}

#[test]
fn the_last_state_is_the_snapshots_and_sums_are_those_of_the_curve() {
    for (name, snapshot) in files::snapshots() {
        if name.starts_with("features") || name.starts_with("little") || name.starts_with("tiny") {
            continue; // made by hand, and inconsistent
        }
        for device in snapshot.devices() {
            let (timeline, trace) = (Timeline::of(&snapshot, device), snapshot.trace(device));
            let state = AllocatorState::of(&timeline, trace, EventIndex::new(trace.len()));
            let mut shown: Vec<&Segment> = snapshot.segments_of(device).collect();
            shown.sort_by_key(|segment| segment.address);
            let picture = |segment: &&Segment| {
                let blocks = segment.blocks.iter().map(|block| match block.state {
                    snapshot::BlockState::ActiveAllocated => (block.address, block.size, 'h'),
                    snapshot::BlockState::ActivePendingFree => (block.address, block.size, 'w'),
                    snapshot::BlockState::Inactive => (block.address, block.size, 'c'),
                });
                (segment.address, segment.total_size, segment.segment_type, segment.stream, merged(blocks))
            };
            assert_eq!(of_state(&state), shown.iter().map(picture).collect::<Vec<_>>(), "{name}");

            let mut states = AllocatorStates::new(&timeline, trace);
            let stride = trace.len() / 97 + 1;
            for moment in timeline.curve(trace).step_by(stride) {
                let (state, level) = (states.at(moment.after), moment.level);
                let (placed, unplaced) = (state.bytes(), state.unplaced_bytes());
                assert_eq!(unplaced.sum(), 0, "{name} after {:?}", moment.after);
                assert_eq!(placed.live, level.allocated_bytes, "{name} after {:?}", moment.after);
                assert_eq!(placed.live + placed.waiting, level.active_bytes, "{name}");
                assert_eq!((placed.sum(), state.reserved_bytes()), (level.reserved_bytes, placed.sum()));
            }
        }
    }
}

#[test]
fn what_fits_nowhere_is_listed_apart_and_counted_all_the_same() {
    let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
    let trace = vec![
        event(Action::SegmentAlloc, 0x20_0000, 2 << 20),
        event(Action::Alloc, 0x20_0000, 1024),
        event(Action::Alloc, 0x20_0200, 512),    // inside the first block
        event(Action::Alloc, 0x3f_fe00, 1024),   // across the end of the segment
        event(Action::Alloc, 0x90_0000, 512),    // outside the segment
        event(Action::SegmentMap, 0x60_0000, 0), // empty
        event(Action::Alloc, 0x10_0000, 512),    // below the segment
    ];
    let mut timeline = Timeline::of(&Snapshot { traces: vec![trace.clone()], ..Snapshot::default() }, 0);
    for life in &mut timeline.lives {
        *life = Life { freed: None, completed: None, ..*life };
    }
    let state = AllocatorState::of(&timeline, &trace, timeline.last());
    assert_eq!(state.bytes().live, 1024);
    assert_eq!((state.unplaced.len(), state.unplaced_bytes().live), (4, 512 + 1024 + 512 + 512));
    assert_eq!((state.reserved_bytes(), state.bytes().sum()), (2 << 20, 2 << 20));
}

#[test]
fn pages_join_their_neighbours_although_old_events_lack_the_pool() {
    let mut snapshot = Snapshot::default();
    let pool = snapshot.pools.intern(plimsoll_alloc::PoolId(0, 0));
    let page = 20 << 20;
    let event = |action, nth| Event::new(action, Addr(nth * page), page, StreamId(0));
    snapshot.traces = vec![vec![
        event(Action::SegmentMap, 4),
        event(Action::SegmentMap, 5),
        event(Action::SegmentUnmap, 6),
        event(Action::SegmentMap, 6),
    ]];
    snapshot.segments = vec![Segment {
        device: Some(0),
        address: Addr(4 * page),
        total_size: 3 * page,
        allocated_size: None.into(),
        active_size: None.into(),
        requested_size: None.into(),
        stream: StreamId(0),
        segment_type: SegmentType::Large,
        pool,
        is_expandable: Some(true),
        stack: None,
        blocks: Vec::new(),
    }];
    let timeline = Timeline::of(&snapshot, 0);
    let check = |after, expected: &[(u64, u64)]| {
        let state = AllocatorState::of(&timeline, snapshot.trace(0), after);
        let found = state.segments.iter().map(|it| (it.memory.addr.0 / page, it.memory.bytes / page));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    };
    check(None, &[(6, 1)]);
    check(EventIndex::new(1), &[(4, 3)]);
    check(EventIndex::new(2), &[(4, 2)]);
    check(EventIndex::new(3), &[(4, 3)]);
}

#[test]
fn pinned_host_memory_has_states_and_ledgers_too() {
    let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
    let host_trace = vec![
        event(Action::SegmentAlloc, 0x10_0000, 131_072),
        event(Action::Alloc, 0x10_0000, 131_072),
        event(Action::FreeRequested, 0x10_0000, 131_072),
        event(Action::FreeCompleted, 0x10_0000, 131_072),
        event(Action::SegmentFree, 0x10_0000, 131_072),
    ];
    let snapshot = Snapshot { host_trace, ..Snapshot::default() };
    let timeline = Timeline::of(&snapshot, HOST_DEVICE);
    let check = |place, reserved, live, waiting, reusable| {
        let found = Ledger::of(&snapshot, &timeline, EventIndex::new(place), None);
        let figures = (found.reserved, found.allocated(), found.waiting, found.cached.reusable);
        assert_eq!(figures, (reserved, live, waiting, reusable), "after {place}");
    };
    check(0, 131_072, 0, 0, 131_072);
    check(1, 131_072, 131_072, 0, 0);
    check(2, 131_072, 0, 131_072, 0);
    check(3, 131_072, 0, 0, 131_072);
    check(4, 0, 0, 0, 0);
}
