//! Placement, compared with a naive allocator that implements the same rules as simply as possible: long random
//! programs, and all short programs of a small world.

use std::collections::BTreeMap;

use plimsoll_alloc::{Allocator, Config, Error, Event, Ledger, Request, SimDriver, Stats, Tag};

use crate::naive::Naive;
use crate::programs::{MIB, Op, Run, assert_sound, program, program_with_uses};

fn run(capacity_bytes: u64, tag_seed: u64) -> Run<SimDriver, (Stats, Ledger)> {
    let driver = SimDriver::with_capacity(capacity_bytes);
    Run::new(Allocator::new(Config::default(), driver, Default::default()), tag_seed)
}

/// The address, or `None` if the request ran out of memory.
fn answer(result: Result<Option<u64>, Error>) -> Option<u64> {
    match result {
        Ok(addr) => addr,
        Err(Error::OutOfMemory(_)) => None,
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn placement_agrees_with_the_naive_allocator_at_every_step() {
    let mut refused = 0;
    for seed in 0..60 {
        let (mut ours, mut naive) = (run(128 * MIB, seed), Naive::new(128 * MIB));
        for (nth, op) in program(seed, 600).into_iter().enumerate() {
            let (got, expected) = (answer(ours.step(op)), naive.step(op));
            assert_eq!(got, expected, "seed {seed}, step {nth}: {op:?}");
            assert_eq!(ours.allocator.reserved(), naive.reserved(), "seed {seed}, step {nth}: {op:?}");
            refused += u64::from(matches!(op, Op::Alloc { .. }) && got.is_none());
        }
    }
    assert!(refused > 100, "the programs should run out of memory often, and did {refused} times");
}

#[test]
fn state_statistics_and_ledger_are_consistent_after_every_step() {
    for seed in 100..120 {
        let mut ours = run(128 * MIB, seed);
        for (nth, op) in program(seed, 400).into_iter().enumerate() {
            answer(ours.step(op));
            let at = format!("seed {seed}, step {nth}: {op:?}");
            assert_sound(&ours.allocator, &at);
            let (stats, ledger) = ours.allocator.observer();
            assert_eq!(ledger.peak_bytes() as i64, stats.allocated_bytes().all.peak, "{at}");
            assert_eq!(ledger.by_category_at_peak().total(), ledger.peak_bytes(), "{at}");
        }
    }
}

#[test]
fn tags_never_affect_an_address() {
    for seed in 0..20 {
        let (mut one, mut other) = (run(128 * MIB, 1), run(128 * MIB, 2));
        for op in program(seed, 400) {
            assert_eq!(answer(one.step(op)), answer(other.step(op)), "seed {seed}: {op:?}");
        }
        assert_eq!(one.allocator.observer().0, other.allocator.observer().0, "seed {seed}: statistics");
        assert_ne!(one.allocator.segments(), other.allocator.segments(), "seed {seed}: the tags do differ");
    }
}

/// Replaying a trace of requests and frees gives the same trace. So nothing else affects addresses.
#[test]
fn a_replayed_trace_gives_the_same_trace() {
    for seed in 200..220 {
        let ops = program(seed, 400);
        let only = |op: &Op| matches!(op, Op::Alloc { .. } | Op::Free { .. });
        let driver = || SimDriver::with_capacity(1 << 40);
        let mut ours = Run::new(Allocator::new(Config::default(), driver(), Vec::new()), 1);
        for &op in ops.iter().filter(|op| only(op)) {
            answer(ours.step(op));
        }
        let mut again = Allocator::new(Config::default(), driver(), Vec::new());
        let mut live = BTreeMap::new();
        for event in ours.allocator.observer() {
            match *event {
                Event::Alloc { block, .. } => {
                    let Tag { category, label } = block.tag;
                    let (bytes, stream) = (block.requested_bytes, block.stream);
                    let request = Request { stream, category, label, ..Request::of(bytes) };
                    let allocation = again.malloc(request);
                    live.insert(block.addr, allocation.expect("there is room, as there was"));
                }
                Event::Free { block, .. } => {
                    again.free(live.remove(&block.addr).expect("each lands where it landed"));
                }
                _ => {}
            }
        }
        assert_eq!(again.observer(), ours.allocator.observer(), "seed {seed}");
    }
}

/// Runs with every kind of option, and with blocks used on several streams.
#[test]
fn the_state_is_consistent_after_every_step_under_every_option() {
    let options = [
        "expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:20,expandable_segments_reserve:0.4",
        "max_split_size_mb:20,max_non_split_rounding_mb:25",
        "roundup_power2_divisions:[1:4,4:2,>:8],large_segment_size_mb:12",
        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.7",
        "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.9",
    ];
    for (seed, options) in (300..).zip(options) {
        let config = Config::parse(options).expect("PyTorch takes these options").config;
        let observer = (Stats::new(&config), Ledger::default());
        let allocator = Allocator::new(config, SimDriver::with_capacity(128 * MIB), observer);
        let mut ours = Run::new(allocator, seed);
        for (nth, op) in program_with_uses(seed, 1500).into_iter().enumerate() {
            match ours.step(op) {
                Ok(_) | Err(Error::OutOfMemory(_) | Error::Rejected { .. }) => {}
                Err(why) => panic!("{options}, step {nth}, {op:?}: {why}"),
            }
            assert_sound(&ours.allocator, &format!("{options}, step {nth}, {op:?}"));
        }
    }
}

/// Every program of six steps over seven kinds of step, on a device of 24 MiB: 137,256 programs, each
/// prefix checked once.
#[test]
fn every_short_program_of_a_small_world_agrees_with_the_naive_allocator() {
    const STEPS: [Op; 7] = [
        Op::Alloc { bytes: 300, stream: 0 },
        Op::Alloc { bytes: MIB, stream: 0 },
        Op::Alloc { bytes: 2 * MIB, stream: 0 },
        Op::Alloc { bytes: 10 * MIB, stream: 0 },
        Op::Free { nth: 0 },
        Op::Free { nth: 1 },
        Op::EmptyCache,
    ];
    let mut programs = 0;
    for length in 1..=6 {
        for number in 0..7_usize.pow(length) {
            let ops = (0..length).map(|place| STEPS[number / 7_usize.pow(place) % 7]);
            let (mut ours, mut naive) = (run(24 * MIB, 0), Naive::new(24 * MIB));
            for op in ops.clone() {
                let (got, expected) = (answer(ours.step(op)), naive.step(op));
                assert_eq!(got, expected, "{op:?} of {:?}", ops.collect::<Vec<_>>());
            }
            assert_eq!(ours.allocator.reserved(), naive.reserved(), "{:?}", ops.collect::<Vec<_>>());
            ours.allocator.check().unwrap_or_else(|broken| panic!("{broken}: {:?}", ops.collect::<Vec<_>>()));
            programs += 1;
        }
    }
    assert_eq!(programs, 137_256);
}
