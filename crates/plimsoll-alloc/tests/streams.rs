//! Blocks used on several streams: specification 14.2, and a model that says when memory may be reused.

use plimsoll_alloc::{Allocator, Config, Request, Stats, StreamId};

use crate::clockwork::{Clockwork, World};
use crate::trace::MIB;

#[test]
fn a_block_used_on_a_busy_stream_is_active_until_the_stream_is_done() {
    let mut a = Allocator::new(
        Config::default(),
        Clockwork::with_capacity(1024 * MIB),
        (Stats::default(), Vec::new()),
    );
    let state = |a: &Allocator<Clockwork, (Stats, Vec<plimsoll_alloc::Event>)>| {
        let stats = &a.observer().0;
        a.check().unwrap();
        stats.check(&a.segments()).unwrap();
        let all =
            [stats.allocated_bytes(), stats.active_bytes(), stats.requested_bytes(), stats.inactive_split()];
        all.map(|stat| stat.all.current)
    };
    let x = a.malloc(Request::of(3 * MIB)).unwrap();
    let base = x.addr();
    a.driver_mut().submit(StreamId(2));
    a.record_stream(&x, StreamId(2));
    a.free(x);
    assert_eq!(state(&a), [0, 3_145_728, 3_145_728, 1]);
    let y = a.malloc(Request::of(3 * MIB)).unwrap();
    assert_eq!(y.addr().0, base.0 + 3 * MIB);
    assert_eq!(state(&a), [3_145_728, 6_291_456, 6_291_456, 1]);
    a.driver_mut().finish(StreamId(2));
    let z = a.malloc(Request::of(3 * MIB)).unwrap();
    assert_eq!(z.addr(), base);
    assert_eq!(state(&a), [6_291_456, 6_291_456, 6_291_456, 1]);
    let names = a.observer().1.iter().map(|event| match event {
        plimsoll_alloc::Event::SegmentAlloc { .. } => "segment_alloc",
        plimsoll_alloc::Event::Alloc { .. } => "alloc",
        plimsoll_alloc::Event::Free { .. } => "free_requested",
        plimsoll_alloc::Event::FreeCompleted { .. } => "free_completed",
        _ => "other",
    });
    let expected = ["segment_alloc", "alloc", "free_requested", "alloc", "free_completed", "alloc"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    a.free(y);
    a.free(z);
}

#[test]
fn a_use_on_the_blocks_own_stream_changes_nothing_and_a_repeated_one_costs_one_event() {
    let mut a = Allocator::new(Config::default(), Clockwork::with_capacity(64 * MIB), ());
    let x = a.malloc(Request::of(MIB)).unwrap();
    a.record_stream(&x, StreamId(0));
    a.free(x);
    assert_eq!(a.driver().events_recorded(), []);
    let x = a.malloc(Request::of(MIB)).unwrap();
    for stream in [3, 1, 3, 2, 1] {
        a.record_stream(&x, StreamId(stream));
    }
    a.free(x);
    assert_eq!(a.driver().events_recorded(), [1, 2, 3].map(StreamId), "by stream id");
}

/// PyTorch's `test_caching_allocator_record_stream_oom`: a request waits for pending blocks before it fails.
#[test]
fn a_pending_block_is_waited_for_before_a_request_fails() {
    let mut a = Allocator::new(Config::default(), Clockwork::with_capacity(64 * MIB), Stats::default());
    let x = a.malloc(Request::of(60 * MIB)).unwrap();
    a.driver_mut().submit(StreamId(1));
    a.record_stream(&x, StreamId(1));
    a.free(x);
    let y = a.malloc(Request::of(50 * MIB)).unwrap();
    assert_eq!((a.observer().num_alloc_retries, a.observer().num_sync_all_streams), (1, 1));
    a.free(y);
}

/// Specification 13-A: the one deliberate difference, behind an option that is off by default.
#[test]
fn a_block_freed_by_the_release_is_found_only_with_the_option() {
    let fail_and_try_again = |again| {
        let config = Config::default().with_search_again_after_release(again);
        let mut a = Allocator::new(config, Clockwork::with_capacity(20 * MIB), Stats::default());
        let keep = a.malloc(Request::of(5 * MIB)).unwrap();
        let x = a.malloc(Request::of(8 * MIB)).unwrap();
        let rest = a.malloc(Request::of(7 * MIB)).unwrap();
        a.driver_mut().submit(StreamId(1));
        a.record_stream(&x, StreamId(1));
        a.free(x);
        let first = a.malloc(Request::of(8 * MIB)).is_ok();
        let second = a.malloc(Request::of(8 * MIB)).is_ok();
        a.free(keep);
        a.free(rest);
        (first, second, a.observer().num_alloc_retries, a.observer().num_ooms)
    };
    assert_eq!(fail_and_try_again(false), (false, true, 1, 1), "as PyTorch");
    assert_eq!(fail_and_try_again(true), (true, false, 2, 1), "found at once; the second has no block left");
}

#[test]
fn uses_within_a_capture_wait_for_its_end_and_need_no_event() {
    let mut a = Allocator::new(Config::default(), Clockwork::with_capacity(64 * MIB), ());
    let (x, y) = (a.malloc(Request::of(MIB)).unwrap(), a.malloc(Request::of(MIB)).unwrap());
    let addr = x.addr();
    a.record_stream(&y, StreamId(1));
    a.begin_capture();
    a.record_stream(&x, StreamId(2));
    a.record_stream(&y, StreamId(2));
    a.free(x);
    a.free(y);
    a.check().unwrap();
    let z = a.malloc(Request::of(MIB)).unwrap();
    assert_ne!(z.addr(), addr, "nothing is reused during the capture");
    a.end_capture();
    let fits_better = a.malloc(Request::of(MIB)).unwrap(); // the rest of z's segment
    let w = a.malloc(Request::of(MIB)).unwrap();
    assert_eq!(w.addr(), addr);
    assert_eq!(a.driver().events_recorded(), [StreamId(1)], "only for the use before the capture");
    a.check().unwrap();
    [fits_better, z, w].into_iter().for_each(|block| a.free(block));
}

/// Every program of six steps over nine kinds of step, on a device of two small segments and two streams besides the
/// block's own. The model records which work uses which memory, and fails if memory is reused before that work is done.
#[test]
fn no_short_program_reuses_a_block_early() {
    let mut programs = 0;
    for number in 0..World::STEPS.pow(6) {
        let steps: Vec<u64> = (0..6).map(|place| number / World::STEPS.pow(place) % World::STEPS).collect();
        let mut world = World::new();
        for &step in &steps {
            world.step(step).unwrap_or_else(|why| panic!("{why}, in {steps:?}"));
        }
        world.finish_everything();
        programs += 1;
    }
    assert_eq!(programs, 531_441);
}
