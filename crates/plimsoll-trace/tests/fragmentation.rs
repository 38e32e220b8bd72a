//! Tests that ledgers add up and agree with the allocator and with PyTorch's figures, and that the blocks that pin
//! memory are found.

use plimsoll_alloc::{Addr, BlockState, Config, StreamId};
use plimsoll_needs::needs;
use plimsoll_trace::explain::{DeviceAnalysis, Fragmentation, Ledger, Origins, Part, Passes, Purposes};
use plimsoll_trace::snapshot::{Action, Event, EventIndex, Frame, LifeIndex, Snapshot, StackId};
use plimsoll_trace::timeline::Timeline;

use crate::files;
use crate::recorder;

fn assert_closes(ledger: &Ledger, at: &str) {
    let rows = ledger.rows();
    let bytes = |part| rows.iter().find(|row| row.part == part).expect("a row").bytes;
    let parts = |of| rows.iter().filter(move |row| row.part.within() == Some(of));
    let sum: Option<u64> = parts(Part::Reserved).map(|row| row.bytes).sum();
    assert_eq!(sum, bytes(Part::Reserved), "{at}: {ledger:?}");
    if ledger.device.outside.is_some() {
        let sum: Option<u64> = parts(Part::Total).map(|row| row.bytes).sum();
        assert_eq!(sum, bytes(Part::Total), "{at}: {ledger:?}");
    }
    assert_eq!(ledger.device.rest, ledger.device.total.map(|total| total - ledger.reserved), "{at}");
}

/// The fragmentation at one moment, with unknown steps.
fn at(snapshot: &Snapshot, timeline: &Timeline, after: Option<EventIndex>) -> Fragmentation {
    let origins = Origins::of(snapshot);
    let passes = Passes::of(snapshot, snapshot.trace(timeline.device), &origins);
    let purposes = Purposes::of(snapshot, timeline, &origins, &passes, true);
    Fragmentation::of(
        DeviceAnalysis { snapshot, timeline, origins: &origins, purposes: &purposes },
        &[],
        after,
    )
}

#[test]
fn ledgers_at_any_moment_are_those_of_the_allocator() {
    let expandable = Config::default().with_expandable_segments(true);
    for (seed, config) in (0..12).flat_map(|seed| [(seed, Config::default()), (seed, expandable.clone())]) {
        let recorded = recorder::record(seed, 500, &config, seed % 2 == 1);
        let (snapshot, timeline) = (&recorded.snapshot, &recorded.timeline);
        let ooms = snapshot.trace(0).iter().filter(|event| event.action == Action::Oom).count();
        for (after, segments, free_bytes) in &recorded.pictures {
            let ledger = Ledger::of(snapshot, timeline, *after, Some(recorder::DEVICE_BYTES));
            assert_closes(&ledger, &format!("seed {seed} after {after:?}"));
            let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
            let sum =
                |state| blocks().filter(|block| block.state == state).map(|block| block.bytes).sum::<u64>();
            assert_eq!(ledger.allocated(), sum(BlockState::Active));
            assert_eq!(
                (ledger.waiting, ledger.cached.sum()),
                (sum(BlockState::Pending), sum(BlockState::Cached))
            );
            let live = blocks().filter(|block| block.state == BlockState::Active);
            assert_eq!(
                ledger.requested + ledger.unsplit,
                live.map(|block| block.requested_bytes).sum::<u64>()
            );
            let whole =
                segments.iter().filter(|it| it.blocks.iter().all(|it| it.state == BlockState::Cached));
            let whole: u64 = whole.map(|segment| segment.bytes).sum();
            assert!(if config.expandable_segments() {
                ledger.cached.reusable >= whole
            } else {
                ledger.cached.reusable == whole
            });
            if ooms > 0 {
                assert_eq!((ledger.device.free, ledger.device.outside), (Some(*free_bytes), Some(0)));
            } else {
                assert_eq!((ledger.device.free, ledger.device.rest), (None, Some(*free_bytes)));
            }
        }
        let end = EventIndex::new(snapshot.trace(0).len());
        let emptied = at(snapshot, timeline, end).empty_cache_bytes;
        assert_eq!(emptied, (recorded.emptied_bytes, recorded.emptied_bytes), "seed {seed}");
    }
}

