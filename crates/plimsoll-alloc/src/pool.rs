//! The pools: [`Pools`], which stores every block, and the free sets of each pool.
//!
//! There is one default pool and any number of private ones (`private.rs`); each is a pair, one half for small
//! blocks and one for large ones. Splitting and merging: `pieces.rs`. Choosing a block for a request:
//! `search.rs`. No driver calls and no events here.
//!
//! As PyTorch: `BlockPool`.

use std::collections::BTreeMap;
use std::fmt;

use crate::block::{Block, BlockId, Slab, SlotState};
use crate::config::TieOrder;
use crate::free_set::FreeSet;
use crate::request::{Addr, PoolId, StreamId};

/// The half of a pool that a block belongs to. It never changes.
///
/// ```
/// # use plimsoll_alloc::PoolKind;
/// assert_eq!(PoolKind::Small.to_string(), "small_pool");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Blocks up to 1 MiB, cut from segments of 2 MiB.
    Small,
    /// Larger blocks.
    Large,
}

impl PoolKind {
    /// PyTorch's name, as in the keys of its statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small_pool",
            Self::Large => "large_pool",
        }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An index into [`Pools`]: one half of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolRef(u32);

impl PoolRef {
    /// The half of the default pool.
    pub(crate) const fn default_half(kind: PoolKind) -> Self {
        Self(kind as u32)
    }
}

/// One half of one pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) kind: PoolKind,
    pub(crate) cached: FreeSet,
    /// Unmapped blocks of expandable segments, in the order in which they are tried.
    pub(crate) unmapped: BTreeMap<(StreamId, Addr), BlockId>,
    /// The number of searches while garbage collection is on: `collect.rs`.
    pub(crate) searches: u64,
    /// The number of segments, expandable ones included.
    pub(crate) segments: u64,
}

/// All blocks and all pools.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) blocks: Slab,
    /// The default pool's halves, then pairs of halves of private pools.
    pools: Vec<Pool>,
    /// Free indices of removed pools: the first of each pair.
    vacant: Vec<u32>,
    order: TieOrder,
    pub(crate) segments_made: u64,
    /// The number of restores of checkpoints.
    pub(crate) generation: u32,
}

impl Pools {
    /// The default pool, empty.
    pub(crate) fn new(order: TieOrder) -> Self {
        let mut pools = Self {
            blocks: Slab::default(),
            pools: Vec::new(),
            vacant: Vec::new(),
            order,
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

    /// Makes an empty pool. Returns its small half and its large half.
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
        [PoolRef(first), PoolRef(first + 1)]
    }

    /// Removes an empty private pool, by its small half.
    pub(crate) fn remove_pool(&mut self, small: PoolRef) {
        self.vacant.push(small.0);
    }

    pub(crate) fn pool(&self, pool: PoolRef) -> &Pool {
        &self.pools[pool.0 as usize]
    }

    pub(crate) fn pool_mut(&mut self, pool: PoolRef) -> &mut Pool {
        &mut self.pools[pool.0 as usize]
    }

    /// Every half of every existing pool.
    pub(crate) fn halves(&self) -> impl Iterator<Item = PoolRef> + '_ {
        let places = 0..self.pools.len() as u32;
        places.filter(|place| !self.vacant.contains(&(place & !1))).map(PoolRef)
    }

    /// Adds a block to the set of its state: the cached or the unmapped blocks of its pool.
    #[inline]
    pub(crate) fn file(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        let pool = &mut self.pools[block.pool.0 as usize];
        match block.state {
            SlotState::Cached => {
                block.cached_at = pool.searches;
                pool.cached.insert(&mut self.blocks, id);
            }
            _ => self.file_unmapped(id),
        }
    }

    /// Removes a block from the set that [`file`](Self::file) added it to; its size and address must not have
    /// changed.
    #[inline]
    pub(crate) fn unfile(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let pool = &mut self.pools[block.pool.0 as usize];
        match block.state {
            SlotState::Cached => pool.cached.remove(&mut self.blocks, id),
            _ => self.unfile_unmapped(id),
        }
    }

    /// Changes a cached block's size and address, as if it were removed and added again.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn resize(&mut self, id: BlockId, addr: Addr, bytes: u64) {
        let block = &mut self.blocks[id];
        let pool = &mut self.pools[block.pool.0 as usize];
        block.cached_at = pool.searches;
        pool.cached.resize(&mut self.blocks, id, addr, bytes);
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
