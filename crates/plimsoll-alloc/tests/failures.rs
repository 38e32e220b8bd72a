//! Device failures: every call that can fail fails once, with every kind of error, and the allocator stays usable.

use plimsoll_alloc::{
    Allocator, Config, DriverError, Error, FailNth, Ledger, OutOfMemory, Request, SimDriver, Stats, StreamId,
};

use crate::programs::slow::Slow;
use crate::programs::{MIB, Op, Run, assert_sound, program, program_with_uses};

type Walk = Run<FailNth<Slow>, (Stats, Ledger)>;

fn walk(options: &str, nth: u64, error: &DriverError) -> Walk {
    let driver = FailNth::new(Slow::with_capacity(96 * MIB), nth, error.clone());
    let config = Config::parse(options).unwrap().config;
    Run::new(Allocator::new(config, driver, Default::default()), 0)
}

#[test]
fn every_device_failure_leaves_a_consistent_state() {
    for options in ["", "expandable_segments:True", "max_split_size_mb:20,garbage_collection_threshold:0.5"] {
        for error in [DriverError::OutOfMemory, DriverError::Failed("unplugged".into())] {
            for seed in 0..3 {
                let plain = program(seed, 200);
                let ops = if seed == 0 { plain } else { program_with_uses(seed, 200) };
                let mut whole = walk(options, 0, &error);
                ops.iter().for_each(|&op| drop(whole.step(op)));
                let calls = whole.allocator.driver().calls();
                assert!(calls > 4, "the program makes {calls} device calls");
                for nth in 1..=calls {
                    fail_once(&ops, walk(options, nth, &error), &format!("{options} {error} {seed} {nth}"));
                }
            }
        }
    }
}

/// Runs a program in which one call fails; then all memory can be released, and the next request works.
fn fail_once(ops: &[Op], mut run: Walk, at: &str) {
    for (step, &op) in ops.iter().enumerate() {
        drop(run.step(op));
        assert_sound(&run.allocator, &format!("{at}, step {step}: {op:?}"));
    }
    run.step(Op::Limit { bytes: None }).unwrap();
    while !run.live.is_empty() {
        run.step(Op::Free { nth: 0 }).unwrap();
    }
    // The injected failure may come only now, in the release itself.
    let _ = run.allocator.empty_cache();
    run.allocator.empty_cache().unwrap();
    assert_sound(&run.allocator, at);
    assert_eq!(run.allocator.reserved(), 0, "{at}: all memory can be released");
    let request = Op::Alloc { bytes: 80 * MIB, stream: 0 };
    assert_eq!(run.step(request).map(|addr| addr.is_some()), Ok(true), "{at}: the next request works");
}

#[test]
fn an_event_that_cannot_be_recorded_is_recorded_before_the_next_request() {
    let driver = FailNth::new(SimDriver::with_capacity(64 * MIB), 2, DriverError::Failed("busy".into()));
    let mut allocator = Allocator::new(Config::default(), driver, ());
    let x = allocator.malloc(Request::of(3 * MIB)).unwrap();
    let addr = x.addr();
    allocator.record_stream(&x, StreamId(1));
    allocator.free(x);
    allocator.check().unwrap();
    let y = allocator.malloc(Request::of(3 * MIB)).unwrap();
    assert_eq!(y.addr(), addr, "recorded, done, and free again");
    allocator.free(y);
}

#[test]
fn a_failed_segment_allocation_is_retried_once() {
    let driver = FailNth::new(SimDriver::with_capacity(64 * MIB), 1, DriverError::OutOfMemory);
    let mut allocator = Allocator::new(Config::default(), driver, Stats::default());
    let x = allocator.malloc(Request::of(1)).unwrap();
    let stats = allocator.observer();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams), (1, 0, 1));
    allocator.free(x);
}

#[test]
fn a_failure_other_than_out_of_memory_reaches_the_caller_at_once() {
    let failed = DriverError::Failed("unplugged".into());
    let driver = FailNth::new(SimDriver::with_capacity(64 * MIB), 1, failed.clone());
    let mut allocator = Allocator::new(Config::default(), driver, Stats::default());
    assert_eq!(allocator.malloc(Request::of(1)), Err(Error::Driver(failed)));
    assert_eq!(allocator.observer(), &Stats::default());
}

#[test]
fn a_segment_that_the_device_fails_to_free_stays_usable() {
    let driver = FailNth::new(SimDriver::with_capacity(64 * MIB), 2, DriverError::Failed("busy".into()));
    let mut allocator = Allocator::new(Config::default(), driver, Stats::default());
    let x = allocator.malloc(Request::of(12 * MIB)).unwrap();
    let addr = x.addr();
    allocator.free(x);
    assert_eq!(allocator.empty_cache(), Err(Error::Driver(DriverError::Failed("busy".into()))));
    assert_eq!(allocator.reserved(), 12 * MIB);
    let again = allocator.malloc(Request::of(12 * MIB)).unwrap();
    assert_eq!(again.addr(), addr);
    allocator.free(again);
    assert_eq!(allocator.empty_cache(), Ok(12 * MIB));
}

#[test]
fn the_out_of_memory_error_has_every_figure() {
    let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 * MIB), ());
    allocator.set_memory_limit(Some(50 * MIB));
    let x = allocator.malloc(Request::of(30 * MIB - 100)).unwrap();
    let y = allocator.malloc(Request::of(3 * MIB)).unwrap();
    let Err(Error::OutOfMemory(why)) = allocator.malloc(Request::of(17 * MIB + 1)) else {
        panic!("it fits?")
    };
    let OutOfMemory { requested_bytes, rounded_bytes, segment_bytes, .. } = *why;
    assert_eq!((requested_bytes, rounded_bytes, segment_bytes), (17 * MIB + 1, 17 * MIB + 512, 18 * MIB));
    assert_eq!(
        (why.allocated_bytes, why.reserved_bytes, why.limit_bytes),
        (33 * MIB, 50 * MIB, Some(50 * MIB))
    );
    assert_eq!((why.device_free_bytes, why.device_total_bytes), (14 * MIB, 64 * MIB));
    assert_eq!((why.largest_free_block_bytes, why.by_category.total()), (17 * MIB, 33 * MIB));
    assert_eq!(
        why.to_string(),
        "out of memory: asked for 17.00 MiB (a 18.00 MiB segment); 33.00 MiB allocated of 50.00 MiB reserved, \
         largest free block 17.00 MiB; limited to 50.00 MiB; the device has 14.00 MiB of 64.00 MiB free; \
         held by: temporaries 33.00 MiB"
    );
    allocator.free(x);
    allocator.free(y);
    let fits = allocator.malloc(Request::of(17 * MIB + 1)).unwrap();
    assert_eq!(allocator.reserved(), 50 * MIB, "a cached 30 MiB segment was split, none was allocated");
    allocator.free(fits);
}

#[test]
fn an_exbibyte_is_refused_immediately() {
    let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 * MIB), Vec::new());
    assert_eq!(allocator.malloc(Request::of(1 << 60)), Err(Error::TooLarge { requested_bytes: 1 << 60 }));
    assert_eq!(allocator.observer(), &[]);
    assert!(matches!(allocator.malloc(Request::of((1 << 60) - 1)), Err(Error::OutOfMemory(_))));
}
