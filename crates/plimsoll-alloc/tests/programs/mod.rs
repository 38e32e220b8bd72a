//! Random programs of requests, and how to run them, for the property tests.

#![allow(dead_code, reason = "the fuzzers and the recorder of plimsoll-trace use a part")]

pub(crate) mod slow;

use plimsoll_alloc::{
    Allocation, Allocator, Category, Driver, Error, LabelId, Ledger, Observer, Request, Stats, StreamId, Tag,
};

pub(crate) const MIB: u64 = 1 << 20;

/// One step of a program. Live blocks are named by their age: 0 is the oldest.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Alloc {
        bytes: u64,
        stream: u64,
    },
    Free {
        nth: usize,
    },
    Retag {
        nth: usize,
    },
    EmptyCache,
    Limit {
        bytes: Option<u64>,
    },
    /// Another stream also uses a live block. Only in [`program_with_uses`].
    Use {
        nth: usize,
        stream: u64,
    },
}

/// SplitMix64: pseudo-random numbers, the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A size from 0 to about 32 MiB, all magnitudes equally likely, including the limits in the allocator's rules.
    pub(crate) fn bytes(&mut self) -> u64 {
        const EDGES: [u64; 8] = [0, 1, 512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 11 * MIB];
        match self.below(10) {
            0 => EDGES[self.below(8) as usize],
            1 => 512 * self.below(4),
            _ => {
                let magnitude = 1 << self.below(25);
                magnitude + self.below(magnitude)
            }
        }
    }

    fn tag(&mut self) -> Tag {
        Tag { category: Category::ALL[self.below(8) as usize], label: LabelId(self.below(5) as u32) }
    }
}

/// A program of `steps` steps on up to three streams.
pub(crate) fn program(seed: u64, steps: usize) -> Vec<Op> {
    let mut random = Random::new(seed);
    let streams = 1 + random.below(3);
    let step = |random: &mut Random| match random.below(200) {
        0 => Op::EmptyCache,
        1 => Op::Limit { bytes: Some(random.below(160) * MIB) },
        2 => Op::Limit { bytes: None },
        3..10 => Op::Retag { nth: random.next() as usize },
        10..100 => Op::Free { nth: random.next() as usize },
        _ => Op::Alloc { bytes: random.bytes(), stream: random.below(streams) },
    };
    (0..steps).map(|_| step(&mut random)).collect()
}

/// Like [`program`], but some blocks are also used on other streams.
pub(crate) fn program_with_uses(seed: u64, steps: usize) -> Vec<Op> {
    let mut random = Random::new(!seed);
    let uses = |op| {
        let used = Op::Use { nth: random.next() as usize, stream: random.below(4) };
        if random.below(4) == 0 { vec![used, op] } else { vec![op] }
    };
    program(seed, steps).into_iter().flat_map(uses).collect()
}

/// A running program.
pub(crate) struct Run<D, O> {
    pub(crate) allocator: Allocator<D, O>,
    pub(crate) live: Vec<Allocation>,
    tags: Random,
}

impl<D: Driver, O: Observer> Run<D, O> {
    /// Runs on `allocator`. The tags of requests depend only on `tag_seed`.
    pub(crate) fn new(allocator: Allocator<D, O>, tag_seed: u64) -> Self {
        Self { allocator, live: Vec::new(), tags: Random::new(tag_seed) }
    }

    /// Runs one step. A request returns its address.
    pub(crate) fn step(&mut self, op: Op) -> Result<Option<u64>, Error> {
        match op {
            Op::Alloc { bytes, stream } => {
                let Tag { category, label } = self.tags.tag();
                let allocation = self.allocator.malloc(Request {
                    stream: StreamId(stream),
                    category,
                    label,
                    ..Request::of(bytes)
                })?;
                let addr = allocation.addr().0;
                if bytes > 0 {
                    self.live.push(allocation);
                } else {
                    self.allocator.free(allocation);
                }
                return Ok(Some(addr));
            }
            Op::Free { nth } if !self.live.is_empty() => {
                let nth = nth % self.live.len();
                self.allocator.free(self.live.remove(nth));
            }
            Op::Retag { nth } if !self.live.is_empty() => {
                let Tag { category, label } = self.tags.tag();
                self.allocator.retag(&self.live[nth % self.live.len()], category, label);
            }
            Op::Use { nth, stream } if !self.live.is_empty() => {
                self.allocator.record_stream(&self.live[nth % self.live.len()], StreamId(stream));
            }
            Op::Free { .. } | Op::Retag { .. } | Op::Use { .. } => {}
            Op::EmptyCache => {
                self.allocator.empty_cache()?;
            }
            Op::Limit { bytes } => self.allocator.set_memory_limit(bytes),
        }
        Ok(None)
    }
}

/// Asserts that state, statistics, ledger and device agree.
pub(crate) fn assert_sound<D: Driver>(allocator: &Allocator<D, (Stats, Ledger)>, at: &str) {
    allocator.check().unwrap_or_else(|broken| panic!("{at}: {broken}"));
    let segments = allocator.segments();
    let (stats, ledger) = allocator.observer();
    stats.check(&segments).unwrap_or_else(|broken| panic!("{at}: {broken}"));
    ledger.check(&segments).unwrap_or_else(|broken| panic!("{at}: {broken}"));
    let device = allocator.driver().memory();
    let taken_bytes = device.total_bytes - device.free_bytes;
    assert_eq!(allocator.reserved(), taken_bytes, "{at}: what we reserve is what the device gave");
}
