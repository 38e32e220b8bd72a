//! A private pool's own segment allocator: [`SegmentAllocator`].
//!
//! Blocks are split, cached and counted as in any pool. Only the segments are allocated and freed elsewhere (memory
//! that a communication library registered, managed memory).
//!
//! In PyTorch: `MemPool(allocator)` with a `CUDAPluggableAllocator`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::driver::DriverError;
use crate::request::{Addr, PoolId, StreamId};

/// Allocates the segments of a private pool, in place of the device. Calls do not overlap unless
/// `release_lock_on_cudamalloc` is set. It must not call the allocator.
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
    /// Allocates a segment of `bytes` for a stream and returns its address: not 0, a multiple of 512,
    /// overlapping no other segment of the device.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if it is out of memory; the allocator handles it like the device's.
    /// [`DriverError::Failed`] for anything else.
    fn segment_alloc(&self, bytes: u64, on: StreamId) -> Result<Addr, DriverError>;

    /// Frees a segment, given the size and stream with which it was allocated.
    ///
    /// # Errors
    /// If it fails; the segment then stays cached.
    fn segment_free(&self, at: Addr, bytes: u64, on: StreamId) -> Result<(), DriverError>;
}

/// The pools with their own segment allocator.
#[derive(Debug, Default)]
pub(crate) struct SegmentAllocators(BTreeMap<PoolId, Arc<dyn SegmentAllocator>>);

impl SegmentAllocators {
    #[inline]
    pub(crate) fn get(&self, id: PoolId) -> Option<&Arc<dyn SegmentAllocator>> {
        self.0.get(&id)
    }

    pub(crate) fn insert(&mut self, id: PoolId, allocator: Arc<dyn SegmentAllocator>) {
        self.0.insert(id, allocator);
    }

    pub(crate) fn remove(&mut self, id: PoolId) {
        self.0.remove(&id);
    }
}
