//! The source of segments: [`SegmentSource`], the device or a private pool's own allocator.
//!
//! This file only forwards single calls. The files that combine them:
//!
//! | file | contents |
//! |---|---|
//! | `source/expandable.rs` | expandable segments: reserving address space, mapping and unmapping pages |
//! | `source/release.rs` | freeing cached memory on the device |
//! | `source/collect.rs` | garbage collection: freeing cached segments by age |

mod collect;
mod expandable;
mod release;

use std::sync::Arc;

use crate::driver::{Driver, DriverError, MemoryInfo};
use crate::event::DeviceRange;
use crate::pools::SizedRequest;
use crate::ranges::{Range, RangeId, Ranges};
use crate::request::{Addr, PoolId};
use crate::segment_allocator::{SegmentAllocator, SegmentAllocators};

pub(crate) use expandable::exceeded_reserve;

/// The device, the address space reserved on it, and the private pools with their own segment allocator.
#[derive(Debug)]
pub(crate) struct SegmentSource<D> {
    driver: D,
    ranges: Ranges,
    allocators: SegmentAllocators,
}

impl<D> SegmentSource<D> {
    pub(crate) fn new(driver: D) -> Self {
        Self { driver, ranges: Ranges::default(), allocators: SegmentAllocators::default() }
    }

    pub(crate) fn driver(&self) -> &D {
        &self.driver
    }

    pub(crate) fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Adds address space that another allocator reserved.
    pub(crate) fn import_range(&mut self, range: Range) -> RangeId {
        self.ranges.insert(range)
    }

    /// A pool's own segment allocator.
    pub(crate) fn allocator_of(&self, pool: PoolId) -> Option<&Arc<dyn SegmentAllocator>> {
        self.allocators.get(pool)
    }

    #[inline]
    pub(crate) fn has_allocator(&self, pool: PoolId) -> bool {
        pool != PoolId::DEFAULT && self.allocators.get(pool).is_some()
    }

    /// Sets a pool's own segment allocator.
    pub(crate) fn set_allocator(&mut self, pool: PoolId, allocator: Arc<dyn SegmentAllocator>) {
        self.allocators.insert(pool, allocator);
    }

    /// Forgets the segment allocator of a pool that was removed.
    pub(crate) fn remove_pool(&mut self, pool: PoolId) {
        self.allocators.remove(pool);
    }
}

impl<D: Driver> SegmentSource<D> {
    /// The device's free and total memory.
    pub(crate) fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }

    /// Allocates the segment that a request needs.
    pub(crate) fn segment_alloc(&mut self, sized: &SizedRequest) -> Result<Addr, DriverError> {
        match self.allocators.get(sized.request.pool) {
            Some(theirs) => theirs.segment_alloc(sized.segment_bytes, sized.request.stream),
            None => self.driver.segment_alloc(sized.segment_bytes),
        }
    }

    fn segment_free(&mut self, memory: &DeviceRange) -> Result<(), DriverError> {
        match self.allocators.get(memory.pool_id) {
            Some(theirs) => theirs.segment_free(memory.addr, memory.bytes, memory.stream),
            None => self.driver.segment_free(memory.addr),
        }
    }
}
