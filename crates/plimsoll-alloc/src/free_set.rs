//! The cached blocks of one pool, in the order in which they are tried: [`FreeSet`].
//!
//! The order is the allocator's behaviour, see Note [Best fit order]; the structure behind it is not, and
//! may be replaced by a faster one that finds the same lower bound.

use std::collections::BTreeMap;

use crate::block::{Block, BlockId};
use crate::request::{Addr, StreamId};

// Note [Best fit order]
// Of the cached blocks of a request's own stream, the smallest that holds it is taken. Among equal sizes:
// the oldest segment first, then the lowest address inside it. So an answer does not depend on what
// addresses the device happens to return, and traces replay on any machine.
// As PyTorch 2.15: `BlockComparatorSizeCounterAddress`; until 2.12 the address alone broke ties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    stream: StreamId,
    bytes: u64,
    segment_number: u64,
    addr: Addr,
}

impl Key {
    fn of(block: &Block) -> Self {
        let Block { stream, bytes, segment_number, addr, .. } = *block;
        Self { stream, bytes, segment_number, addr }
    }
}

/// The cached blocks of one pool, by Note [Best fit order].
#[derive(Debug, Default)]
pub(crate) struct FreeSet {
    blocks: BTreeMap<Key, BlockId>,
}

impl FreeSet {
    /// Adds a block, under the size and address that it has now.
    pub(crate) fn insert(&mut self, id: BlockId, block: &Block) {
        let before = self.blocks.insert(Key::of(block), id);
        assert_eq!(before, None, "two cached blocks at {} with {} bytes", block.addr, block.bytes);
    }

    /// Takes a block out; its size and address must be those it was added with.
    pub(crate) fn remove(&mut self, id: BlockId, block: &Block) {
        let found = self.blocks.remove(&Key::of(block));
        assert_eq!(found, Some(id), "the cached block at {} with {} bytes", block.addr, block.bytes);
    }

    /// The first block of `stream` with at least `bytes`.
    pub(crate) fn best_fit(&self, stream: StreamId, bytes: u64) -> Option<BlockId> {
        let least = Key { stream, bytes, segment_number: 0, addr: Addr(0) };
        let (key, &id) = self.blocks.range(least..).next()?;
        (key.stream == stream).then_some(id)
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
        self.blocks.get(&Key::of(block)) == Some(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}
