//! Releasing the cache to the device: all of it, or as much as one request needs.
//!
//! As PyTorch: `release_cached_blocks`, `release_available_cached_blocks`, `release_blocks`,
//! `release_block`.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::pool::{PoolKind, PoolRef};
use crate::private::Private;
use crate::request::PoolId;
use crate::search::SizedRequest;
use crate::size::is_oversize;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Frees cached memory on the device: whole segments, and whole pages of expandable ones. First the
    /// default pool's large half, then its small one, each in best-fit order; then the private
    /// pools without users, by id. Waits for all streams first. Returns the bytes released.
    ///
    /// During a capture it waits for nothing, and the default pool keeps its cache.
    /// As PyTorch: `emptyCache`.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device fails; that segment and those after it stay cached.
    pub fn empty_cache(&mut self) -> Result<u64, Error> {
        self.release_all(None)
    }

    /// The same while a request waits for memory: its pool is not removed, even if it is empty.
    /// (PyTorch removes it, and serves the request from a freed pool.)
    pub(crate) fn release_all(&mut self, waited_for: Option<PoolId>) -> Result<u64, Error> {
        let before = self.reserved_bytes;
        if !self.in_capture() {
            self.wait_for_events(None)?;
            self.release_pool_memory(PoolRef::default_half(PoolKind::Large))?;
            self.release_pool_memory(PoolRef::default_half(PoolKind::Small))?;
        }
        for id in self.privates.unused() {
            self.release_private(id)?;
            if waited_for != Some(id) {
                self.forget_if_empty(id);
            }
        }
        Ok(before - self.reserved_bytes)
    }

    /// Frees a private pool's cached memory on the device, if the pool has no users; otherwise
    /// does nothing. During a capture it does nothing either (PyTorch asserts). Waits for the events of its
    /// blocks first. Returns the bytes released.
    /// As PyTorch: `emptyCache` with a pool's id, which is what dropping a `MemPool` does.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device fails; that segment and those after it stay cached.
    pub fn empty_pool(&mut self, id: PoolId) -> Result<u64, Error> {
        let before = self.reserved_bytes;
        if self.privates.get(id).is_some_and(Private::is_unused) && !self.in_capture() {
            self.wait_for_events(Some(id))?;
            self.release_private(id)?;
            self.forget_if_empty(id);
        }
        Ok(before - self.reserved_bytes)
    }

    /// Releases a private pool's cache.
    fn release_private(&mut self, id: PoolId) -> Result<(), Error> {
        let Some([small, large]) = self.privates.get(id).map(|pool| pool.halves) else { return Ok(()) };
        self.release_pool_memory(small)?;
        self.release_pool_memory(large)
    }

    fn forget_if_empty(&mut self, id: PoolId) {
        if let Some([small, large]) = self.privates.get(id).map(|pool| pool.halves)
            && self.pools.pool(small).segments + self.pools.pool(large).segments == 0
        {
            self.pools.remove_pool(small);
            self.privates.remove(id);
        }
    }

    /// Releases one half of a pool: whole segments in best-fit order, then pages.
    fn release_pool_memory(&mut self, pool: PoolRef) -> Result<(), Error> {
        let blocks = &self.pools.blocks;
        let cached = self.pools.pool(pool).cached.iter(blocks);
        let (expandable, others): (Vec<BlockId>, Vec<BlockId>) =
            cached.partition(|&id| blocks[id].range.is_some());
        let whole: Vec<BlockId> = others.into_iter().filter(|&id| !blocks[id].is_piece()).collect();
        whole.into_iter().try_for_each(|id| self.release_segment(id))?;
        expandable.into_iter().try_for_each(|id| self.unmap_pages(id))
    }

    /// Frees one cached whole segment.
    pub(crate) fn release_segment(&mut self, id: BlockId) -> Result<(), Error> {
        let memory = self.memory_of(&self.pools.blocks[id]);
        self.return_segment(&memory)?;
        self.reserved_bytes -= memory.bytes;
        self.pools.remove_segment(id);
        let oversize = is_oversize(&self.config, memory.bytes);
        self.observer.on(&Event::SegmentFree { memory, oversize });
        Ok(())
    }

    /// Releases oversize segments of the request's own pool and stream: one that is large enough, or else
    /// the largest ones until their total is. Returns whether enough was released; segments that were released
    /// without being enough stay released. Nothing is oversize unless `max_split_size` is set.
    ///
    /// PyTorch also does this during a capture. Unlike PyTorch, a piece of a segment is skipped: there
    /// can be one only if `max_split_size` was lowered at run time, and PyTorch then corrupts its state.
    pub(crate) fn release_oversize(&mut self, sized: &SizedRequest) -> Result<bool, Error> {
        let Some(max_split_bytes) = self.config.max_split_bytes() else { return Ok(false) };
        let stream = sized.request.stream;
        let wanted_bytes = sized.block_bytes.max(max_split_bytes);
        let cached = &self.pools.pool(sized.pool).cached;
        if let Some(id) = cached.first_from(&self.pools.blocks, stream, wanted_bytes)
            && self.is_releasable(id)
        {
            self.release_segment(id)?;
            return Ok(true);
        }
        let mut at = cached.last_before(&self.pools.blocks, stream, wanted_bytes);
        let mut released_bytes = 0;
        while let Some(id) = at.filter(|_| released_bytes < wanted_bytes) {
            let block = self.pools.blocks[id];
            if block.bytes < max_split_bytes {
                break;
            }
            at = self.pools.pool(sized.pool).cached.before(&self.pools.blocks, id);
            if self.is_releasable(id) {
                self.release_segment(id)?;
                released_bytes += block.bytes;
            }
        }
        Ok(released_bytes >= wanted_bytes)
    }

    fn is_releasable(&self, id: BlockId) -> bool {
        let block = &self.pools.blocks[id];
        block.range.is_none() && !block.is_piece()
    }
}
