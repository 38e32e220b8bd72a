//! Snapshots of the pools: their segments and blocks, and the size of the cache.

use super::Pools;
use crate::block::{Block, BlockId, SlotState};
use crate::request::Addr;
use crate::segment::{BlockState, CacheInfo, Segment, SegmentBlock};

impl Pools {
    /// The cached bytes of all pools and streams. Visits all blocks.
    pub(crate) fn cache_info(&self) -> CacheInfo {
        let blocks = &self.blocks;
        let cached = blocks.iter().filter(|block| block.state == SlotState::Cached).map(|block| block.bytes);
        cached.fold(CacheInfo::default(), |sum, bytes| CacheInfo {
            largest_bytes: sum.largest_bytes.max(bytes),
            total_bytes: sum.total_bytes + bytes,
        })
    }

    /// The largest cached block: `largest_bytes` of [`cache_info`](Self::cache_info), without visiting all
    /// blocks.
    pub(crate) fn largest_cached_bytes(&self) -> u64 {
        let pools = self.halves().map(|pool| &self.pool(pool).cached);
        pools.map(|cached| cached.largest_of_all_bytes(&self.blocks)).max().unwrap_or(0)
    }

    /// All segments and their blocks, in address order.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let blocks = &self.blocks;
        let starts_segment =
            |block: &&Block| block.is_mapped() && block.prev.is_none_or(|prev| !blocks[prev].is_mapped());
        let firsts = blocks.iter().filter(starts_segment);
        let mut segments: Vec<Segment> = firsts.map(|first| self.picture(first)).collect();
        segments.sort_by_key(|segment| segment.addr);
        segments
    }

    /// The run of mapped blocks that starts at `first`.
    fn picture(&self, first: &Block) -> Segment {
        let run = self.blocks.chain(first).take_while(|block| block.is_mapped());
        let blocks: Vec<SegmentBlock> = run.map(block_picture).collect();
        let pool = self.pool(first.pool);
        Segment {
            addr: first.addr,
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            stream: first.stream,
            pool: pool.kind,
            pool_id: pool.id,
            is_expandable: first.range.is_some(),
            blocks,
        }
    }

    /// Bytes in blocks that are not cached.
    pub(crate) fn active_bytes(&self) -> u64 {
        let active =
            self.blocks.iter().filter(|block| matches!(block.state, SlotState::Active | SlotState::Pending));
        active.map(|block| block.bytes).sum()
    }

    /// The start and size of the segment that contains a block; `None` if it is expandable.
    pub(crate) fn segment_around(&self, id: BlockId) -> Option<(Addr, u64)> {
        let mut first = &self.blocks[id];
        if first.range.is_some() {
            return None;
        }
        while let Some(prev) = first.prev {
            first = &self.blocks[prev];
        }
        Some((first.addr, self.blocks.chain(first).map(|block| block.bytes).sum()))
    }
}

fn block_picture(block: &Block) -> SegmentBlock {
    let Block { addr, bytes, requested_bytes, tag, stack, .. } = *block;
    let state = match block.state {
        SlotState::Active => BlockState::Active,
        SlotState::Pending => BlockState::Pending,
        SlotState::Cached | SlotState::Unmapped | SlotState::Vacant => BlockState::Cached,
    };
    SegmentBlock { addr, bytes, requested_bytes, state, tag, stack }
}
