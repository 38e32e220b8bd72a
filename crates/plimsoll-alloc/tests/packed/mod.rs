//! The packed policy: no two blocks share physical memory, reserved memory is used or free, repeated steps make no
//! device calls, and each device failure leaves a consistent state.

mod physical;

use std::collections::BTreeMap;

use plimsoll_alloc::{
    Driver, DriverError, Error, FailNth, PackedAllocation, PackedAllocator, Request, SimDriver, Stats,
    StreamId,
};

use crate::programs::{MIB, Op, Random, program, program_with_uses};
use physical::Physical;

/// An allocator with its live blocks, the oldest first.
struct Run<D> {
    allocator: PackedAllocator<D, Stats>,
    live: Vec<PackedAllocation>,
}

impl<D: Driver> Run<D> {
    fn new(driver: D) -> Self {
        Self { allocator: PackedAllocator::new(driver, Stats::default()), live: Vec::new() }
    }

    /// Runs one step. Returns whether it succeeded.
    fn step(&mut self, op: Op) -> Result<(), Error> {
        let live = self.live.len();
        match op {
            Op::Alloc { bytes, stream } => {
                let request = Request { stream: StreamId(stream), ..Request::of(bytes) };
                self.live.push(self.allocator.malloc(request)?);
            }
            Op::Free { nth } if live > 0 => {
                let block = self.live.remove(nth % live);
                self.allocator.free(block);
            }
            Op::Use { nth, stream } if live > 0 => {
                self.allocator.record_stream(&self.live[nth % live], StreamId(stream));
            }
            Op::EmptyCache => drop(self.allocator.empty_cache()?),
            _ => {}
        }
        Ok(())
    }

    fn check(&self, at: &str) {
        self.allocator.check().unwrap_or_else(|broken| panic!("{at}: {broken}"));
        let (stats, reserved) = (self.allocator.observer(), self.allocator.reserved());
        assert_eq!(stats.reserved_bytes().all.current as u64, reserved, "{at}");
        let live_bytes: u64 = self.live.iter().map(PackedAllocation::bytes).sum();
        assert_eq!(stats.allocated_bytes().all.current as u64, live_bytes, "{at}");
    }
}

/// No byte of physical memory belongs to two live blocks.
fn assert_apart(run: &Run<Physical>, at: &str) {
    let driver = run.allocator.driver();
    let mut taken = BTreeMap::new();
    for block in &run.live {
        assert!(block.addr().0.is_multiple_of(512), "{at}: a block begins at {}", block.addr());
        for (first, bytes) in driver.parts(block.addr(), block.bytes()) {
            assert!(taken.insert(first, bytes).is_none(), "{at}: two blocks begin at byte {first:?}");
        }
    }
    let parts: Vec<_> = taken.into_iter().collect();
    for pair in parts.windows(2) {
        let [((page, start), bytes), ((next_page, next), _)] = pair else { continue };
        assert!(page != next_page || start + bytes <= *next, "{at}: {pair:?} overlap");
    }
}

#[test]
fn no_two_live_blocks_share_a_byte_of_physical_memory() {
    let mut stitches = 0;
    for seed in 0..40 {
        let mut run = Run::new(Physical::with_capacity(160 * MIB));
        let ops = if seed % 2 == 0 { program(seed, 400) } else { program_with_uses(seed, 400) };
        for (step, &op) in ops.iter().enumerate() {
            run.allocator.driver_mut().is_pending = step / 50 % 2 == 1;
            let at = format!("seed {seed}, step {step}: {op:?}");
            match run.step(op) {
                Ok(()) | Err(Error::OutOfMemory(_)) => {}
                Err(why) => panic!("{at}: {why}"),
            }
            run.check(&at);
            assert_apart(&run, &at);
        }
        stitches += run.allocator.calls().stitches;
        run.live.drain(..).for_each(|block| run.allocator.free(block));
        run.allocator.empty_cache().unwrap();
        assert_eq!(run.allocator.reserved(), 0, "seed {seed}: all memory can be returned");
        assert_eq!(run.allocator.driver().memory().free_bytes, 160 * MIB);
    }
    assert!(stitches > 100, "{stitches} blocks were stitched");
}

