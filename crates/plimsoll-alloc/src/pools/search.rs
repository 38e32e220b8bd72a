//! The search: the cached block that serves a request, if any, and whether it is split.
//!
//! In PyTorch: `get_free_block`, `should_split`.

use super::pieces::Cut;
use super::{Pool, Pools};
use crate::block::{Block, BlockId, PoolRef};
use crate::config::Config;
use crate::request::{Request, StreamId};
use crate::rounding::{is_oversize, is_worth_cutting};
use crate::size::PoolKind;

/// A request with its rounded sizes and its pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizedRequest {
    pub(crate) request: Request,
    pub(crate) block_bytes: u64,
    /// The size of the new segment if no cached block fits.
    pub(crate) segment_bytes: u64,
    pub(crate) kind: PoolKind,
    /// The pool to search; after a cache miss, this may become another pool.
    pub(crate) pool: PoolRef,
    /// Whether expandable segments may serve it.
    pub(crate) expandable: bool,
}

impl Pools {
    /// The cached block that serves a request. The oversize rules are checked only for the block that
    /// [`find_fit`](Self::find_fit) returns: if it fails, no other passes.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn serving(&self, sized: &SizedRequest, config: &Config) -> Option<BlockId> {
        self.find_fit(sized)
            .filter(|&id| fits_oversize_rules(config, sized.block_bytes, self.blocks[id].bytes))
    }

    /// The first block that fits a request, by Note [Best fit order]. If there are expandable segments,
    /// [`least_growing`](Self::least_growing) or [`not_expandable`](Self::not_expandable) may move on to a later block.
    #[inline(always)] // as above
    pub(crate) fn find_fit(&self, sized: &SizedRequest) -> Option<BlockId> {
        let pool = self.pool(sized.pool);
        let first = pool.cached.first_from(&self.blocks, sized.request.stream, sized.block_bytes)?;
        match (sized.expandable, self.blocks[first].range) {
            (_, None) => Some(first),
            (true, Some(_)) => Some(self.least_growing(first, pool)),
            (false, Some(_)) => self.not_expandable(first, pool),
        }
    }

    /// The best fit for `bytes` in a half: the smallest cached block of `stream` that holds them.
    pub(crate) fn best_fit(&self, pool: PoolRef, stream: StreamId, bytes: u64) -> Option<BlockId> {
        self.pool(pool).cached.first_from(&self.blocks, stream, bytes)
    }

    /// The next larger or equal cached block in best-fit order.
    pub(crate) fn next_fit(&self, id: BlockId) -> Option<BlockId> {
        self.pool(self.blocks[id].pool).cached.after(&self.blocks, id)
    }

    /// The largest cached block of `stream` in a half that is smaller than `bytes`.
    pub(crate) fn largest_below(&self, pool: PoolRef, stream: StreamId, bytes: u64) -> Option<BlockId> {
        self.pool(pool).cached.last_before(&self.blocks, stream, bytes)
    }

    /// The previous cached block in best-fit order, which is not larger.
    pub(crate) fn next_smaller(&self, id: BlockId) -> Option<BlockId> {
        self.pool(self.blocks[id].pool).cached.before(&self.blocks, id)
    }

    /// The size of the largest cached block of `stream` in a half, bytes; 0 if there is none.
    pub(crate) fn largest_bytes(&self, pool: PoolRef, stream: StreamId) -> u64 {
        self.pool(pool).cached.largest_bytes(&self.blocks, stream)
    }

    /// Counts a search of the small or the large half of a pool. The age of cached blocks is measured in searches.
    pub(crate) fn count_search(&mut self, pool: PoolRef) {
        self.pool_mut(pool).searches += 1;
    }

    /// The number of counted searches since a block was cached.
    pub(crate) fn age(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        self.pool(block.pool).searches - block.cached_at
    }

    /// Skips blocks of expandable segments.
    fn not_expandable(&self, mut id: BlockId, pool: &Pool) -> Option<BlockId> {
        while self.blocks[id].range.is_some() {
            id = pool.cached.after(&self.blocks, id)?;
        }
        Some(id)
    }

    /// Moves to the next block as long as that one is smaller, each counted with the unmapped block after it. So a hole
    /// is used before the end of a segment, where the segment grows. Stops at the first block that is not smaller.
    fn least_growing(&self, mut id: BlockId, pool: &Pool) -> BlockId {
        while self.blocks[id].range.is_some() {
            match pool.cached.after(&self.blocks, id) {
                Some(next) if self.with_growth(next) < self.with_growth(id) => id = next,
                _ => break,
            }
        }
        id
    }

    /// A block's bytes plus those of the unmapped block after it.
    fn with_growth(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let behind = block.next.map(|next| &self.blocks[next]).filter(|next| !next.is_mapped());
        block.bytes + behind.map_or(0, |next: &Block| next.bytes)
    }
}

/// Oversize blocks serve only oversize requests. An oversize request uses only blocks that exceed it by less than
/// `max_non_split_rounding`. The sum wraps around, as in PyTorch.
pub(crate) fn fits_oversize_rules(config: &Config, wanted_bytes: u64, found_bytes: u64) -> bool {
    if is_oversize(config, wanted_bytes) {
        found_bytes < wanted_bytes.wrapping_add(config.max_non_split_rounding_bytes())
    } else {
        !is_oversize(config, found_bytes)
    }
}

impl SizedRequest {
    /// Whether to split a block for this request. In the large half, up to 1 MiB is wasted, because only the small half
    /// could use such a remainder. Blocks of expandable segments are split down to 512 bytes.
    #[inline]
    pub(crate) fn cut(&self, config: &Config, found_bytes: u64) -> Cut {
        let rest_bytes = found_bytes - self.block_bytes;
        if is_worth_cutting(config, self.kind, self.expandable, self.block_bytes, rest_bytes) {
            Cut::Front
        } else {
            Cut::Whole
        }
    }
}
