//! The reports of [`DeviceMemory`]: statistics, tables, snapshots and the history.

use std::collections::BTreeMap;
use std::panic::Location;

use super::locations::Locations;
use super::memory::DeviceMemory;
use crate::allocation::Allocation;
use crate::category::CategoryBytes;
use crate::config::Config;
use crate::driver::MemoryInfo;
use crate::history::{Clock, Entry, HistoryOptions};
use crate::ledger::Owner;
use crate::request::{Addr, StackId};
use crate::segment::{CacheInfo, Segment};
use crate::violation::Violation;

/// Statistics.
impl DeviceMemory {
    /// Allocated bytes.
    pub fn memory_allocated(&self) -> u64 {
        unsigned(self.lock().core.observer().0.allocated_bytes().all.current)
    }

    /// Peak allocated bytes, since the start or the last reset.
    pub fn max_memory_allocated(&self) -> u64 {
        unsigned(self.lock().core.observer().0.allocated_bytes().all.peak)
    }

    /// Reserved bytes.
    pub fn memory_reserved(&self) -> u64 {
        self.lock().core.reserved()
    }

    /// Peak reserved bytes, since the start or the last reset.
    pub fn max_memory_reserved(&self) -> u64 {
        unsigned(self.lock().core.observer().0.reserved_bytes().all.peak)
    }

    /// Resets every peak to the current value, in the statistics and in the ledger.
    pub fn reset_peak_memory_stats(&self) {
        let mut shared = self.lock();
        let (stats, ledger, _) = shared.core.observer_mut();
        stats.reset_peak();
        ledger.reset_peak();
    }

    /// Resets every accumulated statistic to 0: [`Stats::reset_accumulated`](crate::Stats::reset_accumulated).
    pub fn reset_accumulated_memory_stats(&self) {
        self.lock().core.observer_mut().0.reset_accumulated();
    }

    /// PyTorch's statistics by key: [`Stats::memory_stats`](crate::Stats::memory_stats).
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        self.lock().core.observer().0.memory_stats()
    }

    /// PyTorch's table of statistics: [`Stats::summary`](crate::Stats::summary).
    pub fn memory_summary(&self, title: &str) -> String {
        self.lock().core.observer().0.summary(title)
    }
}

/// Allocated bytes by owner.
impl DeviceMemory {
    /// Allocated bytes by category.
    pub fn by_category(&self) -> CategoryBytes {
        self.lock().core.observer().1.by_category()
    }

    /// Allocated bytes by category at the peak.
    pub fn by_category_at_peak(&self) -> CategoryBytes {
        self.lock().core.observer().1.by_category_at_peak()
    }

    /// Allocated bytes by owner: [`Ledger::owners`](crate::Ledger::owners).
    pub fn owners(&self) -> Vec<Owner> {
        self.lock().core.observer().1.owners()
    }

    /// Allocated bytes by owner at the peak: [`Ledger::owners_at_peak`](crate::Ledger::owners_at_peak).
    pub fn owners_at_peak(&self) -> Vec<Owner> {
        self.lock().core.observer().1.owners_at_peak()
    }
}

/// How the history records the place in the program that made a request.
///
/// ```
/// use plimsoll_alloc::{Callers, Config, DeviceMemory, HistoryOptions, Request, SimDriver};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// memory.record_history(HistoryOptions::default(), Callers::Located, Box::new(|| 0));
/// let x = memory.alloc(Request::of(100))?;
/// let place = memory.history()[1].stack.and_then(|stack| memory.location(stack));
/// assert!(place.is_some_and(|place| place.file().ends_with(".rs")));
/// # memory.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// It records the stack of the request.
    AsGiven,
    /// It records the caller of [`DeviceMemory::alloc`] instead: [`DeviceMemory::location`].
    Located,
}

