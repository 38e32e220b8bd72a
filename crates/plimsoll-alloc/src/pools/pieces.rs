//! Blocks within their segment: creating, splitting, allocating, freeing, merging.
//!
//! The change in cached pieces is returned as a [`SplitChange`], which `heap.rs` puts in the event.
//! It is zero for expandable segments, which PyTorch leaves out of that statistic.
//!
//! In PyTorch: `alloc_found_block`, `free_block`, `try_merge_blocks`.

use super::Pools;
use crate::block::{Block, BlockId, PoolRef, SlotState};
use crate::event::SplitChange;
use crate::ranges::RangeId;
use crate::request::{Addr, Request, StreamId};

/// Whether a block is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The front is allocated, the rest stays cached.
    Front,
    /// The whole block is allocated.
    Whole,
}

/// The properties of a new segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewSegment {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolRef,
    /// The range, if the segment is expandable; in this case, the block is unmapped.
    pub(crate) range: Option<RangeId>,
}

impl Pools {
    /// Makes a new segment's one block. It is in no set: the caller must `file` it.
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
            state: if range.is_some() { SlotState::Unmapped } else { SlotState::Cached },
            generation: self.generation,
            ..Block::VACANT
        })
    }

    /// Removes a segment that consists of one filed block.
    pub(crate) fn remove_segment(&mut self, id: BlockId) {
        assert!(!self.blocks[id].is_piece(), "the segment at {} is split", self.blocks[id].addr);
        let pool = self.blocks[id].pool;
        self.unfile(id);
        self.blocks.remove(id);
        self.pool_mut(pool).segments -= 1;
    }

    /// Allocates a cached block. Returns the allocated block, of `bytes` if it was split, and the change
    /// in cached pieces.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn occupy(
        &mut self,
        found: BlockId,
        bytes: u64,
        request: &Request,
        cut: Cut,
    ) -> (BlockId, SplitChange) {
        let whole = &self.blocks[found];
        let (is_piece, is_expandable, found_bytes) =
            (whole.is_piece(), whole.range.is_some(), whole.bytes as i64);
        let change = match (cut, is_piece) {
            _ if is_expandable => SplitChange::default(),
            (Cut::Front, true) => SplitChange { blocks: 0, bytes: -(bytes as i64) },
            (Cut::Front, false) => SplitChange { blocks: 1, bytes: found_bytes - bytes as i64 },
            (Cut::Whole, true) => SplitChange { blocks: -1, bytes: -found_bytes },
            (Cut::Whole, false) => SplitChange::default(),
        };
        let id = match cut {
            Cut::Front => self.cut_front(found, bytes),
            Cut::Whole => {
                self.unfile(found);
                found
            }
        };
        let block = &mut self.blocks[id];
        block.state = SlotState::Active;
        block.requested_bytes = request.bytes;
        block.tag = request.tag();
        block.stack = request.stack;
        (id, change)
    }

    /// Splits the first `bytes` off a cached block; the rest stays cached. The front is a new block.
    #[inline(always)] // as above
    fn cut_front(&mut self, rest: BlockId, bytes: u64) -> BlockId {
        let whole = &self.blocks[rest];
        let &Block { addr, bytes: whole_bytes, prev, range, pool, .. } = whole;
        let &Block { segment_number, stream, generation, .. } = whole;
        let next = Some(rest);
        let place = Block { addr, bytes, prev, next, range, pool, ..Block::VACANT };
        let front = Block { segment_number, stream, generation, ..place };
        let front = self.blocks.insert(front);
        if let Some(prev) = prev {
            self.blocks[prev].next = Some(front);
        }
        self.blocks[rest].prev = Some(front);
        self.resize(rest, addr.plus(bytes), whole_bytes - bytes);
        front
    }

    /// Adds a block to a segment, between two neighbours or at an end.
    pub(super) fn insert_between(
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

    /// Caches a block that is no longer used, merged with its cached neighbours.
    /// Returns the change in cached pieces.
    ///
    /// The cached neighbour absorbs the block, not the reverse, so that the neighbour can keep its place in its set. As
    /// in PyTorch, the merged block gets the requested size, tag and stack of the freed block.
    #[inline]
    pub(crate) fn vacate(&mut self, id: BlockId) -> SplitChange {
        let block = &mut self.blocks[id];
        block.state = SlotState::Cached;
        let &mut Block { prev, next, range, bytes, .. } = block;
        let is_cached = |id: &BlockId| self.blocks[*id].state == SlotState::Cached;
        let (before, behind) = (prev.filter(is_cached), next.filter(is_cached));
        let Some(kept) = before.or(behind) else {
            self.file(id);
            let is_split = range.is_none() && (prev.is_some() || next.is_some());
            return if is_split {
                SplitChange { blocks: 1, bytes: bytes as i64 }
            } else {
                SplitChange::default()
            };
        };
        let mut merged = SplitChange::default();
        if let (Some(_), Some(behind)) = (before, behind) {
            merged = SplitChange { blocks: -1, bytes: -(self.absorb(id, behind) as i64) };
        }
        let kept_bytes = self.grow_over(kept, id);
        if range.is_some() {
            SplitChange::default()
        } else if self.blocks[kept].is_piece() {
            SplitChange { blocks: merged.blocks, bytes: bytes as i64 }
        } else {
            SplitChange { blocks: merged.blocks - 1, bytes: merged.bytes - kept_bytes as i64 }
        }
    }

    /// Merges an unfiled block into a cached neighbour. The neighbour keeps its id and gets the block's requested size,
    /// tag and stack. Returns the neighbour's old size.
    #[inline]
    fn grow_over(&mut self, kept: BlockId, id: BlockId) -> u64 {
        let Block { addr, bytes, requested_bytes, tag, stack, .. } = *self.unlink(id);
        let block = &mut self.blocks[kept];
        (block.requested_bytes, block.tag, block.stack) = (requested_bytes, tag, stack);
        let (addr, kept_bytes) = (addr.min(block.addr), block.bytes);
        self.resize(kept, addr, kept_bytes + bytes);
        kept_bytes
    }

    /// Files a cached or unmapped block, merged with neighbours in the same state.
    pub(super) fn merge_and_file(&mut self, id: BlockId) {
        let Block { prev, next, state, .. } = self.blocks[id];
        for neighbour in [prev, next].into_iter().flatten() {
            if self.blocks[neighbour].state == state {
                self.absorb(id, neighbour);
            }
        }
        self.file(id);
    }

    /// Merges a filed neighbour into `id`, which keeps its id. Returns the neighbour's bytes.
    fn absorb(&mut self, id: BlockId, neighbour: BlockId) -> u64 {
        self.unfile(neighbour);
        let Block { addr, bytes, .. } = *self.unlink(neighbour);
        let block = &mut self.blocks[id];
        block.addr = block.addr.min(addr);
        block.bytes += bytes;
        bytes
    }

    /// Removes a block from its segment and vacates its slot. Returns the old contents.
    #[inline]
    fn unlink(&mut self, id: BlockId) -> &Block {
        let Block { prev, next, .. } = self.blocks[id];
        if let Some(before) = prev {
            self.blocks[before].next = next;
        }
        if let Some(behind) = next {
            self.blocks[behind].prev = prev;
        }
        self.blocks.remove(id)
    }
}
