//! Random programs on the allocator and on the naive model must give the same addresses and the same bytes after each step.

use plimsoll_alloc::{
    Addr, DeviceStream, PinnedAllocation, PinnedAllocator, PinnedConfig, PinnedRequest, PinnedStats, SimHost,
    StreamId,
};

use super::naive::Naive;

const MIB: u64 = 1 << 20;

/// Pseudo-random numbers: xorshift.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn stream(nth: u64) -> DeviceStream {
    DeviceStream { device: nth as u32 % 2, stream: StreamId(nth / 2) }
}

/// Runs one random program of `steps` steps, and compares after each.
fn compare(seed: u64, round_threshold_bytes: Option<u64>, max_cached_bytes: Option<u64>, steps: usize) {
    let config = PinnedConfig::default().with_max_round_threshold_bytes(round_threshold_bytes).unwrap();
    let config = config.with_max_cached_bytes(max_cached_bytes).unwrap();
    let mut host = SimHost::with_capacity(u64::MAX >> 1);
    (0..4).for_each(|nth| host.hold(stream(nth)));
    let mut pinned = PinnedAllocator::new(config, host, PinnedStats::default());
    let most = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
    let mut naive = Naive::new(most(round_threshold_bytes), most(max_cached_bytes));
    let mut live: Vec<PinnedAllocation> = Vec::new();
    let mut dice = Dice(seed + 1);
    for step in 0..steps {
        let nth = dice.below(live.len().max(1) as u64) as usize;
        match dice.below(20) {
            0..7 => {
                let bytes = 1 + (dice.below(5 * MIB) >> dice.below(20));
                let block = pinned.alloc(PinnedRequest::of(bytes)).unwrap();
                assert_eq!(block.addr(), naive.alloc(bytes), "seed {seed} step {step}: {bytes} bytes");
                live.push(block);
            }
            7..11 if !live.is_empty() => {
                let on = stream(dice.below(4));
                assert!(pinned.record_event(live[nth].addr(), on));
                naive.use_on(live[nth].addr(), on);
            }
            11..17 if !live.is_empty() => {
                let block = live.swap_remove(nth);
                naive.free(block.addr());
                pinned.free(block).unwrap();
            }
            17..19 => {
                let on = stream(dice.below(4));
                pinned.driver_mut().finish(on, 1);
                naive.finish(on);
            }
            19 if dice.below(4) == 0 => {
                pinned.empty_cache().unwrap();
                naive.empty_cache();
            }
            _ => {}
        }
        pinned.check().unwrap();
        pinned.observer().check(&pinned.segments()).unwrap();
        let stats = pinned.observer();
        let bytes = (stats.active_bytes().current as u64, stats.allocated_bytes.current as u64);
        assert_eq!(bytes, naive.active_and_all_bytes(), "seed {seed} step {step}");
        assert_eq!(pinned.driver().pinned_bytes(), bytes.1, "seed {seed} step {step}");
    }
}

#[test]
fn random_programs_agree_with_the_naive_allocator() {
    for seed in 0..60 {
        compare(seed, None, None, 400);
        compare(seed, Some(MIB), None, 400);
        compare(seed, None, Some(MIB), 400);
        compare(seed, Some(2 * MIB), Some(3 * MIB), 400);
    }
}

#[test]
fn a_use_of_foreign_memory_is_ignored() {
    let mut pinned = PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(MIB), ());
    let block = pinned.alloc(PinnedRequest::of(100)).unwrap();
    assert!(!pinned.record_event(Addr(12), stream(0)));
    assert!(!pinned.record_event(Addr(block.addr().0 + 1), stream(0)));
    pinned.free(block).unwrap();
}

#[test]
#[should_panic(expected = "a use of 0x100000000000 after its free")]
fn a_use_after_the_free_is_a_bug_of_the_caller() {
    let mut pinned = PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(MIB), ());
    let block = pinned.alloc(PinnedRequest::of(100)).unwrap();
    let addr = block.addr();
    pinned.free(block).unwrap();
    pinned.record_event(addr, stream(0));
}
