//! Private pools: handles to them ([`Pool`]), and calls by pool id.
//!
//! In PyTorch: `MemPool`, `beginAllocateToPool`.

use std::sync::Arc;

use super::memory::DeviceMemory;
use super::redirect::Redirect;
use super::state::Core;
use crate::checkpoint::{Checkpoint, Restored};
use crate::error::Error;
use crate::request::PoolId;
use crate::segment::Segment;
use crate::segment_allocator::SegmentAllocator;

/// A handle to a private pool. Dropping it decrements the pool's use count.
///
/// ```
/// use plimsoll_alloc::{Config, DeviceMemory, Request, SimDriver};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// let pool = memory.new_pool()?;
/// let guard = pool.use_here()?;
/// let x = memory.alloc(Request::of(3 << 20))?; // from the pool
/// drop(guard);
/// let y = memory.alloc(Request::of(3 << 20))?; // not from the pool, although it has room
/// assert_eq!(memory.memory_reserved(), 40 << 20);
/// memory.free(x);
/// drop(pool); // and its memory goes back to the device
/// assert_eq!(memory.memory_reserved(), 20 << 20);
/// # memory.free(y);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    memory: DeviceMemory,
    id: PoolId,
}

impl Pool {
    /// Its id, for requests that name a pool.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Sends this thread's requests to the pool until the guard is dropped.
    ///
    /// # Errors
    /// The same errors as [`DeviceMemory::begin_allocate_to_pool`].
    pub fn use_here(&self) -> Result<PoolGuard, Error> {
        self.memory.begin_allocate_to_pool(self.id, Redirect::ThisThread)?;
        Ok(PoolGuard { memory: self.memory.clone(), id: self.id })
    }

    /// The pool's segments and blocks, in address order. In PyTorch: `MemPool.snapshot`.
    pub fn segments(&self) -> Vec<Segment> {
        let mut segments = self.memory.segments();
        segments.retain(|segment| segment.pool_id == self.id);
        segments
    }

    /// Frees the pool's cached memory on the device. Does nothing while the pool is in use:
    /// [`Allocator::empty_pool`](crate::Allocator::empty_pool).
    ///
    /// # Errors
    /// The same errors as [`Allocator::empty_pool`](crate::Allocator::empty_pool).
    pub fn empty_cache(&self) -> Result<u64, Error> {
        self.memory.empty_pool(self.id)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The pool exists and is in use by this value; if the device fails to free memory, it stays
        // cached until the next release.
        let _ = self.memory.release_pool(self.id);
        let _ = self.memory.empty_pool(self.id);
    }
}

/// Redirects a thread's requests to a pool as long as it exists: [`Pool::use_here`]; see [`Pool`] for an example.
#[derive(Debug)]
#[must_use = "the sending ends when the guard is dropped"]
pub struct PoolGuard {
    memory: DeviceMemory,
    id: PoolId,
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        // Both calls undo `use_here`, and fail only if the caller has already undone it.
        let _ = self.memory.end_allocate_to_pool(self.id);
        let _ = self.memory.release_pool(self.id);
    }
}

/// Private pools by id.
impl DeviceMemory {
    /// Makes a private pool with a new id, (0, n).
    ///
    /// # Errors
    /// The same errors as [`Allocator::create_pool`](crate::Allocator::create_pool).
    pub fn new_pool(&self) -> Result<Pool, Error> {
        self.new_pool_as(|core, id| core.create_pool(id))
    }

    /// Makes a private pool with a new id, (0, n), and its own segment allocator. In PyTorch: `MemPool(allocator)`.
    ///
    /// # Errors
    /// The same errors as [`Allocator::create_pool_with_allocator`](crate::Allocator::create_pool_with_allocator).
    pub fn new_pool_with_allocator(&self, allocator: Arc<dyn SegmentAllocator>) -> Result<Pool, Error> {
        self.new_pool_as(|core, id| core.create_pool_with_allocator(id, allocator))
    }

    fn new_pool_as(
        &self,
        create: impl FnOnce(&mut Core, PoolId) -> Result<(), Error>,
    ) -> Result<Pool, Error> {
        let mut shared = self.lock();
        shared.pools_made += 1;
        let id = PoolId(0, shared.pools_made);
        create(&mut shared.core, id)?;
        Ok(Pool { memory: self.clone(), id })
    }

    /// Makes a pool, or increments its use count: [`Allocator::create_pool`](crate::Allocator::create_pool).
    ///
    /// # Errors
    /// The same errors as [`Allocator::create_pool`](crate::Allocator::create_pool).
    pub fn create_pool(&self, id: PoolId) -> Result<(), Error> {
        self.lock().core.create_pool(id)
    }

