//! Compares the free set with a `BTreeMap` of the same order, step by step.

use std::collections::BTreeMap;

use super::FreeSet;
use crate::block::{Block, BlockId, Slab, SlotState};
use crate::config::TieOrder;
use crate::request::{Addr, StreamId};

/// A block's sort key, in the order of [`TieOrder::RegistrationCounter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    stream: u64,
    bytes: u64,
    segment_number: u64,
    addr: u64,
}

impl Key {
    fn block(self) -> Block {
        Block {
            addr: Addr(self.addr),
            bytes: self.bytes,
            segment_number: self.segment_number,
            stream: StreamId(self.stream),
            state: SlotState::Cached,
            ..Block::VACANT
        }
    }

    fn in_order(self, order: TieOrder) -> Self {
        match order {
            TieOrder::RegistrationCounter => self,
            TieOrder::Address => Self { segment_number: 0, ..self },
        }
    }
}

/// A block with this size; its other fields do not matter.
pub(super) fn block_of(bytes: u64) -> Block {
    Key { stream: 0, bytes, segment_number: 0, addr: bytes }.block()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// The free set and its model, and the blocks in them.
struct Pair {
    order: TieOrder,
    blocks: Slab,
    set: FreeSet,
    model: BTreeMap<Key, BlockId>,
}

impl Pair {
    fn new(order: TieOrder) -> Self {
        Self { order, blocks: Slab::default(), set: FreeSet::new(order), model: BTreeMap::new() }
    }

    fn insert(&mut self, key: Key) {
        let id = self.blocks.insert(key.block());
        self.set.insert(&mut self.blocks, id);
        let before = self.model.insert(key.in_order(self.order), id);
        assert_eq!(before, None, "{key:?} twice");
    }

    fn remove(&mut self, nth: usize) {
        let (&key, &id) = self.model.iter().nth(nth).expect("one of them");
        self.set.remove(&mut self.blocks, id);
        assert!(!self.set.holds(&self.blocks, id), "{key:?} is gone");
        self.blocks.remove(id);
        self.model.remove(&key);
    }

    /// Compares the results of every query for `stream` and `bytes`.
    fn compare(&self, stream: u64, bytes: u64) {
        let Self { blocks, set, model, .. } = self;
        let from = |bytes| Key { stream, bytes, segment_number: 0, addr: 0 };
        let next = model.range(from(bytes)..from(u64::MAX)).next().map(|(_, &id)| id);
        let previous = model.range(from(0)..from(bytes)).next_back().map(|(_, &id)| id);
        let largest = model.range(from(0)..from(u64::MAX)).next_back().map_or(0, |(key, _)| key.bytes);
        assert_eq!(set.first_from(blocks, StreamId(stream), bytes), next);
        assert_eq!(set.last_before(blocks, StreamId(stream), bytes), previous);
        assert_eq!(set.largest_bytes(blocks, StreamId(stream)), largest);
        assert_eq!(set.len(blocks), model.len());
    }

    /// Compares the whole order, in both directions.
    fn compare_order(&self) {
        let Self { blocks, set, model, .. } = self;
        let expected: Vec<BlockId> = model.values().copied().collect();
        assert_eq!(set.iter(blocks).collect::<Vec<_>>(), expected);
        let streams: Vec<u64> = model.keys().map(|key| key.stream).collect();
        for (nth, &id) in expected.iter().enumerate() {
            assert!(set.holds(blocks, id));
            let neighbour = |at: Option<usize>| {
                let at = at.filter(|&at| streams.get(at) == Some(&streams[nth]))?;
                Some(expected[at])
            };
            assert_eq!(set.after(blocks, id), neighbour(Some(nth + 1)));
            assert_eq!(set.before(blocks, id), neighbour(nth.checked_sub(1)));
        }
    }
}

/// Runs random steps with sizes from `sizes`.
fn check(order: TieOrder, seed: u64, streams: u64, sizes: &[u64]) {
    let mut random = Random(seed);
    let mut pair = Pair::new(order);
    let bytes = move |random: &mut Random| {
        let size = sizes[random.below(sizes.len() as u64) as usize];
        size + random.below(2) * 512
    };
    for step in 0..1500 {
        let growing = (step / 300) % 2 == 0;
        if pair.model.is_empty() || random.below(10) < if growing { 7 } else { 3 } {
            pair.insert(Key {
                stream: random.below(streams),
                bytes: bytes(&mut random),
                segment_number: random.below(4),
                addr: step * 512,
            });
        } else {
            pair.remove(random.below(pair.model.len() as u64) as usize);
        }
        pair.compare(random.below(streams + 1), bytes(&mut random));
        if step % 100 == 99 {
            pair.compare_order();
        }
    }
}

#[test]
fn a_free_set_answers_as_a_sorted_map_does() {
    let powers: Vec<u64> = (9..45).map(|power| 1 << power).collect();
    let alike = [4096];
    let of_one_bin: Vec<u64> = (0..64).map(|nth| (1 << 24) + nth * 1024).collect();
    let far_apart = [512, 1 << 20, 1 << 60];
    for order in [TieOrder::RegistrationCounter, TieOrder::Address] {
        for sizes in [&powers[..], &alike, &of_one_bin, &far_apart] {
            check(order, 1, 1, sizes);
            check(order, 2, 5, sizes);
        }
    }
}

#[test]
fn a_million_blocks_alike_are_a_shallow_tree() {
    let (mut blocks, mut set) = (Slab::default(), FreeSet::new(TieOrder::Address));
    let key = |nth: u64| Key { stream: 0, bytes: 512, segment_number: 0, addr: nth * 512 };
    let ids: Vec<BlockId> = (0..1_000_000).map(|nth| blocks.insert(key(nth).block())).collect();
    for &id in &ids {
        set.insert(&mut blocks, id);
    }
    let asked = std::cell::Cell::new(0);
    let mut most = 0;
    for &id in ids.iter().step_by(997) {
        asked.set(0);
        let addr = blocks[id].addr;
        let found = set.first(&blocks, StreamId(0), 512, |block| {
            asked.set(asked.get() + 1);
            block.addr >= addr
        });
        assert_eq!(found, Some(id));
        most = most.max(asked.get());
    }
    assert!(most < 60, "{most} blocks looked at; a perfect tree has 20 levels");
    for &id in &ids {
        set.remove(&mut blocks, id);
    }
    assert_eq!((set.len(&blocks), set.first_from(&blocks, StreamId(0), 0)), (0, None));
}