#[test]
fn every_device_failure_leaves_a_consistent_state() {
    for error in [DriverError::OutOfMemory, DriverError::Failed("unplugged".into())] {
        for seed in 0..3 {
            let ops = program_with_uses(seed, 150);
            let walk = |nth| {
                let mut run = Run::new(FailNth::new(SimDriver::with_capacity(96 * MIB), nth, error.clone()));
                for (step, &op) in ops.iter().enumerate() {
                    drop(run.step(op));
                    run.check(&format!("{error}, seed {seed}, call {nth}, step {step}: {op:?}"));
                }
                run
            };
            for nth in 1..=walk(0).allocator.driver().calls() {
                let mut run = walk(nth);
                run.live.drain(..).for_each(|block| run.allocator.free(block));
                // The injected failure may occur only now.
                drop(run.allocator.empty_cache());
                run.allocator.empty_cache().unwrap();
                assert_eq!(run.allocator.reserved(), 0, "{error}, seed {seed}, call {nth}");
                let next = run.allocator.malloc(Request::of(80 * MIB));
                assert!(next.is_ok(), "{error}, seed {seed}, call {nth}: the next request works");
            }
        }
    }
}

#[test]
fn repeated_steps_make_no_device_calls() {
    for seed in 0..10 {
        let mut run = Run::new(SimDriver::with_capacity(1 << 40));
        let mut calls = Vec::new();
        for _step in 0..6 {
            let (mut random, before) = (Random::new(seed), run.allocator.calls().total());
            for _ in 0..300 {
                let bytes = 1 + random.below(40 * MIB);
                let op = if random.below(5) < 3 {
                    Op::Alloc { bytes, stream: 0 }
                } else {
                    Op::Free { nth: random.next() as usize }
                };
                run.step(op).unwrap();
            }
            run.live.drain(..).for_each(|block| run.allocator.free(block));
            calls.push(run.allocator.calls().total() - before);
        }
        assert_eq!(calls[5], 0, "seed {seed}: calls of each step: {calls:?}");
    }
}

#[test]
fn memory_grows_only_by_the_pages_that_are_missing() {
    let mut run = Run::new(SimDriver::with_capacity(1 << 40));
    for _ in 0..8 {
        run.step(Op::Alloc { bytes: 3 * MIB, stream: 0 }).unwrap();
    }
    assert_eq!(run.allocator.reserved(), 24 * MIB);
    for nth in [0, 1, 2] {
        run.step(Op::Free { nth }).unwrap();
    }
    // Gaps of 3 MiB at 0, 6 and 12 MiB: three whole pages and an end of 1 MiB are usable, and one page is missing.
    run.step(Op::Alloc { bytes: 9 * MIB, stream: 0 }).unwrap();
    assert_eq!(run.allocator.reserved(), 26 * MIB);
    run.check("at the end");
}

#[test]
fn a_freed_block_that_another_stream_uses_is_not_reused_before_that_stream_is_done() {
    let mut run = Run::new(Physical::with_capacity(16 * MIB));
    run.step(Op::Alloc { bytes: 8 * MIB, stream: 0 }).unwrap();
    run.step(Op::Use { nth: 0, stream: 1 }).unwrap();
    run.allocator.driver_mut().is_pending = true;
    run.step(Op::Free { nth: 0 }).unwrap();
    run.step(Op::Alloc { bytes: 8 * MIB, stream: 0 }).unwrap();
    assert_eq!(run.allocator.reserved(), 16 * MIB);
    // Out of memory, so the allocator waits for the first block.
    run.step(Op::Alloc { bytes: 8 * MIB, stream: 0 }).unwrap();
    assert_eq!(run.allocator.reserved(), 16 * MIB);
}

#[test]
fn free_pages_of_another_stream_are_taken_when_the_device_is_full() {
    let mut run = Run::new(SimDriver::with_capacity(32 * MIB));
    run.step(Op::Alloc { bytes: 30 * MIB, stream: 0 }).unwrap();
    run.step(Op::Free { nth: 0 }).unwrap();
    run.step(Op::Alloc { bytes: 20 * MIB, stream: 1 }).unwrap();
    assert_eq!((run.allocator.reserved(), run.allocator.calls().unmapped_pages), (30 * MIB, 10));
    let Err(Error::OutOfMemory(why)) = run.step(Op::Alloc { bytes: 20 * MIB, stream: 2 }) else {
        panic!("only 12 MiB are left")
    };
    assert_eq!((why.allocated_bytes, why.segment_bytes), (20 * MIB, 20 * MIB));
    run.check("at the end");
}

#[test]
fn a_request_larger_than_the_device_maps_nothing() {
    let mut run = Run::new(SimDriver::with_capacity(32 * MIB));
    assert!(matches!(run.step(Op::Alloc { bytes: (1 << 60) - 1, stream: 0 }), Err(Error::OutOfMemory(_))));
    assert!(matches!(run.step(Op::Alloc { bytes: 1 << 60, stream: 0 }), Err(Error::TooLarge { .. })));
    assert_eq!((run.allocator.reserved(), run.allocator.calls().maps), (0, 0));
}