/// A device's memory at one moment and its history: the contents of a PyTorch snapshot.
///
/// ```
/// use plimsoll_alloc::{Callers, Config, DeviceMemory, HistoryOptions, Request, SimDriver};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// memory.record_history(HistoryOptions::default(), Callers::AsGiven, Box::new(|| 0));
/// let x = memory.alloc(Request::of(100))?;
/// let recording = memory.recording();
/// assert_eq!((recording.segments.len(), recording.entries.len(), recording.lost), (1, 2, 0));
/// # memory.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// All segments and their blocks, in address order.
    pub segments: Vec<Segment>,
    /// The history, oldest first.
    pub entries: Vec<Entry>,
    /// The number of entries that were dropped for newer ones.
    pub lost: u64,
    /// The options.
    pub config: Config,
    /// The device's free and total memory.
    pub memory: MemoryInfo,
    /// The limit on the reserved bytes, if any.
    pub limit_bytes: Option<u64>,
}

/// Snapshots and the history.
impl DeviceMemory {
    /// Takes a snapshot of the segments and the history, then adds a snapshot entry to the history.
    /// In PyTorch: `_snapshot`.
    pub fn recording(&self) -> Recording {
        let mut shared = self.lock();
        let core = &shared.core;
        let history = &core.observer().2;
        let recording = Recording {
            segments: core.segments(),
            entries: history.entries().copied().collect(),
            lost: history.lost(),
            config: core.config().clone(),
            memory: core.memory_info(),
            limit_bytes: core.memory_limit(),
        };
        shared.core.mark_snapshot();
        recording
    }

    /// All segments and their blocks, in address order: [`Allocator::segments`](crate::Allocator::segments).
    pub fn segments(&self) -> Vec<Segment> {
        self.lock().core.segments()
    }

    /// The size of the cache: [`Allocator::cache_info`](crate::Allocator::cache_info).
    pub fn cache_info(&self) -> CacheInfo {
        self.lock().core.cache_info()
    }

    /// The segment that holds an allocation:
    /// [`Allocator::base_allocation`](crate::Allocator::base_allocation).
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn base_allocation(&self, allocation: &Allocation) -> Option<(Addr, u64)> {
        self.lock().core.base_allocation(allocation)
    }

    /// Clears the history and starts recording: [`History::record`](crate::History::record).
    pub fn record_history(&self, options: HistoryOptions, callers: Callers, clock: Clock) {
        let mut shared = self.lock();
        shared.core.observer_mut().2.record(options, clock);
        shared.locations = (callers == Callers::Located).then(Locations::default);
    }

    /// Stops recording the history and drops it. The numbers of places stay valid.
    pub fn stop_history(&self) {
        self.lock().core.observer_mut().2.stop();
    }

    /// The history, oldest first.
    pub fn history(&self) -> Vec<Entry> {
        self.lock().core.observer().2.entries().copied().collect()
    }

    /// The history since the last call, oldest first, and the number of entries dropped:
    /// [`History::take`](crate::History::take).
    pub fn take_history(&self) -> (Vec<Entry>, u64) {
        self.lock().core.observer_mut().2.take()
    }

    /// The place in the program with this number, in a history recorded with [`Callers::Located`].
    pub fn location(&self, stack: StackId) -> Option<&'static Location<'static>> {
        self.lock().locations.as_ref()?.place(stack)
    }

    /// Adds a snapshot entry to the history.
    pub fn mark_snapshot(&self) {
        self.lock().core.mark_snapshot();
    }

    /// Checks that state, statistics and ledger are consistent.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Violation> {
        let shared = self.lock();
        shared.core.check()?;
        let segments = shared.core.segments();
        let (stats, ledger, _) = shared.core.observer();
        stats.check(&segments)?;
        ledger.check(&segments)
    }
}

/// Converts a statistic that is never negative.
pub(super) fn unsigned(statistic: i64) -> u64 {
    assert!(statistic >= 0, "a sum of block sizes or a count is {statistic}");
    statistic as u64
}
