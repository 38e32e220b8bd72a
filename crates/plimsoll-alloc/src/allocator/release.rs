//! Releasing the cache to the device.
//!
//! In PyTorch: `release_cached_blocks`.

use super::Allocator;
use crate::block::PoolRef;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::request::PoolId;
use crate::size::PoolKind;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Frees cached memory on the device: whole segments, and whole pages of expandable ones. The order is: the default
    /// pool's large half, then its small half, each in best-fit order; then the private pools without users, in id
    /// order. Waits for all streams first. Returns the bytes released.
    ///
    /// During a capture it waits for nothing, and the default pool keeps its cache.
    /// In PyTorch: `emptyCache`.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device fails; that segment and those after it stay cached.
    pub fn empty_cache(&mut self) -> Result<u64, Error> {
        self.release_all(None)
    }

    /// Like [`empty_cache`](Self::empty_cache), but for a request that waits for memory: its pool is not removed, even if
    /// it is empty. (PyTorch removes it, and serves the request from a freed pool.)
    pub(super) fn release_all(&mut self, waited_for: Option<PoolId>) -> Result<u64, Error> {
        let before = self.heap.reserved_bytes();
        if !self.in_capture() {
            self.pending.wait(&mut self.heap, self.source.driver_mut(), None)?;
            for kind in [PoolKind::Large, PoolKind::Small] {
                self.source.release_pool(&mut self.heap, &self.config, PoolRef::default_half(kind))?;
            }
        }
        for id in self.private_pools.unused() {
            self.release_private(id)?;
            if waited_for != Some(id) {
                self.forget_if_empty(id);
            }
        }
        Ok(before - self.heap.reserved_bytes())
    }

    /// Frees a private pool's cached memory on the device, if the pool has no users; otherwise
    /// does nothing. During a capture it does nothing either (PyTorch asserts). Waits for the events of its
    /// blocks first. Returns the bytes released.
    /// In PyTorch: `emptyCache` with a pool's id, which is what dropping a `MemPool` does.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device fails; that segment and those after it stay cached.
    pub fn empty_pool(&mut self, id: PoolId) -> Result<u64, Error> {
        let before = self.heap.reserved_bytes();
        if self.private_pools.is_unused(id) && !self.in_capture() {
            self.pending.wait(&mut self.heap, self.source.driver_mut(), Some(id))?;
            self.release_private(id)?;
            self.forget_if_empty(id);
        }
        Ok(before - self.heap.reserved_bytes())
    }

    /// Releases a private pool's cache.
    fn release_private(&mut self, id: PoolId) -> Result<(), Error> {
        let halves = self.private_pools.halves(id)?;
        halves.into_iter().try_for_each(|half| self.source.release_pool(&mut self.heap, &self.config, half))
    }

    fn forget_if_empty(&mut self, id: PoolId) {
        if self.private_pools.halves(id).is_ok_and(|halves| self.heap.remove_if_empty(halves)) {
            self.private_pools.remove(id);
            self.source.remove_pool(id);
        }
    }
}
