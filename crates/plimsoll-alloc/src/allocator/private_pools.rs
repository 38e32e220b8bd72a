//! Private pools: `private.rs` explains them.

use std::sync::Arc;

use super::Allocator;
use crate::driver::Driver;
use crate::error::{Error, PoolError};
use crate::event::Observer;
use crate::request::PoolId;
use crate::segment_allocator::SegmentAllocator;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Makes a private pool with a use count of 1, or increments its use count. In PyTorch: `createOrIncrefPool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for the default pool's id.
    pub fn create_pool(&mut self, id: PoolId) -> Result<(), Error> {
        let heap = &mut self.heap;
        Ok(self.private_pools.create(id, || heap.add_pool(id))?)
    }

    /// Makes a private pool with a use count of 1. Its segments come from `allocator` as long as the pool exists, and
    /// are never expandable. In PyTorch: `createOrIncrefPool` with an allocator.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for the default pool's id, [`PoolError::Exists`] if the pool exists.
    pub fn create_pool_with_allocator(
        &mut self,
        id: PoolId,
        allocator: Arc<dyn SegmentAllocator>,
    ) -> Result<(), Error> {
        if self.private_pools.use_count(id).is_some() {
            return Err(PoolError::Exists(id).into());
        }
        self.create_pool(id)?;
        self.source.set_allocator(id, allocator);
        Ok(())
    }

    /// Makes a pool or increments its use count, and marks it as the target of requests. The caller decides which
    /// requests go there, by naming the pool in them. In PyTorch: `beginAllocateToPool`.
    ///
    /// # Errors
    /// [`PoolError::AlreadyRecording`] if it already is; the use count is incremented even then, as in
    /// PyTorch.
    pub fn begin_allocate_to_pool(&mut self, id: PoolId) -> Result<(), Error> {
        self.create_pool(id)?;
        Ok(self.private_pools.begin_recording(id)?)
    }

    /// Ends [`begin_allocate_to_pool`](Self::begin_allocate_to_pool); the use count does not change. With
    /// `graph_capture_record_stream_reuse`, the pool's blocks that a capture used and freed become cached. In PyTorch:
    /// `endAllocateToPool`.
    ///
    /// # Errors
    /// [`PoolError::NotRecording`] if requests are not sent to it.
    pub fn end_allocate_to_pool(&mut self, id: PoolId) -> Result<(), Error> {
        self.private_pools.end_recording(id)?;
        if self.config.graph_capture_record_stream_reuse() {
            self.pending.settle_pool(&mut self.heap, id);
        }
        Ok(())
    }

    /// Decrements the use count. At 0, the pool's cache is freed at the next
    /// release of the cache, or by [`empty_pool`](Self::empty_pool). In PyTorch: `releasePool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] or [`PoolError::Unused`] if there is no such pool, or its use count is 0.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), Error> {
        Ok(self.private_pools.release(id)?)
    }

    /// The use count of a pool; `None` if there is no such pool.
    pub fn pool_use_count(&self, id: PoolId) -> Option<u64> {
        self.private_pools.use_count(id)
    }

    /// Sets whether the default pool may use a pool's cached blocks when the device is out of memory.
    /// Stored by id, even before the pool exists. In PyTorch: `setUseOnOOM`.
    pub fn set_use_on_oom(&mut self, id: PoolId, lends: bool) {
        self.private_pools.set_lends(id, lends);
    }

    /// Makes a pool allocate whole segments only. Stored by id, even before the pool
    /// exists. In PyTorch: `setNoSplit`.
    pub fn set_no_split(&mut self, id: PoolId) {
        self.private_pools.set_unsplit(id);
    }

    /// Makes the segments of a pool single allocations of the device, even with `expandable_segments`, so that other
    /// processes can open them. Stored by id, even before the pool exists.
    pub fn set_plain(&mut self, id: PoolId) {
        self.private_pools.set_plain(id);
    }
}
