//! The cached blocks of one pool, in best-fit order: [`FreeSet`].
//!
//! The order defines the allocator's behaviour: Note [Best fit order]. The data structure does not affect it. Each
//! stream has a table of bins by size (`free_set/bins.rs`), and each bin is a tree whose links are stored in the blocks
//! (`free_set/tree.rs`). So nothing here allocates from the heap once a pool has seen all its streams and its largest
//! block.
//!
//! Every operation takes time logarithmic in the number of blocks of one bin, even if all are of equal size.

mod bins;
#[cfg(test)]
mod model;
mod order;
mod tree;

use crate::block::{Block, BlockId, Slab};
use crate::config::TieOrder;
use crate::request::{Addr, StreamId};
use bins::{Bins, bin_of};

/// The cached blocks of one pool, in the order of Note [Best fit order]. A block's size, segment and address must not
/// change while it is in the set.
#[derive(Debug, Default)]
pub(crate) struct FreeSet {
    order: TieOrder,
    /// The default stream's blocks: most requests use that stream.
    default: Bins,
    /// The other streams' blocks, by stream. Entries are never removed, so a steady state does not allocate
    /// from the heap.
    others: Vec<(StreamId, Bins)>,
}

impl FreeSet {
    /// An empty set with this order.
    pub(crate) fn new(order: TieOrder) -> Self {
        Self { order, ..Self::default() }
    }

    /// Adds a block, with its current size and address.
    #[inline]
    pub(crate) fn insert(&mut self, blocks: &mut Slab, id: BlockId) {
        let order = self.order;
        self.bins_mut(blocks[id].stream).insert(blocks, order, id);
    }

    /// Takes a block out.
    ///
    /// # Panics
    /// If it is not in the set, or has changed since it was added.
    #[inline]
    pub(crate) fn remove(&mut self, blocks: &mut Slab, id: BlockId) {
        let order = self.order;
        self.bins_mut(blocks[id].stream).remove(blocks, order, id);
    }

    /// Changes the size and address of a block that is in the set.
    ///
    /// # Panics
    /// Like [`remove`](Self::remove).
    #[inline(always)] // as above
    pub(crate) fn resize(&mut self, blocks: &mut Slab, id: BlockId, addr: Addr, bytes: u64) {
        let order = self.order;
        self.bins_mut(blocks[id].stream).resize(blocks, order, id, addr, bytes);
    }

    /// The first block of `stream` with at least `bytes`: the best fit.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn first_from(&self, blocks: &Slab, stream: StreamId, bytes: u64) -> Option<BlockId> {
        self.first(blocks, stream, bytes, |block| block.bytes >= bytes)
    }

    /// The last block of `stream` with less than `bytes`.
    pub(crate) fn last_before(&self, blocks: &Slab, stream: StreamId, bytes: u64) -> Option<BlockId> {
        self.last(blocks, stream, bytes, |block| block.bytes < bytes)
    }

    /// The next block of the same stream in the order.
    pub(crate) fn after(&self, blocks: &Slab, id: BlockId) -> Option<BlockId> {
        let block = &blocks[id];
        let rank = self.order.rank(block);
        self.first(blocks, block.stream, block.bytes, |other| self.order.rank(other) > rank)
    }

    /// The previous block of the same stream in the order.
    pub(crate) fn before(&self, blocks: &Slab, id: BlockId) -> Option<BlockId> {
        let block = &blocks[id];
        let rank = self.order.rank(block);
        self.last(blocks, block.stream, block.bytes, |other| self.order.rank(other) < rank)
    }

    /// The size of the largest block of `stream`, bytes; 0 if it has none.
    pub(crate) fn largest_bytes(&self, blocks: &Slab, stream: StreamId) -> u64 {
        self.last_before(blocks, stream, u64::MAX).map_or(0, |id| blocks[id].bytes)
    }

    /// The size of the largest block of any stream, bytes; 0 if there is none.
    pub(crate) fn largest_of_all_bytes(&self, blocks: &Slab) -> u64 {
        self.streams().map(|stream| self.largest_bytes(blocks, stream)).max().unwrap_or(0)
    }

    /// The streams that ever had a block in the set, the default stream first.
    fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        std::iter::once(StreamId::default()).chain(self.others.iter().map(|&(stream, _)| stream))
    }

    /// All blocks: stream by stream, each in best-fit order.
    pub(crate) fn iter<'a>(&'a self, blocks: &'a Slab) -> impl Iterator<Item = BlockId> + 'a {
        self.streams().flat_map(move |stream| {
            let first = self.first_from(blocks, stream, 0);
            std::iter::successors(first, move |&id| self.after(blocks, id))
        })
    }

    /// Whether a block is in the set, with its current size and address.
    pub(crate) fn holds(&self, blocks: &Slab, id: BlockId) -> bool {
        let block = &blocks[id];
        let rank = self.order.rank(block);
        let found = self.first(blocks, block.stream, block.bytes, |other| self.order.rank(other) >= rank);
        found == Some(id)
    }

    /// The number of blocks, counted one by one.
    pub(crate) fn len(&self, blocks: &Slab) -> usize {
        self.iter(blocks).count()
    }

    /// The first block of `stream` for which `far` holds. It must hold for no block in a bin before the one of `bytes`,
    /// and for every block in a bin after that one.
    #[inline(always)] // as above
    fn first(
        &self,
        blocks: &Slab,
        stream: StreamId,
        bytes: u64,
        far: impl Fn(&Block) -> bool,
    ) -> Option<BlockId> {
        let bins = self.bins(stream)?;
        let bin = bins.first_from(bin_of(bytes))?;
        let here = tree::first(blocks, bins.tree(bin), &far);
        here.or_else(|| tree::first(blocks, bins.tree(bins.first_from(bin + 1)?), &far))
    }

    /// The last block of `stream` for which `near` holds. It must hold for every block in a bin before the one of
    /// `bytes`, and for no block in a bin after that one.
    fn last(
        &self,
        blocks: &Slab,
        stream: StreamId,
        bytes: u64,
        near: impl Fn(&Block) -> bool,
    ) -> Option<BlockId> {
        let bins = self.bins(stream)?;
        let bin = bins.last_before(bin_of(bytes) + 1)?;
        let here = tree::last(blocks, bins.tree(bin), &near);
        here.or_else(|| tree::last(blocks, bins.tree(bins.last_before(bin)?), &near))
    }

    #[inline]
    fn bins(&self, stream: StreamId) -> Option<&Bins> {
        if stream == StreamId::default() { Some(&self.default) } else { self.other(stream) }
    }

    #[inline]
    fn bins_mut(&mut self, stream: StreamId) -> &mut Bins {
        if stream == StreamId::default() { &mut self.default } else { self.other_mut(stream) }
    }

    #[inline(never)]
    fn other(&self, stream: StreamId) -> Option<&Bins> {
        let nth = self.others.binary_search_by_key(&stream, |&(stream, _)| stream).ok()?;
        Some(&self.others[nth].1)
    }

    #[inline(never)]
    fn other_mut(&mut self, stream: StreamId) -> &mut Bins {
        let nth = self.others.binary_search_by_key(&stream, |&(stream, _)| stream).unwrap_or_else(|nth| {
            self.others.insert(nth, (stream, Bins::default()));
            nth
        });
        &mut self.others[nth].1
    }
}