#[needs(shared_snapshots)]
#[test]
fn ledgers_of_made_recordings_show_the_figures_of_pytorch() {
    for (name, snapshot, figures) in files::made() {
        let timeline = Timeline::of(&snapshot, 0);
        let stats = |key: &str| figures["stats"][key].as_u64().expect("a figure");
        let end = Ledger::of(&snapshot, &timeline, EventIndex::new(snapshot.trace(0).len()), None);
        assert_closes(&end, &name);
        assert_eq!(end.reserved, stats("reserved_bytes.all.current"), "{name}");
        assert_eq!(end.allocated() + end.uncut, stats("allocated_bytes.all.current"), "{name}");
        assert_eq!(end.requested, stats("requested_bytes.all.current"), "{name}");
        assert_eq!(end.cached.pinned, stats("inactive_split_bytes.all.current"), "{name}");
        let peak = Ledger::of(&snapshot, &timeline, timeline.peak_allocated.after, None);
        assert_closes(&peak, &name);
        // This is exact to the byte, although no event has the size of a block: Note [Uncut ends].
        assert_eq!(peak.allocated() + peak.uncut, stats("allocated_bytes.all.peak"), "{name}");
    }
}

#[test]
fn a_failed_request_records_free_memory_and_with_the_total_what_is_outside() {
    let snapshot = files::open(&files::here("tests/snapshots/gpt2_oom.pickle.gz"));
    let timeline = Timeline::of(&snapshot, 0);
    let failed = snapshot.trace(0).iter().position(|event| event.action == Action::Oom).expect("one");
    let ledger = |place: usize, total| Ledger::of(&snapshot, &timeline, EventIndex::new(place), total);
    // PyTorch's message says: "GPU 0 has a total capacity of 24.00 GiB of which 184.00 MiB is free".
    let alone = ledger(failed, None).device;
    assert_eq!((alone.free, alone.total, alone.outside), (Some(184 << 20), None, None));
    let device = ledger(failed, Some(24 << 30)).device;
    assert_eq!((device.free, device.measured_at), (Some(184 << 20), EventIndex::new(failed)));
    let outside = device.outside.expect("known");
    assert_eq!(outside + (184 << 20) + ledger(failed, None).reserved, 24 << 30);
    // "23.73 GiB is allocated by PyTorch, and 95.07 MiB is reserved by PyTorch but unallocated."
    let then = ledger(failed, None);
    let allocated = then.allocated() + then.uncut;
    assert_eq!(format!("{:.2}", allocated as f64 / f64::from(1 << 30)), "23.73");
    assert_eq!(format!("{:.2}", (then.reserved - allocated) as f64 / f64::from(1 << 20)), "95.07");
    let early = ledger(10, Some(24 << 30));
    assert_eq!((early.device.outside, early.device.measured_at), (Some(outside), EventIndex::new(failed)));
    assert_closes(&early, "early");
    assert_eq!(ledger(10, None).device.free, None);
    let too_little = ledger(failed, Some(1 << 30)).device;
    assert_eq!((too_little.total, too_little.outside, too_little.free), (None, None, Some(184 << 20)));
}

