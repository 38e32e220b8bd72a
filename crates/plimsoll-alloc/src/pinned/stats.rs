//! PyTorch's statistics of pinned memory, counted from events: [`PinnedStats`].
//!
//! Note [Peaks of pinned memory]
//! PyTorch counts active blocks by pool and bucket, and sums the buckets when the statistics are read, peaks
//! included. So the peaks of `active_requests` and `active_bytes` are sums of peaks at possibly different
//! times: an upper bound. The counts of a removed pool are added to the default pool's buckets, peaks included.

use std::collections::BTreeMap;

use super::event::{PinnedEvent, PinnedObserver};
use super::segment::PinnedSegment;
use super::size::{BUCKETS, bucket};
use crate::request::PoolId;
use crate::stats::Stat;

/// Durations of driver calls, microseconds.
///
/// ```
/// # use plimsoll_alloc::DurationStat;
/// let pins = DurationStat { total: 90, max: 80, min: 10, count: 2 };
/// assert_eq!(pins.avg(), 45);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationStat {
    /// The total, since the start or [`PinnedStats::reset_accumulated`].
    pub total: i64,
    /// The maximum, since the start or [`PinnedStats::reset_peak`].
    pub max: i64,
    /// The minimum, likewise. 0 means "none yet", so a duration of 0 is overwritten, as in PyTorch.
    pub min: i64,
    /// The number of calls, since the same time as `total`.
    pub count: i64,
}

impl DurationStat {
    /// The mean, rounded down; 0 if there were no calls.
    pub fn avg(&self) -> i64 {
        if self.count == 0 { 0 } else { self.total / self.count }
    }

    fn add(&mut self, elapsed_us: u64) {
        let elapsed_us = elapsed_us as i64;
        self.total += elapsed_us;
        self.count += 1;
        self.max = self.max.max(elapsed_us);
        self.min = if self.min == 0 { elapsed_us } else { self.min.min(elapsed_us) };
    }

    fn reset_peak(&mut self) {
        (self.min, self.max) = (0, 0);
    }

    fn reset_accumulated(&mut self) {
        (self.total, self.count) = (0, 0);
    }
}

/// PyTorch's statistics of pinned memory, under PyTorch's names.
///
/// ```
/// use plimsoll_alloc::{PinnedAllocator, PinnedConfig, PinnedRequest, PinnedStats, SimHost};
///
/// let host = SimHost::with_capacity(1 << 20);
/// let mut pinned = PinnedAllocator::new(PinnedConfig::default(), host, PinnedStats::default());
/// let x = pinned.alloc(PinnedRequest::of(4000))?;
/// pinned.free(x)?;
/// let stats = pinned.observer().host_memory_stats();
/// assert_eq!(stats.len(), 28);
/// assert_eq!((stats["allocated_bytes.current"], stats["active_bytes.current"]), (4096, 0));
/// # Ok::<(), plimsoll_alloc::PinnedError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PinnedStats {
    /// Blocks, active and cached.
    pub allocations: Stat,
    /// Bytes in blocks, active and cached.
    pub allocated_bytes: Stat,
    /// Durations of pinning. The reserve counts; blocks that are carved from it do not.
    pub host_alloc_time: DurationStat,
    /// Durations of unpinning.
    pub host_free_time: DurationStat,
    active: BTreeMap<PoolId, Vec<Active>>,
}

/// The active blocks of one bucket of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Active {
    requests: Stat,
    bytes: Stat,
}

impl PinnedStats {
    /// Blocks in use by callers or streams: Note [Peaks of pinned memory].
    pub fn active_requests(&self) -> Stat {
        self.buckets().fold(Stat::default(), |sum, bucket| plus(sum, bucket.requests))
    }

    /// Bytes in blocks in use by callers or streams: Note [Peaks of pinned memory].
    pub fn active_bytes(&self) -> Stat {
        self.buckets().fold(Stat::default(), |sum, bucket| plus(sum, bucket.bytes))
    }

