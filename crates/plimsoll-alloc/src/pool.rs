//! Pools and the life of their blocks: find the best fit, cut it, give it out, take it back, merge it.
//!
//! There is no driver and no event here: segments come and go as `ladder.rs` says, and what a step did to
//! the pieces is returned as a [`SplitChange`], for `allocator.rs` to announce.
//!
//! As PyTorch: `get_free_block`, `alloc_found_block`, `free_block`, `try_merge_blocks`.

use std::fmt;

use crate::block::{Block, BlockId, Slab, State};
use crate::event::SplitChange;
use crate::free_set::FreeSet;
use crate::request::{Addr, StreamId, Tag};
use crate::size::{Ask, worth_splitting};

/// Which of the two pools a block belongs to, for life.
///
/// ```
/// # use plimsoll_alloc::PoolKind;
/// assert_eq!(PoolKind::Small.to_string(), "small_pool");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Blocks up to 1 MiB, cut from segments of 2 MiB.
    Small,
    /// The others.
    Large,
}

impl PoolKind {
    /// PyTorch's name for it, as in the keys of its statistics.
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

/// All blocks, active and cached.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub(crate) blocks: Slab,
    /// Indexed by [`PoolKind`].
    cached: [FreeSet; 2],
    segments_made: u64,
}

impl Pools {
    /// The pool's cached blocks.
    pub(crate) fn cached(&self, pool: PoolKind) -> &FreeSet {
        &self.cached[pool as usize]
    }

    /// Takes the best fit out of the cache.
    pub(crate) fn take_fit(&mut self, ask: &Ask) -> Option<BlockId> {
        let id = self.cached(ask.pool).first_from(&self.blocks, ask.request.stream, ask.block_bytes)?;
        self.uncache(id);
        Some(id)
    }

    /// Makes a new segment's one block. It is not put in the cache: it was made for the request at hand.
    pub(crate) fn add_segment(&mut self, ask: &Ask, addr: Addr) -> BlockId {
        let segment_number = self.segments_made;
        self.segments_made += 1;
        self.blocks.insert(Block {
            addr,
            bytes: ask.segment_bytes,
            requested_bytes: 0,
            segment_number,
            stream: ask.request.stream,
            prev: None,
            next: None,
            lower: None,
            upper: None,
            tag: Tag::default(),
            pool: ask.pool,
            state: State::Cached,
        })
    }

    /// Gives `found` (from [`take_fit`](Self::take_fit) or [`add_segment`](Self::add_segment)) to the
    /// request, cutting off what is worth it. Returns the block given and the change in cached pieces.
    pub(crate) fn occupy(&mut self, found: BlockId, ask: &Ask) -> (BlockId, SplitChange) {
        let Block { bytes, pool, .. } = self.blocks[found];
        let was_piece = self.blocks[found].is_piece();
        let remainder = bytes - ask.block_bytes;
        let (id, change) = if worth_splitting(pool, remainder) {
            let front = self.split(found, ask.block_bytes);
            let change = if was_piece {
                SplitChange { blocks: 0, bytes: -(ask.block_bytes as i64) }
            } else {
                SplitChange { blocks: 1, bytes: remainder as i64 }
            };
            (front, change)
        } else if was_piece {
            (found, SplitChange { blocks: -1, bytes: -(bytes as i64) })
        } else {
            (found, SplitChange::default())
        };
        let block = &mut self.blocks[id];
        block.state = State::Active;
        block.requested_bytes = ask.request.bytes;
        block.tag = ask.request.tag();
        (id, change)
    }

    /// Cuts the first `bytes` off an uncached block. The front is a new block; the old one becomes the
    /// remainder and goes to the cache.
    fn split(&mut self, rest: BlockId, bytes: u64) -> BlockId {
        let Block { addr, prev, .. } = self.blocks[rest];
        let front = self.blocks.insert(Block { addr, bytes, prev, next: Some(rest), ..self.blocks[rest] });
        if let Some(prev) = prev {
            self.blocks[prev].next = Some(front);
        }
        let block = &mut self.blocks[rest];
        block.addr = addr.plus(bytes);
        block.bytes -= bytes;
        block.prev = Some(front);
        self.cache(rest);
        front
    }

    /// Takes an active block back into the cache, merged with its cached neighbours.
    /// Returns the change in cached pieces.
    pub(crate) fn vacate(&mut self, id: BlockId) -> SplitChange {
        let mut change = SplitChange::default();
        let Block { prev, next, .. } = self.blocks[id];
        for neighbour in [prev, next].into_iter().flatten() {
            if self.blocks[neighbour].state == State::Cached {
                change.blocks -= 1;
                change.bytes -= self.blocks[neighbour].bytes as i64;
                self.absorb(id, neighbour);
            }
        }
        if self.blocks[id].is_piece() {
            change.blocks += 1;
            change.bytes += self.blocks[id].bytes as i64;
        }
        self.cache(id);
        change
    }

    /// Merges a cached neighbour into `id`, whose block lives on.
    fn absorb(&mut self, id: BlockId, neighbour: BlockId) {
        self.uncache(neighbour);
        let gone = self.blocks[neighbour];
        self.blocks.remove(neighbour);
        let block = &mut self.blocks[id];
        block.bytes += gone.bytes;
        if gone.next == Some(id) {
            block.addr = gone.addr;
            block.prev = gone.prev;
        } else {
            block.next = gone.next;
        }
        if let Some(before) = self.blocks[id].prev {
            self.blocks[before].next = Some(id);
        }
        if let Some(after) = self.blocks[id].next {
            self.blocks[after].prev = Some(id);
        }
    }

    /// The pool's cached blocks that are whole segments, in the order of the cache.
    pub(crate) fn whole_segments(&self, pool: PoolKind) -> Vec<BlockId> {
        self.cached(pool).iter(&self.blocks).filter(|&id| !self.blocks[id].is_piece()).collect()
    }

    /// Forgets a cached whole segment.
    pub(crate) fn remove_segment(&mut self, id: BlockId) {
        self.uncache(id);
        self.blocks.remove(id);
    }

    /// The largest cached block of `stream` in either pool, bytes; 0 if it has none.
    pub(crate) fn largest_cached_bytes(&self, stream: StreamId) -> u64 {
        self.cached.iter().map(|pool| pool.largest_bytes(&self.blocks, stream)).max().unwrap_or(0)
    }

    #[inline]
    fn cache(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = State::Cached;
        let pool = block.pool;
        self.cached[pool as usize].insert(&mut self.blocks, id);
    }

    #[inline]
    fn uncache(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool;
        self.cached[pool as usize].remove(&mut self.blocks, id);
    }
}