#[test]
fn small_blocks_that_pin_large_segments_are_named_the_oldest_first() {
    const MIB: u64 = 1 << 20;
    let mut snapshot = Snapshot::default();
    let filename = snapshot.texts.intern("/home/me/train.py").expect("room");
    let name = snapshot.texts.intern("step").expect("room");
    let frame = snapshot.stacks.frame(Frame { filename, name, line: 12, fx: None }).expect("room");
    let stack: Option<StackId> = snapshot.stacks.stack(&[frame]);
    let event = |action, addr, mib: u64| {
        let mut event = Event::new(action, Addr(addr * MIB), mib * MIB, StreamId(0));
        event.stack = stack;
        event
    };
    snapshot.traces = vec![vec![
        event(Action::SegmentAlloc, 100, 20),
        event(Action::SegmentAlloc, 200, 20),
        event(Action::SegmentAlloc, 300, 20),
        event(Action::Alloc, 200, 2), // 3: pins the second segment
        event(Action::Alloc, 100, 20),
        event(Action::FreeRequested, 100, 20),
        event(Action::FreeCompleted, 100, 20),
        event(Action::Alloc, 104, 2), // 7: pins the first segment
        event(Action::Alloc, 110, 2), // 8: also pins the first segment
        event(Action::FreeRequested, 104, 2),
    ]];
    let mut timeline = Timeline::of(&snapshot, 0);
    for life in &mut timeline.lives {
        // The snapshot has no segments. Change the lives as if it had segments that show the blocks.
        life.completed = life.completed.filter(|completed| completed.index() < 10);
        life.freed = life.freed.filter(|freed| freed.index() < 10);
    }
    let origins = Origins::of(&snapshot);
    let passes = Passes::of(&snapshot, snapshot.trace(0), &origins);
    let purposes = Purposes::of(&snapshot, &timeline, &origins, &passes, true);
    let steps = [0, 4, 8].map(|place| EventIndex::new(place).expect("few"));
    let analysis =
        DeviceAnalysis { snapshot: &snapshot, timeline: &timeline, origins: &origins, purposes: &purposes };
    let found = Fragmentation::of(analysis, &steps, timeline.last());

    let pins: Vec<_> = found.pins.iter().map(|pin| (pin.memory.addr.0 / MIB, pin.held_bytes / MIB)).collect();
    assert_eq!(pins, [(200, 2), (100, 4)]);
    let blocks = |nth: usize| {
        let blocks = found.pins[nth].blocks.iter();
        blocks.map(|it| (it.life, it.is_waiting, it.age_events, it.age_steps, it.line)).collect::<Vec<_>>()
    };
    assert_eq!(blocks(0), [(LifeIndex::new(0), false, 6, 2, Some(frame))]);
    let first = (LifeIndex::new(2), true, 2, 1, Some(frame));
    assert_eq!(blocks(1), [first, (LifeIndex::new(3), false, 1, 0, Some(frame))]);

    let all = found.all;
    assert_eq!((all.count, all.largest_bytes, all.reserved_bytes), (5, 20 * MIB, 60 * MIB));
    assert_eq!((all.cached.pinned, all.cached.reusable), (34 * MIB, 20 * MIB));
    assert!((all.fragmentation() - 34.0 / 60.0).abs() < 1e-12);
    assert_eq!(found.empty_cache_bytes, (20 * MIB, 20 * MIB));
}

#[test]
fn holes_over_time_end_in_those_of_the_end_and_never_exceed_the_moments_asked_for() {
    for (name, snapshot) in files::snapshots() {
        for device in snapshot.devices() {
            let timeline = Timeline::of(&snapshot, device);
            let found = at(&snapshot, &timeline, timeline.last());
            let by_pool = found.pools.iter().map(|(_, holes)| holes.count).sum::<usize>();
            assert_eq!(by_pool, found.all.count, "{name}");
            assert!((0.0..=1.0).contains(&found.all.fragmentation()), "{name}");
            let pinned = found.pins.iter().map(|pin| pin.pinned_bytes).sum::<u64>();
            assert_eq!(pinned, found.all.cached.pinned, "{name}: every pinned byte is some block's doing");
            // Snapshots that were made by hand have pages of any size.
            let is_made_up = ["features", "little", "tiny"].iter().any(|it| name.starts_with(it));
            assert!(is_made_up || found.pins.iter().all(|pin| !pin.blocks.is_empty()), "{name}");
            for moments in [0, 1, 2, 50, 1000] {
                let points = Fragmentation::over_time(&snapshot, &timeline, moments);
                let events = snapshot.trace(device).len();
                assert!(
                    points.len() <= moments && points.len() >= moments.min(events + 1),
                    "{name} {moments}"
                );
                assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0), "{name} {moments}");
                let last = points.last().copied();
                assert_eq!(last.is_some(), moments > 0, "{name} {moments}");
                assert!(last.is_none_or(|last| last == (timeline.last(), found.all)), "{name} {moments}");
            }
        }
    }
}
