//! Fault injection: [`FailNth`], a driver that fails once.

use crate::driver::{Captured, Driver, DriverError, EventId, MemoryInfo, NodeId};
use crate::request::{Addr, StreamId};

/// Fails the `nth` call that can fail (from 1) with an error, and forwards all others. Running a program
/// for every `nth` tests each point of failure.
///
/// ```
/// # use plimsoll_alloc::{Driver, DriverError, FailNth, Sim};
/// let mut device = FailNth::new(Sim::default(), 2, DriverError::OutOfMemory);
/// assert!(device.segment_alloc(512).is_ok());
/// assert_eq!(device.segment_alloc(512), Err(DriverError::OutOfMemory));
/// assert!(device.segment_alloc(512).is_ok());
/// assert_eq!(device.calls(), 3);
/// ```
#[derive(Debug, Clone)]
pub struct FailNth<D> {
    driver: D,
    nth: u64,
    error: DriverError,
    calls: u64,
}

impl<D: Driver> FailNth<D> {
    /// Makes `driver` fail with `error` at call `nth`; 0 means never.
    pub fn new(driver: D, nth: u64, error: DriverError) -> Self {
        Self { driver, nth, error, calls: 0 }
    }

    /// The number of calls so far that could have failed.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    fn count(&mut self) -> Result<(), DriverError> {
        self.calls += 1;
        if self.calls == self.nth { Err(self.error.clone()) } else { Ok(()) }
    }
}

impl<D: Driver> Driver for FailNth<D> {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.count()?;
        self.driver.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.count()?;
        self.driver.segment_free(addr)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.count()?;
        self.driver.reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        self.count()?;
        self.driver.release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.count()?;
        self.driver.map(at, page_bytes, pages)
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.count()?;
        self.driver.unmap(at, page_bytes, pages, on)
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        self.count()?;
        self.driver.alias(at, page_bytes, pages)
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.count()?;
        self.driver.unalias(at, page_bytes, pages, on)
    }

    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        self.count()?;
        self.driver.record(stream)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.count()?;
        self.driver.is_done(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        self.count()?;
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
        self.driver.memory()
    }
}