    /// Makes a pool with its own segment allocator:
    /// [`Allocator::create_pool_with_allocator`](crate::Allocator::create_pool_with_allocator).
    ///
    /// # Errors
    /// The same errors as [`Allocator::create_pool_with_allocator`](crate::Allocator::create_pool_with_allocator).
    pub fn create_pool_with_allocator(
        &self,
        id: PoolId,
        allocator: Arc<dyn SegmentAllocator>,
    ) -> Result<(), Error> {
        self.lock().core.create_pool_with_allocator(id, allocator)
    }

    /// Starts sending requests to a pool:
    /// [`Allocator::begin_allocate_to_pool`](crate::Allocator::begin_allocate_to_pool).
    ///
    /// # Errors
    /// The same errors as [`Allocator::begin_allocate_to_pool`](crate::Allocator::begin_allocate_to_pool).
    pub fn begin_allocate_to_pool(&self, id: PoolId, whose: Redirect) -> Result<(), Error> {
        let mut shared = self.lock();
        shared.core.begin_allocate_to_pool(id)?;
        shared.redirects.begin(id, whose);
        Ok(())
    }

    /// Stops sending requests to a pool:
    /// [`Allocator::end_allocate_to_pool`](crate::Allocator::end_allocate_to_pool).
    ///
    /// # Errors
    /// The same errors as [`Allocator::end_allocate_to_pool`](crate::Allocator::end_allocate_to_pool).
    pub fn end_allocate_to_pool(&self, id: PoolId) -> Result<(), Error> {
        let mut shared = self.lock();
        shared.core.end_allocate_to_pool(id)?;
        shared.redirects.end(id);
        Ok(())
    }

    /// Decrements a pool's use count: [`Allocator::release_pool`](crate::Allocator::release_pool).
    ///
    /// # Errors
    /// The same errors as [`Allocator::release_pool`](crate::Allocator::release_pool).
    pub fn release_pool(&self, id: PoolId) -> Result<(), Error> {
        self.lock().core.release_pool(id)
    }

    /// The use count of a pool: [`Allocator::pool_use_count`](crate::Allocator::pool_use_count).
    pub fn pool_use_count(&self, id: PoolId) -> Option<u64> {
        self.lock().core.pool_use_count(id)
    }

    /// Sets whether the default pool may use a pool's cached blocks when the device is out of memory.
    pub fn set_use_on_oom(&self, id: PoolId, lends: bool) {
        self.lock().core.set_use_on_oom(id, lends);
    }

    /// Makes a pool allocate whole segments only.
    pub fn set_no_split(&self, id: PoolId) {
        self.lock().core.set_no_split(id);
    }

    /// Makes the segments of a pool single allocations of the device:
    /// [`Allocator::set_plain`](crate::Allocator::set_plain).
    pub fn set_plain(&self, id: PoolId) {
        self.lock().core.set_plain(id);
    }

    /// Frees an unused pool's cached memory: [`Allocator::empty_pool`](crate::Allocator::empty_pool).
    ///
    /// # Errors
    /// The same errors as [`Allocator::empty_pool`](crate::Allocator::empty_pool).
    pub fn empty_pool(&self, id: PoolId) -> Result<u64, Error> {
        self.lock().core.empty_pool(id)
    }

    /// Saves a pool's layout: [`Allocator::checkpoint`](crate::Allocator::checkpoint).
    ///
    /// # Errors
    /// The same errors as [`Allocator::checkpoint`](crate::Allocator::checkpoint).
    pub fn checkpoint(&self, id: PoolId) -> Result<Checkpoint, Error> {
        self.lock().core.checkpoint(id)
    }

    /// Restores a pool's layout: [`Allocator::restore`](crate::Allocator::restore).
    ///
    /// # Errors
    /// The same errors as [`Allocator::restore`](crate::Allocator::restore).
    pub fn restore(&self, checkpoint: &Checkpoint) -> Result<Restored, Error> {
        self.lock().core.restore(checkpoint)
    }

    /// Begins a capture: [`Allocator::begin_capture`](crate::Allocator::begin_capture).
    pub fn begin_capture(&self) {
        self.lock().core.begin_capture();
    }

    /// Ends a capture: [`Allocator::end_capture`](crate::Allocator::end_capture).
    ///
    /// # Panics
    /// If no capture is under way.
    pub fn end_capture(&self) {
        self.lock().core.end_capture();
    }
}
