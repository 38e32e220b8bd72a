//! The pools: [`Pools`], which stores every block, and the free sets of each pool.
//!
//! There is one default pool and any number of private ones (`private.rs`). Each is a pair of halves, one for small
//! blocks and one for large ones. This code makes no driver calls and sends no events; `heap.rs` sends them.
//!
//! | file | contents |
//! |---|---|
//! | `pools/pieces.rs` | blocks within their segment: splitting, allocating, freeing, merging |
//! | `pools/search.rs` | which cached block serves a request, and whether it is split |
//! | `pools/by_address.rs` | the cached block that contains an address |
//! | `pools/pages.rs` | mapped and unmapped blocks of expandable segments |
//! | `pools/import.rs` | segments of another allocator |
//! | `pools/snapshot.rs`, `pools/check.rs` | snapshots of the state; consistency checks |
//!
//! In PyTorch: `BlockPool`.

mod by_address;
mod check;
mod import;
mod pages;
mod pieces;
mod search;
mod snapshot;

use std::collections::BTreeMap;

use crate::block::{Block, BlockId, PoolRef, Slab, SlotState};
use crate::config::TieOrder;
use crate::free_set::FreeSet;
use crate::request::{Addr, PoolId, StreamId, Tag};
use crate::size::PoolKind;
use crate::stream_uses::Waits;

pub(crate) use pieces::{Cut, NewSegment};
pub(crate) use search::{SizedRequest, fits_oversize_rules};

/// One half of one pool.
#[derive(Debug)]
struct Pool {
    id: PoolId,
    kind: PoolKind,
    cached: FreeSet,
    /// Unmapped blocks of expandable segments, in the order in which the search tries them.
    unmapped: BTreeMap<(StreamId, Addr), BlockId>,
    /// The number of searches while garbage collection is on: `source/collect.rs`.
    searches: u64,
    /// The number of segments, including expandable ones.
    segments: u64,
}

/// All blocks and all pools.
#[derive(Debug)]
pub(crate) struct Pools {
    blocks: Slab,
    /// The default pool's halves, then pairs of halves of private pools.
    pools: Vec<Pool>,
    /// Free indices of removed pools: the first of each pair.
    vacant: Vec<u32>,
    order: TieOrder,
    /// The cached blocks by pool and address, once a search by address has had to look at many blocks:
    /// `pools/by_address.rs`.
    by_address: Option<BTreeMap<(u32, Addr), BlockId>>,
    segments_made: u64,
    /// The number of checkpoint restores so far.
    generation: u32,
}

impl Pools {
    /// Creates an empty default pool.
    pub(crate) fn new(order: TieOrder) -> Self {
        let mut pools = Self {
            blocks: Slab::default(),
            pools: Vec::new(),
            vacant: Vec::new(),
            order,
            by_address: None,
            segments_made: 0,
            generation: 0,
        };
        pools.add_pool(PoolId::DEFAULT);
        pools
    }

    fn half(&self, id: PoolId, kind: PoolKind) -> Pool {
        Pool {
            id,
            kind,
            cached: FreeSet::new(self.order),
            unmapped: BTreeMap::new(),
            searches: 0,
            segments: 0,
        }
    }

    /// Creates an empty pool. Returns its small half and its large half.
    pub(crate) fn add_pool(&mut self, id: PoolId) -> [PoolRef; 2] {
        let halves = [self.half(id, PoolKind::Small), self.half(id, PoolKind::Large)];
        let first = match self.vacant.pop() {
            Some(first) => {
                for (place, half) in halves.into_iter().enumerate() {
                    self.pools[first as usize + place] = half;
                }
                first
            }
            None => {
                self.pools.extend(halves);
                self.pools.len() as u32 - 2
            }
        };
        [PoolRef::at(first), PoolRef::at(first + 1)]
    }

    /// Removes an empty private pool, given its small half.
    pub(crate) fn remove_pool(&mut self, small: PoolRef) {
        self.vacant.push(small.index());
    }

    fn pool(&self, pool: PoolRef) -> &Pool {
        &self.pools[pool.index() as usize]
    }

    fn pool_mut(&mut self, pool: PoolRef) -> &mut Pool {
        &mut self.pools[pool.index() as usize]
    }

    /// The id of the pool that a half belongs to.
    #[inline]
    pub(crate) fn id_of(&self, pool: PoolRef) -> PoolId {
        self.pool(pool).id
    }

    /// The kind of a half (small or large), and the id of its pool.
    #[inline]
    pub(crate) fn kind_and_id(&self, pool: PoolRef) -> (PoolKind, PoolId) {
        let pool = self.pool(pool);
        (pool.kind, pool.id)
    }

    /// The number of segments in a half, including expandable ones.
    pub(crate) fn segments_in(&self, pool: PoolRef) -> u64 {
        self.pool(pool).segments
    }

