//! The search: which cached block serves a request, if any, and whether it is split.
//!
//! As PyTorch: `get_free_block`, `should_split`.

use crate::block::{Block, BlockId};
use crate::config::Config;
use crate::pieces::Cut;
use crate::pool::{Pool, PoolKind, PoolRef, Pools};
use crate::request::Request;
use crate::size::{is_oversize, is_worth_cutting};

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
    /// The cached block that serves a request. Only the one that [`find_fit`](Self::find_fit) finds is
    /// checked against the oversize rules: if it fails, none passes.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn serving(&self, sized: &SizedRequest, config: &Config) -> Option<BlockId> {
        self.find_fit(sized)
            .filter(|&id| fits_oversize_rules(config, sized.block_bytes, self.blocks[id].bytes))
    }

    /// The first block that fits a request in Note [Best fit order], adjusted by
    /// [`least_growing`](Self::least_growing) or [`not_expandable`](Self::not_expandable) if there are
    /// expandable segments.
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

    /// Skips blocks of expandable segments.
    fn not_expandable(&self, mut id: BlockId, pool: &Pool) -> Option<BlockId> {
        while self.blocks[id].range.is_some() {
            id = pool.cached.after(&self.blocks, id)?;
        }
        Some(id)
    }

    /// Advances while the next block, including the unmapped block after it, is smaller: a hole is better than
    /// the end at which a segment grows. Stops at the first that is not smaller.
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

/// Oversize blocks serve only oversize requests, which take no more than `max_non_split_rounding` over
/// what they need. The sum wraps around, as PyTorch's does.
pub(crate) fn fits_oversize_rules(config: &Config, wanted_bytes: u64, found_bytes: u64) -> bool {
    if is_oversize(config, wanted_bytes) {
        found_bytes < wanted_bytes.wrapping_add(config.max_non_split_rounding_bytes())
    } else {
        !is_oversize(config, found_bytes)
    }
}

/// Whether to split a block. The large half wastes up to 1 MiB
/// rather than keep a remainder that only the small half could use; expandable segments split to 512 bytes.
pub(crate) fn cut(config: &Config, sized: &SizedRequest, found_bytes: u64) -> Cut {
    let rest_bytes = found_bytes - sized.block_bytes;
    if is_worth_cutting(config, sized.kind, sized.expandable, sized.block_bytes, rest_bytes) {
        Cut::Front
    } else {
        Cut::Whole
    }
}
