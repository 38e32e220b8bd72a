//! Pinned memory for many threads: [`PinnedMemory`], the allocator behind one lock.
//!
//! PyTorch has a lock for each bucket, so that threads with different sizes do not wait for each other. A
//! request here is a few steps on small lists, but the driver's slow calls are made under the lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::allocator::PinnedAllocator;
use super::driver::PinnedDriver;
use super::error::PinnedError;
use super::request::{DeviceStream, PinnedAllocation, PinnedRequest};
use super::segment::PinnedSegment;
use super::stats::PinnedStats;
use crate::config::PinnedConfig;
use crate::lock::{Guard, Lock};
use crate::request::{Addr, PoolId};
use crate::violation::Violation;

type Shared = PinnedAllocator<Box<dyn PinnedDriver + Send>, PinnedStats>;

/// A process's pinned memory. Clones are handles to the same memory.
///
/// ```
/// use plimsoll_alloc::{PinnedConfig, PinnedMemory, PinnedRequest, SimHost};
///
/// let memory = PinnedMemory::new(PinnedConfig::default(), SimHost::with_capacity(1 << 20));
/// let x = memory.alloc(PinnedRequest::of(100_000))?;
/// memory.free(x)?;
/// assert_eq!(memory.host_memory_stats()["allocated_bytes.current"], 131_072);
/// assert_eq!(memory.empty_cache()?, 131_072);
/// # Ok::<(), plimsoll_alloc::PinnedError>(())
/// ```
#[derive(Clone)]
pub struct PinnedMemory {
    shared: Arc<Lock<Shared>>,
}

impl PinnedMemory {
    /// Makes a handle to the memory that `driver` can pin. Nothing is pinned yet.
    pub fn new(config: PinnedConfig, driver: impl PinnedDriver + Send + 'static) -> Self {
        let driver: Box<dyn PinnedDriver + Send> = Box::new(driver);
        Self { shared: Arc::new(Lock::new(PinnedAllocator::new(config, driver, PinnedStats::default()))) }
    }

    /// Allocates: [`PinnedAllocator::alloc`].
    ///
    /// # Errors
    /// The same errors as [`PinnedAllocator::alloc`].
    pub fn alloc(&self, request: PinnedRequest) -> Result<PinnedAllocation, PinnedError> {
        self.lock().alloc(request)
    }

    /// Records a use: [`PinnedAllocator::record_event`].
    ///
    /// # Panics
    /// Like [`PinnedAllocator::record_event`].
    pub fn record_event(&self, addr: Addr, on: DeviceStream) -> bool {
        self.lock().record_event(addr, on)
    }

    /// Frees a block: [`PinnedAllocator::free`].
    ///
    /// # Errors
    /// The same errors as [`PinnedAllocator::free`].
    ///
    /// # Panics
    /// Like [`PinnedAllocator::free`].
    pub fn free(&self, allocation: PinnedAllocation) -> Result<(), PinnedError> {
        self.lock().free(allocation)
    }

    /// Releases cached blocks and returns their bytes: [`PinnedAllocator::empty_cache`].
    ///
    /// # Errors
    /// The same errors as [`PinnedAllocator::empty_cache`].
    pub fn empty_cache(&self) -> Result<u64, PinnedError> {
        self.lock().empty_cache()
    }

    /// Sets the options: [`PinnedAllocator::set_config`].
    pub fn set_config(&self, config: PinnedConfig) {
        self.lock().set_config(config);
    }

    /// Begins a capture: [`PinnedAllocator::begin_allocate_to_pool`].
    ///
    /// # Errors
    /// The same errors as [`PinnedAllocator::begin_allocate_to_pool`].
    pub fn begin_allocate_to_pool(&self, pool: PoolId) -> Result<(), PinnedError> {
        self.lock().begin_allocate_to_pool(pool)
    }

    /// Ends a capture: [`PinnedAllocator::end_allocate_to_pool`].
    ///
    /// # Errors
    /// The same errors as [`PinnedAllocator::end_allocate_to_pool`].
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<(), PinnedError> {
        self.lock().end_allocate_to_pool(pool)
    }

    /// Releases a graph's use of a pool: [`PinnedAllocator::release_pool`].
    ///
    /// # Errors
    /// The same errors as [`PinnedAllocator::release_pool`].
    pub fn release_pool(&self, pool: PoolId) -> Result<(), PinnedError> {
        self.lock().release_pool(pool)
    }

    /// PyTorch's 28 statistics by key: [`PinnedStats::host_memory_stats`].
    pub fn host_memory_stats(&self) -> BTreeMap<String, i64> {
        self.lock().observer().host_memory_stats()
    }

    /// Resets every peak to the current value: [`PinnedStats::reset_peak`].
    pub fn reset_peak_host_memory_stats(&self) {
        self.lock().observer_mut().reset_peak();
    }

    /// Resets every accumulated statistic to 0: [`PinnedStats::reset_accumulated`].
    pub fn reset_accumulated_host_memory_stats(&self) {
        self.lock().observer_mut().reset_accumulated();
    }

    /// All blocks, in address order: [`PinnedAllocator::segments`].
    pub fn segments(&self) -> Vec<PinnedSegment> {
        self.lock().segments()
    }

    /// Checks that state and statistics are consistent.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Violation> {
        let memory = self.lock();
        memory.check()?;
        memory.observer().check(&memory.segments())
    }

    fn lock(&self) -> Guard<'_, Shared> {
        self.shared.lock()
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMemory").field("blocks", &self.segments().len()).finish_non_exhaustive()
    }
}
