//! The allocator behind a lock: [`DeviceMemory`]. The one file with a lock.
//!
//! Everything is decided in the core; here a call takes the lock, asks, and lets go. PyTorch's names are
//! used where PyTorch has one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::category::{Category, CategoryBytes};
use crate::check::Violation;
use crate::config::Config;
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::ledger::{Ledger, Owner};
use crate::lock::{Guard, Lock};
use crate::request::{Allocation, LabelId, Request};
use crate::segment::Segment;
use crate::stats::Stats;

type Shared = Allocator<Box<dyn Driver + Send>, (Stats, Ledger)>;

/// One device's memory, for many threads. Clones are handles to the same memory.
///
/// ```
/// use plimsoll_alloc::{Config, DeviceMemory, Request, SimDriver};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// let x = memory.alloc(Request::of(3 << 20))?;
/// assert_eq!((memory.memory_allocated(), memory.memory_reserved()), (3 << 20, 20 << 20));
/// memory.free(x);
/// assert_eq!((memory.memory_allocated(), memory.max_memory_allocated()), (0, 3 << 20));
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceMemory {
    shared: Arc<Lock<Shared>>,
}

impl DeviceMemory {
    /// The memory of the device behind `driver`; nothing is held yet.
    pub fn new(config: Config, driver: impl Driver + Send + 'static) -> Self {
        let driver: Box<dyn Driver + Send> = Box::new(driver);
        Self { shared: Arc::new(Lock::new(Allocator::new(config, driver, Default::default()))) }
    }

    /// Serves a request: [`Allocator::malloc`].
    ///
    /// # Errors
    /// As [`Allocator::malloc`].
    pub fn alloc(&self, request: Request) -> Result<Allocation, Error> {
        self.lock().malloc(request)
    }

    /// Takes a block back: [`Allocator::free`].
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn free(&self, allocation: Allocation) {
        self.lock().free(allocation);
    }

    /// Says that a live block is now for something else: [`Allocator::retag`].
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn retag(&self, allocation: &Allocation, category: Category, label: LabelId) {
        self.lock().retag(allocation, category, label);
    }

    /// Returns cached segments to the device; bytes released: [`Allocator::empty_cache`].
    ///
    /// # Errors
    /// As [`Allocator::empty_cache`].
    pub fn empty_cache(&self) -> Result<u64, Error> {
        self.lock().empty_cache()
    }

    /// Bounds the reserved bytes to a fraction of the device: [`Allocator::set_memory_fraction`].
    ///
    /// # Errors
    /// As [`Allocator::set_memory_fraction`].
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        self.lock().set_memory_fraction(fraction)
    }

    /// Bounds the reserved bytes, or lifts the bound: [`Allocator::set_memory_limit`].
    pub fn set_memory_limit(&self, limit_bytes: Option<u64>) {
        self.lock().set_memory_limit(limit_bytes);
    }

    /// The bound on the reserved bytes, if there is one.
    pub fn memory_limit(&self) -> Option<u64> {
        self.lock().memory_limit()
    }

    /// What the device has.
    pub fn memory_info(&self) -> MemoryInfo {
        self.lock().memory_info()
    }

    /// Bytes in blocks that callers hold.
    pub fn memory_allocated(&self) -> u64 {
        bytes(self.lock().observer().0.allocated_bytes().all.current)
    }

    /// The most bytes in blocks that callers held, since the start or the last reset.
    pub fn max_memory_allocated(&self) -> u64 {
        bytes(self.lock().observer().0.allocated_bytes().all.peak)
    }

    /// Bytes in segments held of the device.
    pub fn memory_reserved(&self) -> u64 {
        self.lock().reserved()
    }

    /// The most bytes in segments held of the device, since the start or the last reset.
    pub fn max_memory_reserved(&self) -> u64 {
        bytes(self.lock().observer().0.reserved_bytes().all.peak)
    }

    /// Makes every peak what is current, in the statistics and in the ledger.
    pub fn reset_peak_memory_stats(&self) {
        let mut memory = self.lock();
        let (stats, ledger) = memory.observer_mut();
        stats.reset_peak();
        ledger.reset_peak();
    }

    /// Makes every accumulated statistic 0: [`Stats::reset_accumulated`].
    pub fn reset_accumulated_memory_stats(&self) {
        self.lock().observer_mut().0.reset_accumulated();
    }

    /// PyTorch's 123 statistics by key: [`Stats::memory_stats`].
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        self.lock().observer().0.memory_stats()
    }

    /// PyTorch's table of statistics: [`Stats::summary`].
    pub fn memory_summary(&self, title: &str) -> String {
        self.lock().observer().0.summary(title)
    }

    /// Allocated bytes by category.
    pub fn by_category(&self) -> CategoryBytes {
        self.lock().observer().1.by_category()
    }

    /// Allocated bytes by category when they were at their peak.
    pub fn by_category_at_peak(&self) -> CategoryBytes {
        self.lock().observer().1.by_category_at_peak()
    }

    /// Who holds how much: [`Ledger::owners`].
    pub fn owners(&self) -> Vec<Owner> {
        self.lock().observer().1.owners()
    }

    /// Who held how much at the peak: [`Ledger::owners_at_peak`].
    pub fn owners_at_peak(&self) -> Vec<Owner> {
        self.lock().observer().1.owners_at_peak()
    }

    /// All segments and their blocks, by address: [`Allocator::segments`].
    pub fn segments(&self) -> Vec<Segment> {
        self.lock().segments()
    }

    /// Whether state, statistics and ledger are sound and agree.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let memory = self.lock();
        memory.check()?;
        let segments = memory.segments();
        let (stats, ledger) = memory.observer();
        stats.check(&segments)?;
        ledger.check(&segments)
    }

    #[inline]
    fn lock(&self) -> Guard<'_, Shared> {
        self.shared.lock()
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("reserved_bytes", &self.memory_reserved())
            .finish_non_exhaustive()
    }
}

/// A statistic that is never negative, as bytes.
fn bytes(statistic: i64) -> u64 {
    assert!(statistic >= 0, "a sum of block sizes is {statistic}");
    statistic as u64
}
