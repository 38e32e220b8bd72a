//! Garbage collection. Once the reserved bytes exceed a fraction of the memory limit, cached segments that have not
//! been used for long are freed before new device memory is allocated.
//!
//! Age is counted in searches of the pool. Only whole segments in the default pool's large half are collected.
//! Collection does not wait for events.
//!
//! In PyTorch: `garbage_collect_cached_blocks`.

use super::SegmentSource;
use crate::block::{BlockId, PoolRef};
use crate::config::Config;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::heap::Heap;
use crate::memory_limit::fraction_of;
use crate::pools::Pools;
use crate::size::PoolKind;

impl<D: Driver> SegmentSource<D> {
    /// Releases segments of at least average age until the reserved bytes are below the threshold, or nothing more can
    /// be released. Each round releases all segments that are old enough, even beyond the target. The average is
    /// computed again for each round, over the segments that are left.
    pub(crate) fn collect_garbage<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        config: &Config,
        limit_bytes: u64,
    ) -> Result<(), Error> {
        let threshold_bytes = fraction_of(config.garbage_collection_threshold(), limit_bytes);
        let Some(target_bytes) = heap.reserved_bytes().checked_sub(threshold_bytes).filter(|&over| over > 0)
        else {
            return Ok(());
        };
        let (mut ages, mut count) = (0, 0);
        for id in whole_blocks(heap.pools()) {
            ages += heap.pools().age(id);
            count += 1;
        }
        let mut released_bytes = 0;
        while released_bytes < target_bytes && count > 0 {
            let average = ages as f64 / f64::from(count);
            let pools = heap.pools();
            let old = |&id: &BlockId| pools.block(id).range.is_none() && pools.age(id) as f64 >= average;
            let round: Vec<BlockId> = whole_blocks(pools).filter(old).collect();
            if round.is_empty() {
                break;
            }
            for id in round {
                ages -= heap.pools().age(id);
                count -= 1;
                released_bytes += heap.pools().block(id).bytes;
                self.release_segment(heap, config, id)?;
            }
        }
        Ok(())
    }
}

/// The cached blocks of the default pool's large half that are whole segments, in search order. A block that is a whole
/// expandable segment counts in the average, but is never released.
fn whole_blocks(pools: &Pools) -> impl Iterator<Item = BlockId> + '_ {
    pools.cached(PoolRef::default_half(PoolKind::Large)).filter(|&id| !pools.block(id).is_piece())
}