    /// The cached blocks of a half: stream by stream, each in best-fit order.
    pub(crate) fn cached(&self, pool: PoolRef) -> impl Iterator<Item = BlockId> + '_ {
        self.pool(pool).cached.iter(&self.blocks)
    }

    /// A block.
    #[inline]
    pub(crate) fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }

    /// The block in a slot, if the slot exists. Use this for ids that come from a caller.
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// All blocks, in slot order. Use this for sums, not for output.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter()
    }

    /// The blocks of each segment of a pool; segments and blocks are in address order.
    pub(crate) fn chains_of(&self, halves: [PoolRef; 2]) -> Vec<Vec<BlockId>> {
        let blocks = &self.blocks;
        let firsts =
            blocks.ids().filter(|&id| halves.contains(&blocks[id].pool) && blocks[id].prev.is_none());
        let mut firsts: Vec<BlockId> = firsts.collect();
        firsts.sort_by_key(|&id| blocks[id].addr);
        let chain = |first| std::iter::successors(Some(first), |&id: &BlockId| blocks[id].next).collect();
        firsts.into_iter().map(chain).collect()
    }

    /// The uses of a block on other streams.
    pub(crate) fn waits_mut(&mut self, id: BlockId) -> &mut Waits {
        &mut self.blocks[id].waits
    }

    /// Makes a freed block wait for other streams.
    pub(crate) fn set_pending(&mut self, id: BlockId) {
        self.blocks[id].state = SlotState::Pending;
    }

    /// Changes a block's tag. Returns the old one.
    pub(crate) fn retag(&mut self, id: BlockId, tag: Tag) -> Tag {
        std::mem::replace(&mut self.blocks[id].tag, tag)
    }

    /// Begins a new generation. Allocations stay valid until their block is renewed.
    pub(crate) fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Moves a block to the current generation, which invalidates its earlier allocations.
    pub(crate) fn renew(&mut self, id: BlockId) {
        self.blocks[id].generation = self.generation;
    }

    /// Every half of every existing pool.
    pub(crate) fn halves(&self) -> impl Iterator<Item = PoolRef> + '_ {
        let places = 0..self.pools.len() as u32;
        places.filter(|place| !self.vacant.contains(&(place & !1))).map(PoolRef::at)
    }

    /// Adds a block to the set of its state: the cached or the unmapped blocks of its pool.
    #[inline]
    pub(crate) fn file(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        let pool = &mut self.pools[block.pool.index() as usize];
        match block.state {
            SlotState::Cached => {
                block.cached_at = pool.searches;
                pool.cached.insert(&mut self.blocks, id);
                if self.by_address.is_some() {
                    self.index(id);
                }
            }
            _ => self.file_unmapped(id),
        }
    }

    /// Removes a block from the set that [`file`](Self::file) added it to; its size and address must not have
    /// changed.
    #[inline]
    pub(crate) fn unfile(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let pool = &mut self.pools[block.pool.index() as usize];
        match block.state {
            SlotState::Cached => {
                pool.cached.remove(&mut self.blocks, id);
                if self.by_address.is_some() {
                    self.unindex(id);
                }
            }
            _ => self.unfile_unmapped(id),
        }
    }

    /// Changes a cached block's size and address, as if it were removed and added again.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn resize(&mut self, id: BlockId, addr: Addr, bytes: u64) {
        if self.by_address.is_some() {
            self.unindex(id);
        }
        let block = &mut self.blocks[id];
        let pool = &mut self.pools[block.pool.index() as usize];
        block.cached_at = pool.searches;
        pool.cached.resize(&mut self.blocks, id, addr, bytes);
        if self.by_address.is_some() {
            self.index(id);
        }
    }

    /// Adds a cached block to the index by address.
    #[cold]
    #[inline(never)]
    fn index(&mut self, id: BlockId) {
        let place = self.place(id);
        if let Some(index) = &mut self.by_address {
            index.insert(place, id);
        }
    }

    /// Removes a block from the index by address; its address must not have changed.
    #[cold]
    #[inline(never)]
    fn unindex(&mut self, id: BlockId) {
        let place = self.place(id);
        if let Some(index) = &mut self.by_address {
            index.remove(&place);
        }
    }

    /// The key of a block in the index by address.
    fn place(&self, id: BlockId) -> (u32, Addr) {
        let block = &self.blocks[id];
        (block.pool.index(), block.addr)
    }

    #[inline(never)] // most segments have no unmapped blocks
    fn file_unmapped(&mut self, id: BlockId) {
        let Block { addr, stream, pool, state, .. } = self.blocks[id];
        assert_eq!(state, SlotState::Unmapped, "the block at {addr} does not belong in a set");
        let before = self.pool_mut(pool).unmapped.insert((stream, addr), id);
        assert_eq!(before, None, "two unmapped blocks at {addr}");
    }

    #[inline(never)] // as above
    fn unfile_unmapped(&mut self, id: BlockId) {
        let Block { addr, stream, pool, state, .. } = self.blocks[id];
        assert_eq!(state, SlotState::Unmapped, "the block at {addr} is not in a set");
        let found = self.pool_mut(pool).unmapped.remove(&(stream, addr));
        assert_eq!(found, Some(id), "the unmapped block at {addr}");
    }
}
