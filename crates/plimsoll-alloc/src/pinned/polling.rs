//! Freeing a block: waiting for its events, then caching it or releasing it to the system.
//!
//! Note [Driver failures while freeing]
//! A failed call changes nothing, and no block is lost. As in PyTorch, a block whose event cannot be recorded is
//! retired. In three places, PyTorch's exception leaves a block in no list. Here:
//! - an event that cannot be queried stays first in its queue;
//! - a block that the system fails to free stays in (or goes to) the cache;
//! - the blocks after it also stay in the cache.

use std::mem;

use super::allocator::PinnedAllocator;
use super::block::HostBlockState;
use super::driver::PinnedDriver;
use super::error::PinnedError;
use super::event::{PinnedEvent, PinnedObserver};
use super::pool::Cached;
use super::request::{During, PinnedAllocation};
use super::size::BUCKETS;
use crate::request::{Addr, PoolId};

impl<D: PinnedDriver, O: PinnedObserver> PinnedAllocator<D, O> {
    /// Frees a block. If no stream used it, it is cached at once (or released, if it is larger than the largest cached
    /// size). Otherwise, one event is recorded on each stream, in the order of first use (PyTorch: in the order of a
    /// hash table), and a later request or `empty_cache` completes the free. In PyTorch:
    /// `CachingHostAllocatorImpl::free`.
    ///
    /// # Errors
    /// If the driver fails: Note [Driver failures while freeing]. The block counts as freed in this
    /// case too.
    ///
    /// # Panics
    /// If no block is allocated at its address: it belongs to another allocator.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes a double free impossible")]
    pub fn free(&mut self, allocation: PinnedAllocation) -> Result<(), PinnedError> {
        if allocation == PinnedAllocation::nothing() {
            return Ok(());
        }
        let addr = allocation.addr();
        let block = self.block(addr);
        assert!(block.state == HostBlockState::Held, "{addr} is not allocated: it is {:?}", block.state);
        let (used, during, block) = (!block.streams.is_empty(), block.during, block.seen(addr));
        self.observer.on(&PinnedEvent::FreeRequested { block });
        match (used, during) {
            (false, _) => self.settle(addr),
            (true, During::Eager) => self.wait_for_streams(addr),
            (true, During::Capture) => {
                self.retire(addr);
                Ok(())
            }
        }
    }

    /// Records an event on each stream that used a block; `poll` queries them.
    fn wait_for_streams(&mut self, addr: Addr) -> Result<(), PinnedError> {
        let mut streams = mem::take(&mut self.block(addr).streams);
        let events = streams.len();
        let pool = self.block(addr).pool;
        self.block(addr).state = HostBlockState::Waiting { events };
        let recorded = streams.iter().try_for_each(|&on| {
            let event = self.driver.record(on)?;
            self.pool(pool).waiting.push_back((event, addr));
            Ok(())
        });
        streams.clear();
        self.block(addr).streams = streams; // empty, but keeps its capacity
        if recorded.is_err() {
            self.retire(addr);
        }
        recorded
    }

    /// Retires a block: it stays active forever, because the end of its use cannot be determined.
    fn retire(&mut self, addr: Addr) {
        let block = self.block(addr);
        block.streams.clear();
        block.state = HostBlockState::Retired;
    }

    /// Queries a pool's events, oldest first, until one is not done. The events after that one are not queried. In
    /// PyTorch: `process_events`.
    pub(super) fn poll(&mut self, id: PoolId) -> Result<(), PinnedError> {
        while let Some(&(event, addr)) = self.pool(id).waiting.front() {
            if !self.driver.is_done(event)? {
                break;
            }
            self.pool(id).waiting.pop_front();
            if self.block(addr).event_is_done() {
                self.settle(addr)?;
            }
        }
        Ok(())
    }

    /// Caches a block that is no longer used, or releases it to the system if it is too large for
    /// the cache. In PyTorch: `maybe_cache_block`.
    fn settle(&mut self, addr: Addr) -> Result<(), PinnedError> {
        let block = self.block(addr).seen(addr);
        self.observer.on(&PinnedEvent::FreeCompleted { block });
        self.block(addr).state = HostBlockState::Cached;
        let too_large = self.config.max_cached_bytes().is_some_and(|most_bytes| block.bytes > most_bytes);
        let released = if too_large { self.release(addr) } else { Ok(0) };
        if self.blocks.contains_key(&addr) {
            self.pool(block.pool).put(Cached { addr, bytes: block.bytes });
        }
        released.map(|_| ())
    }

    /// Removes a block that is in no bucket. Returns the bytes released to the system: 0 for a piece of the reserve.
    fn release(&mut self, addr: Addr) -> Result<u64, PinnedError> {
        let elapsed_us = match self.reserve.owns(addr) {
            true => None,
            false => Some(self.driver.unpin(addr)?.elapsed_us),
        };
        let (pool, bytes) = (self.block(addr).pool, self.block(addr).bytes);
        self.blocks.remove(&addr);
        self.observer.on(&PinnedEvent::SegmentFree { addr, bytes, pool, elapsed_us });
        Ok(if elapsed_us.is_some() { bytes } else { 0 })
    }

    /// Polls events, then releases cached blocks to the system: those of the default pool, and of pools that no graph
    /// uses any more. Such a pool is removed with its last block. Returns the bytes released. In PyTorch:
    /// `empty_cache`.
    ///
    /// # Errors
    /// If the driver fails; the remaining blocks stay cached.
    pub fn empty_cache(&mut self) -> Result<u64, PinnedError> {
        let mut bytes = self.empty_pool(PoolId::DEFAULT)?;
        let released = self.pools.iter().filter(|(_, pool)| pool.users == 0).map(|(&id, _)| id);
        for id in released.collect::<Vec<_>>() {
            bytes += self.empty_pool(id)?;
            if self.blocks.values().all(|block| block.pool != id) {
                self.pools.remove(&id);
                self.observer.on(&PinnedEvent::PoolErased { pool: id });
            }
        }
        Ok(bytes)
    }

    fn empty_pool(&mut self, id: PoolId) -> Result<u64, PinnedError> {
        self.poll(id)?;
        (0..BUCKETS).try_fold(0, |bytes, bucket| Ok(bytes + self.empty_bucket(id, bucket)?))
    }

    /// Releases the cached blocks of one bucket, oldest first. Returns the bytes released.
    fn empty_bucket(&mut self, id: PoolId, bucket: usize) -> Result<u64, PinnedError> {
        let mut cached = mem::take(&mut self.pool(id).buckets[bucket]);
        let (mut gone, mut bytes) = (0, 0);
        let result = cached.iter().try_for_each(|block| {
            bytes += self.release(block.addr)?;
            gone += 1;
            Ok(())
        });
        cached.drain(..gone);
        self.pool(id).buckets[bucket] = cached;
        result.map(|()| bytes)
    }
}
