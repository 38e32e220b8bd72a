//! Freeing cached memory on the device: all that a pool has cached, or as much as one request needs.
//!
//! In PyTorch: `release_available_cached_blocks`, `release_blocks`, `release_block`.

use super::SegmentSource;
use crate::block::{Block, BlockId, PoolRef};
use crate::config::Config;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::heap::Heap;
use crate::pools::SizedRequest;

impl<D: Driver> SegmentSource<D> {
    /// Releases one half of a pool: whole segments in best-fit order, then pages.
    pub(crate) fn release_pool<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        config: &Config,
        pool: PoolRef,
    ) -> Result<(), Error> {
        let pools = heap.pools();
        let (expandable, others): (Vec<BlockId>, Vec<BlockId>) =
            pools.cached(pool).partition(|&id| pools.block(id).range.is_some());
        let whole: Vec<BlockId> = others.into_iter().filter(|&id| !pools.block(id).is_piece()).collect();
        whole.into_iter().try_for_each(|id| self.release_segment(heap, config, id))?;
        expandable.into_iter().try_for_each(|id| self.unmap_pages(heap, id))
    }

    /// Frees one cached whole segment.
    pub(super) fn release_segment<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        config: &Config,
        id: BlockId,
    ) -> Result<(), Error> {
        self.segment_free(&heap.memory_of(id))?;
        heap.remove_segment(id, config);
        Ok(())
    }

    /// Releases oversize segments of the request's own pool and stream: one that is large enough, or else the largest
    /// ones until their total is large enough. Returns whether enough was released. If not, the segments already
    /// released stay released. Nothing is oversize unless `max_split_size` is set.
    ///
    /// PyTorch also does this during a capture. Unlike PyTorch, we skip a block that is only a piece of a segment. Such a
    /// block can be oversize only if `max_split_size` was lowered at run time; PyTorch then corrupts its state.
    pub(crate) fn release_oversize<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        config: &Config,
        sized: &SizedRequest,
    ) -> Result<bool, Error> {
        let Some(max_split_bytes) = config.max_split_bytes() else { return Ok(false) };
        let (pool, stream) = (sized.pool, sized.request.stream);
        let wanted_bytes = sized.block_bytes.max(max_split_bytes);
        if let Some(id) = heap.pools().best_fit(pool, stream, wanted_bytes)
            && is_releasable(heap.pools().block(id))
        {
            self.release_segment(heap, config, id)?;
            return Ok(true);
        }
        let mut at = heap.pools().largest_below(pool, stream, wanted_bytes);
        let mut released_bytes = 0;
        while let Some(id) = at.filter(|_| released_bytes < wanted_bytes) {
            let block = *heap.pools().block(id);
            if block.bytes < max_split_bytes {
                break;
            }
            at = heap.pools().next_smaller(id);
            if is_releasable(&block) {
                self.release_segment(heap, config, id)?;
                released_bytes += block.bytes;
            }
        }
        Ok(released_bytes >= wanted_bytes)
    }
}

fn is_releasable(block: &Block) -> bool {
    block.range.is_none() && !block.is_piece()
}
