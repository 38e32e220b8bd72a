//! A device with slow streams: [`Slow`].

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, SimDriver, StreamId};

/// A simulated device with slow events: each is done at the third query.
pub(crate) struct Slow {
    driver: SimDriver,
    asked: u64,
}

impl Slow {
    pub(crate) fn with_capacity(bytes: u64) -> Self {
        Self { driver: SimDriver::with_capacity(bytes), asked: 0 }
    }
}

impl Driver for Slow {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.driver.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.driver.segment_free(addr)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.driver.reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        self.driver.release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.driver.map(at, page_bytes, pages)
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.driver.unmap(at, page_bytes, pages, on)
    }

    fn is_done(&mut self, _: EventId) -> Result<bool, DriverError> {
        self.asked += 1;
        Ok(self.asked.is_multiple_of(3))
    }

    fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }
}
