//! Timelines of real and synthetic recordings: they agree with the final state of the snapshot, and with the figures
//! that PyTorch reported.

use plimsoll_alloc::{Addr, StreamId};
use plimsoll_needs::needs;
use plimsoll_trace::snapshot::{Action, Block, BlockState, Event, Segment, SegmentType, Snapshot, StackId};
use plimsoll_trace::timeline::{EventIndex, Quality, Timeline};

use crate::files;

fn event(action: Action, addr: u64, bytes: u64) -> Event {
    Event::new(action, Addr(addr), bytes, StreamId(0))
}

/// The timeline of a trace alone, with no segments at its end.
fn of(trace: &[Event]) -> Timeline {
    Timeline::of(&Snapshot { traces: vec![trace.to_vec()], ..Snapshot::default() }, 0)
}

#[test]
fn every_recording_ends_in_the_state_that_its_snapshot_shows() {
    for (name, snapshot) in files::snapshots() {
        for device in snapshot.devices() {
            let timeline = Timeline::of(&snapshot, device);
            if name.starts_with("features") || name.starts_with("little") || name.starts_with("tiny") {
                continue; // made by hand, and inconsistent
            }
            assert_eq!(timeline.quality.conflicts(), 0, "{name}: {:?}", timeline.quality);
            let segments = || snapshot.segments.iter().filter(|segment| segment.device() == device);
            let blocks = || segments().flat_map(|segment| &segment.blocks);
            let mut shown: Vec<_> =
                blocks().filter(|block| block.state == BlockState::ActiveAllocated).collect();
            shown.sort_by_key(|block| block.address);
            let mut held: Vec<_> = timeline.held_at_end().collect();
            held.sort_by_key(|life| life.addr);
            let held: Vec<_> = held.iter().map(|life| (life.addr, life.bytes)).collect();
            assert_eq!(held, shown.iter().map(|block| (block.address, block.size)).collect::<Vec<_>>());
            let last =
                timeline.curve(snapshot.trace(device)).last().map_or(timeline.start, |last| last.level);
            let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
            assert_eq!(last.reserved_bytes, sum(&mut segments().map(|segment| segment.total_size)), "{name}");
            let active = blocks().filter(|block| block.state != BlockState::Inactive);
            // For blocks that the snapshot no longer has, the size is the rounded request.
            assert_eq!(last.active_bytes, sum(&mut active.map(|block| block.size)), "{name}");
        }
    }
}

#[needs(shared_snapshots)]
#[test]
fn a_recording_from_the_start_has_pytorchs_peaks_but_for_what_blocks_are_larger() {
    for (name, snapshot, figures) in files::made() {
        let timeline = Timeline::of(&snapshot, 0);
        let stats = |key: &str| figures["stats"][key].as_u64().expect("a figure");
        assert_eq!(timeline.quality.held_before, 0, "{name}");
        assert_eq!(timeline.peak_reserved.level.reserved_bytes, stats("reserved_bytes.all.peak"), "{name}");
        let peak = stats("allocated_bytes.all.peak");
        let found = timeline.peak_allocated.level.allocated_bytes;
        assert!(found <= peak && found > peak - peak / 20, "{name}: {found} of {peak}");
    }
}

#[test]
fn what_is_freed_and_was_never_handed_out_was_held_before() {
    let timeline = of(&[
        event(Action::Alloc, 0x1000, 700),
        event(Action::FreeRequested, 0x8000, 5000),
        event(Action::FreeCompleted, 0x8000, 5000),
        event(Action::Alloc, 0x8000, 600),
        event(Action::FreeRequested, 0x8000, 600),
        event(Action::FreeCompleted, 0x8000, 600),
        event(Action::FreeRequested, 0x1000, 700),
        event(Action::FreeCompleted, 0x1000, 700),
    ]);
    assert_eq!(timeline.quality, Quality { events: 8, held_before: 1, ..Quality::default() });
    let held = |after| timeline.held_after(after).map(|life| life.addr.0).collect::<Vec<_>>();
    assert_eq!(held(None), [0x8000]);
    assert_eq!(held(EventIndex::new(0)), [0x8000, 0x1000]);
    assert_eq!(held(EventIndex::new(1)), [0x1000]);
    assert_eq!(held(EventIndex::new(3)), [0x1000, 0x8000]);
    assert_eq!(held(timeline.last()), [0; 0]);
    let peak = timeline.peak_allocated;
    assert_eq!((peak.after, peak.level.allocated_bytes), (EventIndex::new(0), 5120 + 1024));
}

