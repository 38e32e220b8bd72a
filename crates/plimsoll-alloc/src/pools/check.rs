//! Consistency checks of the pools. They visit every block, so they are for tests and debugging.

use super::Pools;
use crate::block::{Block, PoolRef, SlotState};
use crate::ranges::Ranges;
use crate::size::{MIN_BLOCK_BYTES, PoolKind, SMALL_SEGMENT_BYTES};
use crate::violation::{Violation, count, equal};

impl Pools {
    /// Checks that the blocks, the free sets, the ranges and the reserved bytes agree.
    pub(crate) fn check(&self, ranges: &Ranges, reserved_bytes: u64) -> Result<(), Violation> {
        let segments = self.segments();
        let in_segments: usize = segments.iter().map(|segment| segment.blocks.len()).sum();
        let mapped = self.blocks.iter().filter(|block| block.is_mapped());
        equal("every mapped block is in a segment", None, count(mapped.count()), count(in_segments))?;
        let sum: u64 = segments.iter().map(|segment| segment.bytes).sum();
        equal("reserved is the sum of the segments", None, sum, reserved_bytes)?;
        for pair in segments.windows(2) {
            let overlap_bytes = (pair[0].addr.0 + pair[0].bytes).saturating_sub(pair[1].addr.0);
            equal("segments do not overlap", Some(pair[1].addr), 0, overlap_bytes)?;
        }
        for first in self.blocks.iter().filter(|block| block.prev.is_none()) {
            self.check_chain(first, ranges)?;
        }
        self.halves().try_for_each(|half| self.check_half(half))?;
        let in_pools: u64 = self.halves().map(|half| self.pool(half).segments).sum();
        let firsts = self.blocks.iter().filter(|block| block.prev.is_none()).count();
        equal("every segment is in an existing pool", None, count(firsts), in_pools)?;
        let idle = |block: &&Block| matches!(block.state, SlotState::Cached | SlotState::Unmapped);
        let wrong = self.blocks.iter().filter(idle).filter(|block| !block.waits.is_over()).count();
        equal("no block in a free set is used by a stream", None, 0, count(wrong))
    }

    /// Checks one segment.
    fn check_chain(&self, first: &Block, ranges: &Ranges) -> Result<(), Violation> {
        let chain: Vec<&Block> = self.blocks.chain(first).collect();
        let sum: u64 = chain.iter().map(|block| block.bytes).sum();
        let at = Some(first.addr);
        if let Some(range) = first.range.map(|range| ranges.get(range)) {
            equal("an expandable segment fills its range", at, range.bytes, sum)?;
            equal("an expandable segment starts its range", at, range.addr.0, first.addr.0)?;
        } else if self.pool(first.pool).kind == PoolKind::Small {
            equal("a small segment is 2 MiB", at, SMALL_SEGMENT_BYTES, sum)?;
        }
        for block in &chain {
            check_block(block, ranges)?;
        }
        for pair in chain.windows(2) {
            let (left, right) = (pair[0], pair[1]);
            let at = Some(right.addr);
            equal("blocks are contiguous", at, left.addr.0 + left.bytes, right.addr.0)?;
            let back = right.prev.map(|id| &self.blocks[id]);
            equal("links are symmetric", at, true, back.is_some_and(|back| std::ptr::eq(back, left)))?;
            let unmerged =
                left.state == right.state && matches!(left.state, SlotState::Cached | SlotState::Unmapped);
            equal("no two neighbours are both cached, or both unmapped", at, false, unmerged)?;
            let owner = |block: &Block| (block.stream, block.pool, block.segment_number, block.range);
            equal("a segment has one stream, pool, number and range", at, true, owner(left) == owner(right))?;
        }
        Ok(())
    }

    /// Checks that the sets of one half of a pool hold exactly its cached and its unmapped blocks.
    fn check_half(&self, half: PoolRef) -> Result<(), Violation> {
        let pool = self.pool(half);
        for id in pool.cached.iter(&self.blocks) {
            let block = &self.blocks[id];
            let at = Some(block.addr);
            equal(
                "a cached block is filed under its size and address",
                at,
                true,
                pool.cached.holds(&self.blocks, id),
            )?;
            let fits = block.state == SlotState::Cached && block.pool == half;
            equal("the free set holds cached blocks of its pool", at, true, fits)?;
        }
        for (&(stream, addr), &id) in &pool.unmapped {
            let block = &self.blocks[id];
            let fits = block.state == SlotState::Unmapped && block.pool == half;
            let filed = (block.stream, block.addr) == (stream, addr);
            equal("the unmapped set holds unmapped blocks of its pool", Some(addr), true, fits && filed)?;
        }
        let here = || self.blocks.iter().filter(|block| block.pool == half);
        let in_state = |state| count(here().filter(|block| block.state == state).count());
        equal(
            "the free set holds every cached block",
            None,
            in_state(SlotState::Cached),
            count(pool.cached.len(&self.blocks)),
        )?;
        let unmapped = count(pool.unmapped.len());
        equal("the unmapped set holds every unmapped block", None, in_state(SlotState::Unmapped), unmapped)?;
        let firsts = here().filter(|block| block.prev.is_none()).count();
        equal("a pool counts its segments", None, count(firsts), pool.segments)
    }
}

fn check_block(block: &Block, ranges: &Ranges) -> Result<(), Violation> {
    let at = Some(block.addr);
    equal("sizes are multiples of 512", at, 0, block.bytes % MIN_BLOCK_BYTES)?;
    equal("no block is empty", at, true, block.bytes > 0)?;
    match block.state {
        SlotState::Active => {
            equal("a block holds its request", at, true, block.requested_bytes <= block.bytes)
        }
        SlotState::Pending => Ok(()),
        SlotState::Unmapped => {
            let range = block.range.map(|range| ranges.get(range));
            let page_bytes = range.map_or(0, |range| range.page_bytes);
            equal("only a range has unmapped blocks", at, true, page_bytes > 0)?;
            let start = block.addr.0 - range.map_or(0, |range| range.addr.0);
            equal(
                "an unmapped block is a whole number of pages",
                at,
                0,
                start % page_bytes + block.bytes % page_bytes,
            )
        }
        SlotState::Cached | SlotState::Vacant => Ok(()),
    }
}
