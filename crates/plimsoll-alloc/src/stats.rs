//! PyTorch's statistics, counted from events: [`Stats`].
//!
//! Each statistic changes once per event, by the net amount, so that `peak`, `allocated` and `freed` equal PyTorch's.
//! `stats/keys.rs` has the statistics under flat keys, `stats/summary.rs` as a table.
//!
//! In PyTorch: `c10::CachingAllocator::Stat` and the updates in `alloc_found_block`, `free`, `free_block`,
//! `alloc_block`, `release_block`.

mod counters;
mod keys;
mod stat;
mod summary;

use std::collections::BTreeMap;

use crate::config::Config;
use crate::event::{DeviceRange, Event, Observer, SplitChange};
use crate::request::PoolId;
use crate::size::PoolKind;
use counters::Counters;

pub use stat::{PoolStats, Stat};

/// PyTorch's statistics, under PyTorch's names. Sizes are in bytes, signed as PyTorch's are.
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, Request, SimDriver, Stats};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Stats::default());
/// let x = allocator.malloc(Request::of(4000))?;
/// allocator.free(x);
/// let stats = allocator.observer();
/// assert_eq!((stats.allocated_bytes().all.current, stats.allocated_bytes().all.peak), (0, 4096));
/// assert_eq!(stats.reserved_bytes().small_pool.current, 2 << 20);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    allocation: Counters,
    segment: Counters,
    active: Counters,
    inactive_split: Counters,
    allocated_bytes: Counters,
    reserved_bytes: Counters,
    active_bytes: Counters,
    inactive_split_bytes: Counters,
    requested_bytes: Counters,
    reserved_bytes_by_private_pools: BTreeMap<PoolId, Counters>,
    /// Allocated blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`. Can fall below 0 if that option changes, as in PyTorch.
    pub oversize_segments: Stat,
    /// The number of retries after releasing the cache.
    pub num_alloc_retries: i64,
    /// The number of requests that ran out of memory.
    pub num_ooms: i64,
    /// The number of times that all streams were synchronised to release the cache.
    pub num_sync_all_streams: i64,
    /// The number of segments allocated and page ranges mapped.
    pub num_device_alloc: i64,
    /// The number of segments freed and page ranges unmapped.
    pub num_device_free: i64,
    /// The number of requests rejected by `throw_on_cudamalloc_oom`.
    pub num_oom_rejections: i64,
    /// `max_split_size` when the counting began; None means no limit.
    pub max_split_bytes: Option<u64>,
}

impl Stats {
    /// Empty statistics for an allocator with these options.
    pub fn new(config: &Config) -> Self {
        Self { max_split_bytes: config.max_split_bytes(), ..Self::default() }
    }

    /// Allocated blocks.
    pub fn allocation(&self) -> PoolStats {
        self.allocation.read()
    }

    /// Segments.
    pub fn segment(&self) -> PoolStats {
        self.segment.read()
    }

    /// Active blocks: allocated or pending.
    pub fn active(&self) -> PoolStats {
        self.active.read()
    }

    /// Cached pieces of split segments: free, but not releasable to the device.
    pub fn inactive_split(&self) -> PoolStats {
        self.inactive_split.read()
    }

    /// Allocated bytes, including rounding.
    pub fn allocated_bytes(&self) -> PoolStats {
        self.allocated_bytes.read()
    }

    /// Bytes in segments.
    pub fn reserved_bytes(&self) -> PoolStats {
        self.reserved_bytes.read()
    }

    /// Bytes in blocks that are not cached.
    pub fn active_bytes(&self) -> PoolStats {
        self.active_bytes.read()
    }

    /// Bytes in cached pieces of split segments.
    pub fn inactive_split_bytes(&self) -> PoolStats {
        self.inactive_split_bytes.read()
    }

    /// Requested bytes of active blocks.
    pub fn requested_bytes(&self) -> PoolStats {
        self.requested_bytes.read()
    }

    /// Reserved bytes of each private pool that ever had a segment.
    pub fn reserved_bytes_by_private_pools(&self) -> BTreeMap<PoolId, PoolStats> {
        let stats = self.reserved_bytes_by_private_pools.iter();
        stats.map(|(&id, counters)| (id, counters.read())).collect()
    }

