//! A capacity limit for a device: [`Limit`].

use std::collections::BTreeMap;

use crate::driver::{Captured, Driver, DriverError, EventId, MemoryInfo, NodeId};
use crate::request::{Addr, StreamId};
use crate::size::SEGMENT_GRAIN_BYTES;

/// Fails allocations beyond a capacity. The size of each segment and page is rounded up to 2 MiB, the allocation
/// granularity of real devices. Unmapped address space does not count.
///
/// ```
/// # use plimsoll_alloc::{Driver, DriverError, Limit, Sim};
/// let mut device = Limit::new(Sim::default(), 64 << 20);
/// assert_eq!(device.segment_alloc(65 << 20), Err(DriverError::OutOfMemory));
/// assert!(device.segment_alloc(63 << 20).is_ok());
/// assert_eq!(device.memory().free_bytes, 0);
/// ```
#[derive(Debug, Clone)]
pub struct Limit<D> {
    driver: D,
    capacity_bytes: u64,
    used_bytes: u64,
    segments: BTreeMap<Addr, u64>,
}

impl<D: Driver> Limit<D> {
    /// Limits `driver` to `capacity_bytes`.
    pub fn new(driver: D, capacity_bytes: u64) -> Self {
        Self { driver, capacity_bytes, used_bytes: 0, segments: BTreeMap::new() }
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes - self.used_bytes
    }
}

impl<D: Driver> Driver for Limit<D> {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let taken = bytes.checked_next_multiple_of(SEGMENT_GRAIN_BYTES).ok_or(DriverError::OutOfMemory)?;
        if taken > self.free_bytes() {
            return Err(DriverError::OutOfMemory);
        }
        let addr = self.driver.segment_alloc(bytes)?;
        self.used_bytes += taken;
        self.segments.insert(addr, taken);
        Ok(addr)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.driver.segment_free(addr)?;
        self.used_bytes -= self.segments.remove(&addr).unwrap_or(0);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.driver.reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        self.driver.release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        let taken = page_bytes.checked_next_multiple_of(SEGMENT_GRAIN_BYTES);
        let taken = taken.and_then(|page| page.checked_mul(pages)).ok_or(DriverError::OutOfMemory)?;
        if taken > self.free_bytes() {
            return Err(DriverError::OutOfMemory);
        }
        self.driver.map(at, page_bytes, pages)?;
        self.used_bytes += taken;
        Ok(())
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.driver.unmap(at, page_bytes, pages, on)?;
        self.used_bytes -= page_bytes.next_multiple_of(SEGMENT_GRAIN_BYTES) * pages;
        Ok(())
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        self.driver.alias(at, page_bytes, pages)
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.driver.unalias(at, page_bytes, pages, on)
    }

    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        self.driver.record(stream)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.driver.is_done(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        self.driver.wait(event)
    }

    fn is_capturing(&self) -> bool {
        self.driver.is_capturing()
    }

    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, DriverError> {
        self.driver.captured(stream)
    }

    fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DriverError> {
        self.driver.dependencies(node)
    }

    fn memory(&self) -> MemoryInfo {
        let inner = self.driver.memory();
        MemoryInfo {
            free_bytes: self.free_bytes().min(inner.free_bytes),
            total_bytes: self.capacity_bytes.min(inner.total_bytes),
        }
    }
}
