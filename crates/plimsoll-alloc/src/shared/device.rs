//! The device behind [`DeviceMemory`](super::DeviceMemory): a driver with its own lock, so that a segment
//! can be allocated while the allocator serves other requests.
//!
//! Lock order: the allocator's lock first. A thread that holds only the driver's lock takes no other.

use std::sync::Arc;

use crate::driver::{Captured, Driver, DriverError, EventId, MemoryInfo, NodeId};
use crate::lock::Lock;
use crate::request::{Addr, StreamId};

/// A driver. Clones are handles to the same driver.
#[derive(Clone)]
pub(super) struct Device(Arc<Lock<Box<dyn Driver + Send>>>);

impl Device {
    pub(super) fn new(driver: impl Driver + Send + 'static) -> Self {
        let driver: Box<dyn Driver + Send> = Box::new(driver);
        Self(Arc::new(Lock::new(driver)))
    }
}

impl Driver for Device {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.0.lock().segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.0.lock().segment_free(addr)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.0.lock().reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        self.0.lock().release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.0.lock().map(at, page_bytes, pages)
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.0.lock().unmap(at, page_bytes, pages, on)
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        self.0.lock().alias(at, page_bytes, pages)
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.0.lock().unalias(at, page_bytes, pages, on)
    }

    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        self.0.lock().record(stream)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.0.lock().is_done(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        self.0.lock().wait(event)
    }

    fn is_capturing(&self) -> bool {
        self.0.lock().is_capturing()
    }

    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, DriverError> {
        self.0.lock().captured(stream)
    }

    fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DriverError> {
        self.0.lock().dependencies(node)
    }

    fn memory(&self) -> MemoryInfo {
        self.0.lock().memory()
    }
}
