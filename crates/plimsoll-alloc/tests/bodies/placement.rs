//! The default options, compared with the naive allocator.

use plimsoll_alloc::{Allocator, Config, Error, Ledger, SimDriver, Stats};

use super::Input;
use crate::naive::Naive;
use crate::programs::{MIB, Op, Run, assert_sound};

const CAPACITY_BYTES: u64 = 128 * MIB;

/// Any program of requests gets the naive allocator's addresses, and leaves a consistent state.
pub(crate) fn agrees_with_the_naive_allocator(bytes: &[u8]) {
    let observer: (Stats, Ledger) = Default::default();
    let driver = SimDriver::with_capacity(CAPACITY_BYTES);
    let mut ours = Run::new(Allocator::new(Config::default(), driver, observer), 0);
    let (mut naive, mut input) = (Naive::new(CAPACITY_BYTES), Input::new(bytes));
    while let Some(kind) = input.next() {
        let op = match kind {
            0..4 => Op::EmptyCache,
            4..8 => Op::Limit { bytes: Some(input.below(160) * MIB) },
            8..10 => Op::Limit { bytes: None },
            10..20 => Op::Retag { nth: input.below(256) as usize },
            20..130 => Op::Free { nth: input.below(256) as usize },
            _ => Op::Alloc { bytes: input.size(), stream: kind % 3 },
        };
        let answer = match ours.step(op) {
            Ok(addr) => addr,
            Err(Error::OutOfMemory(_)) => None,
            Err(why) => panic!("{op:?}: {why}"),
        };
        assert_eq!(answer, naive.step(op), "{op:?}");
        assert_eq!(ours.allocator.reserved(), naive.reserved(), "{op:?}");
    }
    assert_sound(&ours.allocator, "the end");
}
