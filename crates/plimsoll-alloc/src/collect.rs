//! Garbage collection: cached segments that have not been used for long are freed before the device is
//! asked for more, once the reserved bytes exceed a fraction of the memory limit.
//!
//! Age is counted in searches of the pool. Only the default pool's large blocks are collected, and only whole
//! segments; it waits for no event.
//!
//! As PyTorch: `garbage_collect_cached_blocks`.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::grow::fraction_of;
use crate::pool::{PoolKind, PoolRef};

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// The limit that the threshold applies to, if both are set.
    pub(crate) fn collected_limit(&self) -> Option<u64> {
        self.limit_bytes.filter(|_| self.config.garbage_collection_threshold() > 0.0)
    }

    /// Releases segments of at least average age until the reserved bytes are below the threshold, or
    /// nothing more can be released. Each round releases all that are old enough, even beyond the target; the
    /// average of a round is over those that earlier rounds left.
    pub(crate) fn collect_garbage(&mut self, limit_bytes: u64) -> Result<(), Error> {
        let threshold_bytes = fraction_of(self.config.garbage_collection_threshold(), limit_bytes);
        let Some(target_bytes) = self.reserved_bytes.checked_sub(threshold_bytes).filter(|&over| over > 0)
        else {
            return Ok(());
        };
        let large = PoolRef::default_half(PoolKind::Large);
        let (mut ages, mut count) = (0, 0);
        for id in self.whole_blocks(large) {
            ages += self.age(id);
            count += 1;
        }
        let mut released_bytes = 0;
        while released_bytes < target_bytes && count > 0 {
            let average = ages as f64 / f64::from(count);
            let old = |&id: &BlockId| self.pools.blocks[id].range.is_none() && self.age(id) as f64 >= average;
            let round: Vec<BlockId> = self.whole_blocks(large).filter(old).collect();
            if round.is_empty() {
                break;
            }
            for id in round {
                ages -= self.age(id);
                count -= 1;
                released_bytes += self.pools.blocks[id].bytes;
                self.release_segment(id)?;
            }
        }
        Ok(())
    }

    /// Cached blocks that are whole segments, in search order. A whole block of an expandable segment
    /// counts in the average, but is never released.
    fn whole_blocks(&self, pool: PoolRef) -> impl Iterator<Item = BlockId> + '_ {
        self.pools.pool(pool).cached.iter(&self.pools.blocks).filter(|&id| !self.pools.blocks[id].is_piece())
    }

    /// Searches since a block was cached.
    fn age(&self, id: BlockId) -> u64 {
        let block = &self.pools.blocks[id];
        self.pools.pool(block.pool).searches - block.cached_at
    }
}
