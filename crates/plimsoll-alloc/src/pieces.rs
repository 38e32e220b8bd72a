//! The life of blocks inside their segment: made, cut, given out, taken back, merged.
//!
//! What a step did to the cached pieces is returned as a [`SplitChange`], for `allocator.rs` to announce.
//! It is nothing for expandable segments, which PyTorch leaves out of that statistic.
//!
//! As PyTorch: `alloc_found_block`, `free_block`, `try_merge_blocks`.

use crate::block::{Block, BlockId, State};
use crate::event::SplitChange;
use crate::expandable::RangeId;
use crate::pool::{PoolRef, Pools};
use crate::request::{Addr, Request, StreamId};

/// Whether the rest of a block becomes a block of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The front is given out, the rest stays cached.
    Front,
    /// The block is given out whole.
    Whole,
}

/// What a segment's first block is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewSegment {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolRef,
    /// The expandable segment that this is the one block of; it has no memory yet.
    pub(crate) range: Option<RangeId>,
}

impl Pools {
    /// Makes a new segment's one block. It is in no set: the caller files it or gives it out.
    pub(crate) fn add_segment(&mut self, segment: NewSegment) -> BlockId {
        let NewSegment { addr, bytes, stream, pool, range } = segment;
        let segment_number = self.segments_made;
        self.segments_made += 1;
        self.pool_mut(pool).segments += 1;
        self.blocks.insert(Block {
            addr,
            bytes,
            segment_number,
            stream,
            range,
            pool,
            state: if range.is_some() { State::Unmapped } else { State::Cached },
            generation: self.generation,
            ..Block::VACANT
        })
    }

    /// Forgets the one block of a segment, which is in a set.
    pub(crate) fn remove_segment(&mut self, id: BlockId) {
        assert!(!self.blocks[id].is_piece(), "a segment in pieces at {}", self.blocks[id].addr);
        let pool = self.blocks[id].pool;
        self.unfile(id);
        self.blocks.remove(id);
        self.pool_mut(pool).segments -= 1;
    }

    /// Gives `found`, a mapped block in no set, to the request. Returns the block given, of `bytes` if it
    /// was cut, and the change in cached pieces.
    #[inline]
    pub(crate) fn occupy(
        &mut self,
        found: BlockId,
        bytes: u64,
        request: &Request,
        cut: Cut,
    ) -> (BlockId, SplitChange) {
        let whole = self.blocks[found];
        let (id, mut change) = match (cut, whole.is_piece()) {
            (Cut::Front, true) => {
                (self.cut_front(found, bytes), SplitChange { blocks: 0, bytes: -(bytes as i64) })
            }
            (Cut::Front, false) => {
                let rest_bytes = whole.bytes - bytes;
                (self.cut_front(found, bytes), SplitChange { blocks: 1, bytes: rest_bytes as i64 })
            }
            (Cut::Whole, true) => (found, SplitChange { blocks: -1, bytes: -(whole.bytes as i64) }),
            (Cut::Whole, false) => (found, SplitChange::default()),
        };
        if whole.range.is_some() {
            change = SplitChange::default();
        }
        let block = &mut self.blocks[id];
        block.state = State::Active;
        block.requested_bytes = request.bytes;
        block.tag = request.tag();
        block.stack = request.stack;
        (id, change)
    }

    /// Cuts the first `bytes` off a block that is in no set, and caches the rest. The front is a new block.
    fn cut_front(&mut self, rest: BlockId, bytes: u64) -> BlockId {
        let Block { addr, prev, .. } = self.blocks[rest];
        let front = self.blocks.insert(Block { addr, bytes, prev, next: Some(rest), ..self.blocks[rest] });
        if let Some(prev) = prev {
            self.blocks[prev].next = Some(front);
        }
        let block = &mut self.blocks[rest];
        block.addr = addr.plus(bytes);
        block.bytes -= bytes;
        block.prev = Some(front);
        self.file(rest);
        front
    }

    /// Adds a block to a segment, between two neighbours or at an end.
    pub(crate) fn insert_between(
        &mut self,
        prev: Option<BlockId>,
        next: Option<BlockId>,
        block: Block,
    ) -> BlockId {
        let id = self.blocks.insert(Block { prev, next, ..block });
        if let Some(prev) = prev {
            self.blocks[prev].next = Some(id);
        }
        if let Some(next) = next {
            self.blocks[next].prev = Some(id);
        }
        id
    }

    /// Takes a block that nobody uses any more into the cache, merged with its cached neighbours.
    /// Returns the change in cached pieces.
    pub(crate) fn vacate(&mut self, id: BlockId) -> SplitChange {
        self.blocks[id].state = State::Cached;
        let mut change = self.merge_and_file(id);
        let block = &self.blocks[id];
        if block.is_piece() {
            change.blocks += 1;
            change.bytes += block.bytes as i64;
        }
        if block.range.is_some() { SplitChange::default() } else { change }
    }

    /// Files a cached or unmapped block, merged with those of its neighbours that are the same. Returns
    /// what was absorbed, as a loss.
    pub(crate) fn merge_and_file(&mut self, id: BlockId) -> SplitChange {
        let mut change = SplitChange::default();
        let Block { prev, next, state, .. } = self.blocks[id];
        for neighbour in [prev, next] {
            if let Some(neighbour) = neighbour
                && self.blocks[neighbour].state == state
            {
                change.blocks -= 1;
                change.bytes -= self.blocks[neighbour].bytes as i64;
                self.absorb(id, neighbour);
            }
        }
        self.file(id);
        change
    }

    /// Merges a neighbour that is in a set into `id`, whose block lives on.
    fn absorb(&mut self, id: BlockId, neighbour: BlockId) {
        self.unfile(neighbour);
        let Block { addr, bytes, prev, next, .. } = self.blocks[neighbour];
        self.blocks.remove(neighbour);
        let block = &mut self.blocks[id];
        block.bytes += bytes;
        if next == Some(id) {
            block.addr = addr;
            block.prev = prev;
            if let Some(before) = prev {
                self.blocks[before].next = Some(id);
            }
        } else {
            block.next = next;
            if let Some(after) = next {
                self.blocks[after].prev = Some(id);
            }
        }
    }
}
