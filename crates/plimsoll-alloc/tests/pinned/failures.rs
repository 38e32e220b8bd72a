//! A driver that fails at each of its calls in turn: the state stays consistent, the next request works, and all
//! memory is freed in the end, except retired blocks.

use plimsoll_alloc::{
    DeviceStream, DriverError, PinnedAllocation, PinnedAllocator, PinnedConfig, PinnedError, PinnedRequest,
    PinnedState, PinnedStats, SimHost, StreamId,
};

use super::fallible::Fallible;

type Pinned = PinnedAllocator<Fallible, PinnedStats>;

const MIB: u64 = 1 << 20;
const STREAMS: [DeviceStream; 2] =
    [DeviceStream { device: 0, stream: StreamId(1) }, DeviceStream { device: 1, stream: StreamId(1) }];

fn failing_at(nth: u64, config: PinnedConfig) -> Pinned {
    let mut host = SimHost::with_capacity(64 * MIB);
    STREAMS.iter().for_each(|&on| host.hold(on));
    PinnedAllocator::new(config, Fallible { host, nth, calls: 0 }, PinnedStats::default())
}

fn check(pinned: &Pinned) {
    pinned.check().unwrap();
    pinned.observer().check(&pinned.segments()).unwrap();
}

/// A program with requests, uses on one and two streams, frees, releases of the cache, and events that are done late.
fn program(pinned: &mut Pinned) {
    let mut live: Vec<PinnedAllocation> = Vec::new();
    for round in 0..6_u64 {
        for bytes in [100, 3000, MIB, 3 * MIB + round] {
            live.extend(pinned.alloc(PinnedRequest::of(bytes)));
            check(pinned);
        }
        for (nth, block) in live.drain(..).enumerate() {
            for on in &STREAMS[..nth % 3] {
                assert!(pinned.record_event(block.addr(), *on));
            }
            drop(pinned.free(block));
            check(pinned);
        }
        STREAMS.iter().for_each(|&on| pinned.driver_mut().host.finish(on, round as usize % 3));
        if round % 2 == 1 {
            drop(pinned.empty_cache());
            check(pinned);
        }
    }
}

/// Runs the program once for each call, with a failure at that call, and then without failures. No memory may be lost.
fn walk(config: PinnedConfig) {
    let mut whole = failing_at(0, config);
    program(&mut whole);
    let calls = whole.driver().calls;
    assert!(calls > 50, "a program of {calls} calls shows little");
    for nth in 1..=calls {
        let mut pinned = failing_at(nth, config);
        program(&mut pinned);
        STREAMS.iter().for_each(|&on| pinned.driver_mut().host.finish(on, usize::MAX));
        let block = pinned.alloc(PinnedRequest::of(1)).unwrap();
        pinned.free(block).unwrap();
        pinned.empty_cache().unwrap();
        check(&pinned);
        let left = pinned.segments();
        assert!(left.len() <= 1, "call {nth} lost {left:?}");
        assert!(left.iter().all(|block| block.state == PinnedState::Retired), "call {nth}: {left:?}");
    }
}

#[test]
fn a_failure_at_any_call_loses_no_memory() {
    walk(PinnedConfig::default());
}

#[test]
fn a_failure_at_any_call_loses_no_memory_where_large_blocks_are_not_cached() {
    walk(PinnedConfig::default().with_max_cached_bytes(Some(MIB)).unwrap());
}

#[test]
fn pinning_a_reserve_is_retried() {
    let mut pinned = failing_at(1, PinnedConfig::default().with_reserve_segment_bytes(MIB).unwrap());
    let why = PinnedError::Driver(DriverError::Failed("injected".into()));
    assert_eq!(pinned.alloc(PinnedRequest::of(100)), Err(why));
    check(&pinned);
    let block = pinned.alloc(PinnedRequest::of(100)).unwrap();
    assert_eq!(pinned.driver().host.pinned_bytes(), MIB);
    pinned.free(block).unwrap();
}

#[test]
fn the_out_of_memory_error_has_the_figures_of_the_host() {
    let mut pinned = failing_at(0, PinnedConfig::default());
    let held = pinned.alloc(PinnedRequest::of(32 * MIB)).unwrap();
    let cached = pinned.alloc(PinnedRequest::of(16 * MIB)).unwrap();
    pinned.free(cached).unwrap();
    let full =
        PinnedError::OutOfMemory { asked_bytes: 32 * MIB, active_bytes: 32 * MIB, cached_bytes: 16 * MIB };
    assert_eq!(pinned.alloc(PinnedRequest::of(17 * MIB)), Err(full));
    let requested_bytes = (1 << 63) + 1;
    let too_large = PinnedError::TooLarge { requested_bytes };
    assert_eq!(pinned.alloc(PinnedRequest::of(requested_bytes)), Err(too_large));
    check(&pinned);
    pinned.free(held).unwrap();
}
