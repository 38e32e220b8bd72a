//! A private pool's own source of segments: [`SegmentAllocator`].
//!
//! Blocks are cut, cached and counted as in any pool; only the segments come from elsewhere (memory that a
//! communication library registered, memory that migrates), and go back there.
//!
//! As PyTorch: `MemPool(allocator)` with a `CUDAPluggableAllocator`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{DeviceRange, Observer};
use crate::private::PoolError;
use crate::request::{Addr, PoolId, StreamId};

/// Gives a private pool its segments instead of the device. Calls come one after another, unless
/// `release_lock_on_cudamalloc` is set; they do not call back.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use plimsoll_alloc::{Addr, Config, DeviceMemory, DriverError, Request, SegmentAllocator, SimDriver, StreamId};
///
/// /// Hands addresses out and forgets what comes back.
/// #[derive(Debug)]
/// struct Shelf(AtomicU64);
/// impl SegmentAllocator for Shelf {
///     fn segment_alloc(&self, bytes: u64, _on: StreamId) -> Result<Addr, DriverError> {
///         Ok(Addr(self.0.fetch_add(bytes, Ordering::Relaxed)))
///     }
///     fn segment_free(&self, _at: Addr, _bytes: u64, _on: StreamId) -> Result<(), DriverError> {
///         Ok(())
///     }
/// }
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// let pool = memory.new_pool_with_allocator(Arc::new(Shelf(AtomicU64::new(0x1000_0000))))?;
/// let x = memory.alloc(Request { pool: pool.id(), ..Request::of(3 << 20) })?;
/// assert_eq!((x.addr(), memory.memory_reserved()), (Addr(0x1000_0000), 20 << 20));
/// assert_eq!(memory.memory_info().free_bytes, 64 << 20); // the device gave nothing
/// # memory.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
pub trait SegmentAllocator: fmt::Debug + Send + Sync {
    /// Makes a segment of `bytes` for the work of a stream and returns its start: not 0, a multiple of 512,
    /// apart from all others of the pool's device.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if it has no more, which the allocator answers as it does the device's;
    /// [`DriverError::Failed`] for anything else.
    fn segment_alloc(&self, bytes: u64, on: StreamId) -> Result<Addr, DriverError>;

    /// Takes a segment back, with what was said when it was made.
    ///
    /// # Errors
    /// If it refuses; the segment then stays in the cache.
    fn segment_free(&self, at: Addr, bytes: u64, on: StreamId) -> Result<(), DriverError>;
}

/// The pools that have an allocator of their own.
#[derive(Debug, Default)]
pub(crate) struct SegmentAllocators(BTreeMap<PoolId, Arc<dyn SegmentAllocator>>);

impl SegmentAllocators {
    pub(crate) fn get(&self, id: PoolId) -> Option<&Arc<dyn SegmentAllocator>> {
        self.0.get(&id)
    }

    pub(crate) fn remove(&mut self, id: PoolId) {
        self.0.remove(&id);
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Makes a private pool with one user, whose segments come from `allocator` for as long as the pool lasts,
    /// and are never expandable. As PyTorch: `createOrIncrefPool` with an allocator.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for the default pool's id, [`PoolError::Exists`] if there is such a pool.
    pub fn create_pool_with_allocator(
        &mut self,
        id: PoolId,
        allocator: Arc<dyn SegmentAllocator>,
    ) -> Result<(), Error> {
        if self.privates.get(id).is_some() {
            return Err(PoolError::Exists(id).into());
        }
        self.create_pool(id)?;
        self.privates.segment_allocators.0.insert(id, allocator);
        Ok(())
    }

    /// Gives a segment back to whoever gave it.
    pub(crate) fn return_segment(&mut self, memory: &DeviceRange) -> Result<(), DriverError> {
        match self.privates.segment_allocators.get(memory.pool_id) {
            Some(theirs) => theirs.segment_free(memory.addr, memory.bytes, memory.stream),
            None => self.driver.segment_free(memory.addr),
        }
    }
}