    /// The 28 entries of `torch.cuda.host_memory_stats()`, under the same keys. `num_host_alloc` and
    /// `num_host_free` count blocks, not calls; blocks from the reserve count too.
    pub fn host_memory_stats(&self) -> BTreeMap<String, i64> {
        let counts = [
            ("allocations", self.allocations),
            ("allocated_bytes", self.allocated_bytes),
            ("active_requests", self.active_requests()),
            ("active_bytes", self.active_bytes()),
        ];
        let counts = counts.into_iter().flat_map(|(name, Stat { current, peak, allocated, freed })| {
            let parts = [("current", current), ("peak", peak), ("allocated", allocated), ("freed", freed)];
            parts.map(|(part, value)| (format!("{name}.{part}"), value))
        });
        let times = [("host_alloc_time", self.host_alloc_time), ("host_free_time", self.host_free_time)];
        let times = times.into_iter().flat_map(|(name, time)| {
            let DurationStat { total, max, min, count } = time;
            let parts = [("total", total), ("max", max), ("min", min), ("count", count), ("avg", time.avg())];
            parts.map(|(part, value)| (format!("{name}.{part}"), value))
        });
        let blocks =
            [("num_host_alloc", self.allocations.allocated), ("num_host_free", self.allocations.freed)];
        counts.chain(times).chain(blocks.map(|(name, value)| (name.to_owned(), value))).collect()
    }

    /// Resets every peak to the current value (each bucket's own peak to its own value), and
    /// clears the maximum and minimum durations. In PyTorch: `reset_peak_host_memory_stats`.
    pub fn reset_peak(&mut self) {
        self.each_mut(|stat| stat.peak = stat.current);
        self.host_alloc_time.reset_peak();
        self.host_free_time.reset_peak();
    }

    /// Resets every `allocated`, `freed`, `total` and `count` to 0; current values and peaks stay.
    /// In PyTorch: `reset_accumulated_host_memory_stats`.
    pub fn reset_accumulated(&mut self) {
        self.each_mut(|stat| (stat.allocated, stat.freed) = (0, 0));
        self.host_alloc_time.reset_accumulated();
        self.host_free_time.reset_accumulated();
    }

    fn each_mut(&mut self, mut change: impl FnMut(&mut Stat)) {
        change(&mut self.allocations);
        change(&mut self.allocated_bytes);
        for bucket in self.active.values_mut().flatten() {
            change(&mut bucket.requests);
            change(&mut bucket.bytes);
        }
    }

    fn buckets(&self) -> impl Iterator<Item = &Active> {
        self.active.values().flatten()
    }

    fn of_pool(&mut self, pool: PoolId) -> &mut Vec<Active> {
        self.active.entry(pool).or_insert_with(|| vec![Active::default(); BUCKETS])
    }

    fn change_active(&mut self, block: &PinnedSegment, blocks: i64) {
        let Active { requests, bytes } = &mut self.of_pool(block.pool)[bucket(block.bytes)];
        requests.change(blocks);
        bytes.change(blocks * block.bytes as i64);
    }

    fn change_allocated(&mut self, bytes: u64, blocks: i64) {
        self.allocations.change(blocks);
        self.allocated_bytes.change(blocks * bytes as i64);
    }

    fn inherit(&mut self, pool: PoolId) {
        let gone = self.active.remove(&pool).unwrap_or_default();
        for (heir, gone) in self.of_pool(PoolId::DEFAULT).iter_mut().zip(gone) {
            heir.requests = plus(heir.requests, gone.requests);
            heir.bytes = plus(heir.bytes, gone.bytes);
        }
    }
}

impl PinnedObserver for PinnedStats {
    fn on(&mut self, event: &PinnedEvent) {
        match *event {
            PinnedEvent::Alloc { block } => self.change_active(&block, 1),
            PinnedEvent::FreeRequested { .. } => {}
            PinnedEvent::FreeCompleted { block } => self.change_active(&block, -1),
            PinnedEvent::SegmentAlloc { bytes, elapsed_us, .. } => {
                self.change_allocated(bytes, 1);
                elapsed_us.into_iter().for_each(|elapsed_us| self.host_alloc_time.add(elapsed_us));
            }
            PinnedEvent::SegmentFree { bytes, elapsed_us, .. } => {
                self.change_allocated(bytes, -1);
                elapsed_us.into_iter().for_each(|elapsed_us| self.host_free_time.add(elapsed_us));
            }
            PinnedEvent::ReserveAlloc { elapsed_us, .. } => self.host_alloc_time.add(elapsed_us),
            PinnedEvent::PoolErased { pool } => self.inherit(pool),
        }
    }
}

fn plus(a: Stat, b: Stat) -> Stat {
    Stat {
        current: a.current + b.current,
        peak: a.peak + b.peak,
        allocated: a.allocated + b.allocated,
        freed: a.freed + b.freed,
    }
}
