//! The cached blocks of one pool, in the order in which they are tried: [`FreeSet`].
//!
//! The order is the allocator's behaviour, see Note [Best fit order]; the structure behind it is not, and
//! may be replaced by a faster one that finds the same lower bound and the same neighbours.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::block::{Block, BlockId};
use crate::config::TieOrder;
use crate::request::{Addr, StreamId};

// Note [Best fit order]
// Of the cached blocks of a request's own stream, the smallest that holds it is taken. Among equal sizes:
// the oldest segment first, then the lowest address inside it. So an answer does not depend on what
// addresses the device happens to return, and traces replay on any machine.
// As PyTorch 2.15: `BlockComparatorSizeCounterAddress`. Until about 2.12 the address alone broke ties:
// `TieOrder::Address`, for which every segment counts as number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    stream: StreamId,
    bytes: u64,
    segment_number: u64,
    addr: Addr,
}

/// The cached blocks of one pool, by Note [Best fit order].
#[derive(Debug)]
pub(crate) struct FreeSet {
    order: TieOrder,
    blocks: BTreeMap<Key, BlockId>,
}

impl FreeSet {
    /// Nothing, to be kept in `order`.
    pub(crate) fn new(order: TieOrder) -> Self {
        Self { order, blocks: BTreeMap::new() }
    }

    fn key(&self, block: &Block) -> Key {
        let Block { stream, bytes, segment_number, addr, .. } = *block;
        match self.order {
            TieOrder::RegistrationCounter => Key { stream, bytes, segment_number, addr },
            TieOrder::Address => Key { stream, bytes, segment_number: 0, addr },
        }
    }

    /// Adds a block, under the size and address that it has now.
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let before = self.blocks.insert(self.key(block), id);
        assert_eq!(before, None, "two cached blocks at {} with {} bytes", block.addr, block.bytes);
    }

    /// Takes a block out; its size and address must be those it was added with.
    pub(crate) fn remove(&mut self, id: BlockId, block: &Block) {
        let found = self.blocks.remove(&self.key(block));
        assert_eq!(found, Some(id), "the cached block at {} with {} bytes", block.addr, block.bytes);
    }

    /// The first block that is not before (`stream`, `bytes`) in the order; it may be another stream's.
    pub(crate) fn first_from(&self, stream: StreamId, bytes: u64) -> Option<BlockId> {
        self.blocks.range(least(stream, bytes)..).next().map(|(_, &id)| id)
    }

    /// The last block that is before (`stream`, `bytes`) in the order; it may be another stream's.
    pub(crate) fn last_before(&self, stream: StreamId, bytes: u64) -> Option<BlockId> {
        self.blocks.range(..least(stream, bytes)).next_back().map(|(_, &id)| id)
    }

    /// The block that follows a cached one in the order.
    pub(crate) fn after(&self, block: &Block) -> Option<BlockId> {
        let above = (Bound::Excluded(self.key(block)), Bound::Unbounded);
        self.blocks.range(above).next().map(|(_, &id)| id)
    }

    /// The block that precedes a cached one in the order.
    pub(crate) fn before(&self, block: &Block) -> Option<BlockId> {
        self.blocks.range(..self.key(block)).next_back().map(|(_, &id)| id)
    }

    /// The size of the largest block of `stream`, bytes; 0 if it has none.
    pub(crate) fn largest_bytes(&self, stream: StreamId) -> u64 {
        let most = Key { stream, bytes: u64::MAX, segment_number: u64::MAX, addr: Addr(u64::MAX) };
        match self.blocks.range(..=most).next_back() {
            Some((key, _)) if key.stream == stream => key.bytes,
            _ => 0,
        }
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.values().copied()
    }

    /// Whether a block is here, under the size and address that it has now.
    pub(crate) fn holds(&self, id: BlockId, block: &Block) -> bool {
        self.blocks.get(&self.key(block)) == Some(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}

/// Before every block of `stream` with at least `bytes`, behind all others that precede those.
fn least(stream: StreamId, bytes: u64) -> Key {
    Key { stream, bytes, segment_number: 0, addr: Addr(0) }
}
