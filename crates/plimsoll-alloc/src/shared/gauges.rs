//! The figures of a live view: a device's memory now, and at the start of the last steps.

use super::memory::DeviceMemory;
use super::report::unsigned;
use crate::category::CategoryBytes;
use crate::driver::MemoryInfo;

/// A device's memory at one moment.
///
/// ```
/// use plimsoll_alloc::{Config, DeviceMemory, Request, SimDriver};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// memory.mark_step(0);
/// let x = memory.alloc(Request::of(3 << 20))?;
/// memory.mark_step(1);
/// let gauges = memory.gauges();
/// assert_eq!((gauges.allocated_bytes, gauges.largest_cached_bytes), (3 << 20, 17 << 20));
/// assert_eq!((gauges.steps, gauges.step_levels), (2, vec![0, 3 << 20]));
/// # memory.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauges {
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// The peak, since the start or the last reset.
    pub peak_allocated_bytes: u64,
    /// Allocated bytes plus those in freed blocks that other streams still use.
    pub active_bytes: u64,
    /// Reserved bytes.
    pub reserved_bytes: u64,
    /// The peak, since the start or the last reset.
    pub peak_reserved_bytes: u64,
    /// Allocated bytes by category; sums to `allocated_bytes`.
    pub by_category: CategoryBytes,
    /// The largest cached block of any pool and stream; 0 if nothing is cached.
    pub largest_cached_bytes: u64,
    /// The number of retries after releasing the cache. In PyTorch: `num_alloc_retries`.
    pub num_alloc_retries: u64,
    /// The number of requests that ran out of memory. In PyTorch: `num_ooms`.
    pub num_ooms: u64,
    /// The device's free and total memory.
    pub memory: MemoryInfo,
    /// The limit on the reserved bytes, if any.
    pub limit_bytes: Option<u64>,
    /// The number of steps begun: [`DeviceMemory::mark_step`].
    pub steps: u64,
    /// The allocated bytes at the start of each of the last 240 steps,
    /// oldest first.
    pub step_levels: Vec<u64>,
}

impl DeviceMemory {
    /// Marks the start of a step of the program, for the history and for [`gauges`](Self::gauges).
    pub fn mark_step(&self, number: u64) {
        let mut shared = self.lock();
        shared.core.mark_step(number);
        let allocated_bytes = unsigned(shared.core.observer().0.allocated_bytes().all.current);
        shared.levels.begin(allocated_bytes);
    }

    /// The current figures, read under one lock. Visits no block: the cost is a sum over categories and labels.
    pub fn gauges(&self) -> Gauges {
        let shared = self.lock();
        let (stats, ledger, _) = shared.core.observer();
        let (allocated, reserved) = (stats.allocated_bytes().all, stats.reserved_bytes().all);
        Gauges {
            allocated_bytes: unsigned(allocated.current),
            peak_allocated_bytes: unsigned(allocated.peak),
            active_bytes: unsigned(stats.active_bytes().all.current),
            reserved_bytes: shared.core.reserved(),
            peak_reserved_bytes: unsigned(reserved.peak),
            by_category: ledger.by_category(),
            largest_cached_bytes: shared.core.largest_cached_bytes(),
            num_alloc_retries: unsigned(stats.num_alloc_retries),
            num_ooms: unsigned(stats.num_ooms),
            memory: shared.core.memory_info(),
            limit_bytes: shared.core.memory_limit(),
            steps: shared.levels.steps(),
            step_levels: shared.levels.kept(),
        }
    }
}