    /// Resets every peak to the current value. In PyTorch: `reset_peak_memory_stats`.
    pub fn reset_peak(&mut self) {
        self.arrays_mut().for_each(Counters::reset_peak);
        for stat in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            stat.peak = stat.current;
        }
    }

    /// Resets every counter, and every `allocated` and `freed`, to 0; current values and peaks stay. In PyTorch:
    /// `reset_accumulated_memory_stats`.
    pub fn reset_accumulated(&mut self) {
        self.arrays_mut().for_each(Counters::reset_accumulated);
        for stat in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            stat.allocated = 0;
            stat.freed = 0;
        }
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
        self.num_oom_rejections = 0;
    }

    fn arrays_mut(&mut self) -> impl Iterator<Item = &mut Counters> {
        let arrays = [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ];
        let by_pool = self.reserved_bytes_by_private_pools.values_mut();
        arrays.into_iter().chain(by_pool)
    }

    /// Counts device memory that was allocated (positive) or freed (negative).
    fn change_reserved(&mut self, memory: DeviceRange, by: i64) {
        self.reserved_bytes.change(memory.pool, by);
        if memory.pool_id != PoolId::DEFAULT {
            let stats = self.reserved_bytes_by_private_pools.entry(memory.pool_id).or_default();
            stats.change(memory.pool, by);
        }
        if by > 0 {
            self.num_device_alloc += 1;
        } else {
            self.num_device_free += 1;
        }
    }

    #[inline(always)] // as `on`
    fn change_inactive_split(&mut self, pool: PoolKind, change: SplitChange) {
        self.inactive_split.change(pool, change.blocks);
        self.inactive_split_bytes.change(pool, change.bytes);
    }
}

impl Observer for Stats {
    #[inline(always)] // the match then reduces to the arm of the caller's event
    fn on(&mut self, event: &Event) {
        match *event {
            Event::Alloc { block, inactive_split, oversize } => {
                self.change_inactive_split(block.pool, inactive_split);
                self.allocation.increase(block.pool, 1);
                self.allocated_bytes.increase(block.pool, block.bytes);
                self.active.increase(block.pool, 1);
                self.active_bytes.increase(block.pool, block.bytes);
                self.requested_bytes.increase(block.pool, block.requested_bytes);
                if oversize {
                    self.oversize_allocations.change(1);
                }
            }
            Event::Free { block, oversize } => {
                self.allocation.decrease(block.pool, 1);
                self.allocated_bytes.decrease(block.pool, block.bytes);
                if oversize {
                    self.oversize_allocations.change(-1);
                }
            }
            Event::FreeCompleted { block, inactive_split, .. } => {
                self.change_inactive_split(block.pool, inactive_split);
                self.active.decrease(block.pool, 1);
                self.active_bytes.decrease(block.pool, block.bytes);
                self.requested_bytes.decrease(block.pool, block.requested_bytes);
            }
            Event::SegmentAlloc { memory, oversize, .. } => {
                self.segment.increase(memory.pool, 1);
                self.change_reserved(memory, memory.bytes as i64);
                if oversize {
                    self.oversize_segments.change(1);
                }
            }
            Event::SegmentFree { memory, oversize } => {
                self.segment.decrease(memory.pool, 1);
                self.change_reserved(memory, -(memory.bytes as i64));
                if oversize {
                    self.oversize_segments.change(-1);
                }
            }
            Event::SegmentMap { memory, .. } => self.change_reserved(memory, memory.bytes as i64),
            Event::SegmentUnmap { memory } => self.change_reserved(memory, -(memory.bytes as i64)),
            Event::SyncAllStreams => self.num_sync_all_streams += 1,
            Event::Retry { .. } => self.num_alloc_retries += 1,
            Event::OutOfMemory { .. } => self.num_ooms += 1,
            Event::Rejected { .. } => self.num_oom_rejections += 1,
            Event::Retag { .. } | Event::Snapshot { .. } | Event::StepMark { .. } => {}
        }
    }
}
