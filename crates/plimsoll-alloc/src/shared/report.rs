//! What [`DeviceMemory`] can tell: numbers, tables, pictures and the history.

use std::collections::BTreeMap;
use std::panic::Location;

use super::{DeviceMemory, Locations};
use crate::category::CategoryBytes;
use crate::check::Violation;
use crate::config::Config;
use crate::driver::MemoryInfo;
use crate::history::{Clock, Entry, HistoryOptions};
use crate::ledger::Owner;
use crate::request::{Addr, Allocation, StackId};
use crate::segment::{CacheInfo, Segment};

/// Statistics.
impl DeviceMemory {
    /// Bytes in blocks that callers hold.
    pub fn memory_allocated(&self) -> u64 {
        unsigned(self.lock().core.observer().0.allocated_bytes().all.current)
    }

    /// The most bytes in blocks that callers held, since the start or the last reset.
    pub fn max_memory_allocated(&self) -> u64 {
        unsigned(self.lock().core.observer().0.allocated_bytes().all.peak)
    }

    /// Bytes in segments held of the device.
    pub fn memory_reserved(&self) -> u64 {
        self.lock().core.reserved()
    }

    /// The most bytes in segments held of the device, since the start or the last reset.
    pub fn max_memory_reserved(&self) -> u64 {
        unsigned(self.lock().core.observer().0.reserved_bytes().all.peak)
    }

    /// Makes every peak what is current, in the statistics and in the ledger.
    pub fn reset_peak_memory_stats(&self) {
        let mut shared = self.lock();
        let (stats, ledger, _) = shared.core.observer_mut();
        stats.reset_peak();
        ledger.reset_peak();
    }

    /// Makes every accumulated statistic 0: [`Stats::reset_accumulated`](crate::Stats::reset_accumulated).
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

/// Who holds what.
impl DeviceMemory {
    /// Allocated bytes by category.
    pub fn by_category(&self) -> CategoryBytes {
        self.lock().core.observer().1.by_category()
    }

    /// Allocated bytes by category when they were at their peak.
    pub fn by_category_at_peak(&self) -> CategoryBytes {
        self.lock().core.observer().1.by_category_at_peak()
    }

    /// Who holds how much: [`Ledger::owners`](crate::Ledger::owners).
    pub fn owners(&self) -> Vec<Owner> {
        self.lock().core.observer().1.owners()
    }

    /// Who held how much at the peak: [`Ledger::owners_at_peak`](crate::Ledger::owners_at_peak).
    pub fn owners_at_peak(&self) -> Vec<Owner> {
        self.lock().core.observer().1.owners_at_peak()
    }
}

/// Whether the history says where in the program a request was made.
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
    /// It keeps the stack that comes with the request.
    AsGiven,
    /// It keeps the place that called [`DeviceMemory::alloc`] instead: [`DeviceMemory::location`].
    Located,
}

/// A device's memory at one moment, and what happened until then: what a snapshot of PyTorch's is made of.
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
    /// All segments and their blocks, by address.
    pub segments: Vec<Segment>,
    /// What the history kept, the oldest first.
    pub entries: Vec<Entry>,
    /// How many entries made room for later ones.
    pub lost: u64,
    /// The options in force.
    pub config: Config,
    /// What the device has.
    pub memory: MemoryInfo,
    /// The bound on the reserved bytes, if there is one.
    pub limit_bytes: Option<u64>,
}

/// Pictures and the history.
impl DeviceMemory {
    /// Segments and history of one moment; then notes in the history that a picture was taken.
    /// As PyTorch: `_snapshot`.
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

    /// All segments and their blocks, by address: [`Allocator::segments`](crate::Allocator::segments).
    pub fn segments(&self) -> Vec<Segment> {
        self.lock().core.segments()
    }

    /// What is cached: [`Allocator::cache_info`](crate::Allocator::cache_info).
    pub fn cache_info(&self) -> CacheInfo {
        self.lock().core.cache_info()
    }

    /// The segment that holds an allocation:
    /// [`Allocator::base_allocation`](crate::Allocator::base_allocation).
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn base_allocation(&self, allocation: &Allocation) -> Option<(Addr, u64)> {
        self.lock().core.base_allocation(allocation)
    }

    /// Keeps what happens from now on, from nothing: [`History::record`](crate::History::record).
    pub fn record_history(&self, options: HistoryOptions, callers: Callers, clock: Clock) {
        let mut shared = self.lock();
        shared.core.observer_mut().2.record(options, clock);
        shared.locations = (callers == Callers::Located).then(Locations::default);
    }

    /// Keeps no more of what happens, and forgets what was kept. Places stay known.
    pub fn stop_history(&self) {
        self.lock().core.observer_mut().2.stop();
    }

    /// What was kept, the oldest first.
    pub fn history(&self) -> Vec<Entry> {
        self.lock().core.observer().2.entries().copied().collect()
    }

    /// What was kept since it was last taken, the oldest first, and how many entries were lost:
    /// [`History::take`](crate::History::take).
    pub fn take_history(&self) -> (Vec<Entry>, u64) {
        self.lock().core.observer_mut().2.take()
    }

    /// The place in the program that a located history numbered.
    pub fn location(&self, stack: StackId) -> Option<&'static Location<'static>> {
        self.lock().locations.as_ref()?.places.get(stack.0 as usize).copied()
    }

    /// Announces that a picture of the state was taken, for the history.
    pub fn mark_snapshot(&self) {
        self.lock().core.mark_snapshot();
    }

    /// Whether state, statistics and ledger are sound and agree.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let shared = self.lock();
        shared.core.check()?;
        let segments = shared.core.segments();
        let (stats, ledger, _) = shared.core.observer();
        stats.check(&segments)?;
        ledger.check(&segments)
    }
}

/// A statistic that is never negative.
pub(super) fn unsigned(statistic: i64) -> u64 {
    assert!(statistic >= 0, "a sum of block sizes or a count is {statistic}");
    statistic as u64
}