#[test]
fn a_block_that_waits_for_a_stream_is_active_and_not_allocated() {
    let trace = [
        event(Action::FreeCompleted, 0x9000, 512), // it was waiting before the recording
        event(Action::Alloc, 0x1000, 512),
        event(Action::FreeRequested, 0x1000, 512),
        event(Action::Alloc, 0x2000, 512),
        event(Action::FreeCompleted, 0x1000, 512),
        event(Action::FreeRequested, 0x2000, 512),
        event(Action::FreeCompleted, 0x2000, 512),
    ];
    let timeline = of(&trace);
    assert_eq!(timeline.start.active_bytes, 512);
    let levels = timeline.curve(&trace).map(|it| (it.level.allocated_bytes, it.level.active_bytes));
    let expected = [(0, 0), (512, 512), (0, 512), (512, 1024), (512, 512), (0, 512), (0, 0)];
    assert_eq!(levels.collect::<Vec<_>>(), expected);
    assert_eq!((timeline.quality.conflicts(), timeline.waiting_before.len()), (0, 1));
}

#[test]
fn what_does_not_fit_is_counted_and_moves_no_other_figure() {
    let trace = [
        event(Action::Alloc, 0x1000, 512),
        event(Action::Alloc, 0x1000, 1024), // the free of the first block was not recorded
        event(Action::FreeRequested, 0x1000, 1024),
        event(Action::FreeCompleted, 0x1000, 1024),
        event(Action::FreeRequested, 0x1000, 1024), // freed twice
        event(Action::FreeCompleted, 0x1000, 1024),
        event(Action::Alloc, 0x3000, 512), // is not in the snapshot
        event(Action::SegmentFree, 0x20_0000, 0),
    ];
    let timeline = of(&trace);
    let expected =
        Quality { events: 8, lost_frees: 2, stray_frees: 2, stray_segments: 1, ..Quality::default() };
    assert_eq!(timeline.quality, expected);
    let allocated: Vec<_> = timeline.curve(&trace).map(|moment| moment.level.allocated_bytes).collect();
    assert_eq!(allocated, [512, 1024, 0, 0, 0, 0, 512, 512]);
    assert_eq!(timeline.lives[2].freed, EventIndex::new(8));
    assert_eq!(timeline.held_at_end().count(), 0);
}

#[test]
fn a_recorded_stack_without_its_event_is_of_an_earlier_recording_unless_the_ring_was_full() {
    let check = |stack, events: usize, expected| {
        let block = Block {
            address: Addr(0x1000),
            size: 512,
            requested_size: 100.into(),
            state: BlockState::ActiveAllocated,
            stack,
        };
        let segment = Segment {
            device: Some(0),
            address: Addr(0x1000),
            total_size: 512,
            allocated_size: None.into(),
            active_size: None.into(),
            requested_size: None.into(),
            stream: StreamId(0),
            segment_type: SegmentType::Small,
            pool: None,
            is_expandable: None,
            stack: None,
            blocks: vec![block],
        };
        let traces = vec![vec![Event::new(Action::Snapshot, Addr(0), 0, StreamId(0)); events]];
        let timeline = Timeline::of(&Snapshot { segments: vec![segment], traces, ..Snapshot::default() }, 0);
        let Quality { is_cut, is_restarted, held_before, .. } = timeline.quality;
        assert_eq!(((is_cut, is_restarted), held_before), (expected, 1), "{stack:?}");
    };
    for events in [123, 1000] {
        check(None, events, (false, false));
        check(Some(StackId::EMPTY), events, (false, false));
    }
    check(StackId::new(1), 123, (false, true));
    check(StackId::new(1), 1000, (true, false));
}

#[test]
fn empty_traces_and_unknown_devices_have_empty_timelines() {
    let timeline = of(&[]);
    assert_eq!((timeline.lives.len(), timeline.last(), timeline.peak_allocated.after), (0, None, None));
    let elsewhere = Timeline::of(&Snapshot::default(), 7);
    assert_eq!((elsewhere.device, elsewhere.quality), (7, Quality::default()));
}
