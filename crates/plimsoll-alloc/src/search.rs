//! The search: which cached block serves a request, if any, and whether it is cut.
//!
//! As PyTorch: `get_free_block`, `should_split`.

use crate::block::{Block, BlockId};
use crate::config::Config;
use crate::pieces::Cut;
use crate::pool::{Pool, PoolKind, PoolRef, Pools};
use crate::request::Request;
use crate::size::{is_oversize, is_worth_cutting};

/// A request with what follows from its size and the options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) request: Request,
    pub(crate) block_bytes: u64,
    /// What the device is asked for if no cached block serves.
    pub(crate) segment_bytes: u64,
    pub(crate) kind: PoolKind,
    /// Where it is looked for; the ladder may turn to another pool.
    pub(crate) pool: PoolRef,
    /// Whether expandable segments may serve it.
    pub(crate) expandable: bool,
}

impl Pools {
    /// The cached block that serves a request. Only the one that [`find_fit`](Self::find_fit) finds is
    /// tested for the oversize rules: if it fails, none does.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn serving(&self, ask: &Ask, config: &Config) -> Option<BlockId> {
        self.find_fit(ask).filter(|&id| fits_oversize_rules(config, ask.block_bytes, self.blocks[id].bytes))
    }

    /// The first block that holds a request in Note [Best fit order], passed on by
    /// [`least_growing`](Self::least_growing) or [`not_expandable`](Self::not_expandable) where there are
    /// expandable segments.
    #[inline(always)] // as above
    pub(crate) fn find_fit(&self, ask: &Ask) -> Option<BlockId> {
        let pool = self.pool(ask.pool);
        let first = pool.cached.first_from(&self.blocks, ask.request.stream, ask.block_bytes)?;
        match (ask.expandable, self.blocks[first].range) {
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

    /// Walks on while the next block, with the unmapped piece behind it, is smaller: a hole is better than
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

    /// A block's bytes with those of the unmapped piece behind it.
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

/// Whether the rest of a found block is worth a block of its own. The large half gives up to 1 MiB away
/// rather than keep a piece that only the small half could use; expandable segments cut to the last 512.
pub(crate) fn cut(config: &Config, ask: &Ask, found_bytes: u64) -> Cut {
    let rest_bytes = found_bytes - ask.block_bytes;
    if is_worth_cutting(config, ask.kind, ask.expandable, ask.block_bytes, rest_bytes) {
        Cut::Front
    } else {
        Cut::Whole
    }
}
