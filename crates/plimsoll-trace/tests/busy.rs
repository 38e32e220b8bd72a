//! A device with busy streams: [`Busy`].

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, SimDriver, StreamId};

/// A device whose streams are busy until they are released.
pub(crate) struct Busy {
    device: SimDriver,
    pub(crate) is_busy: bool,
}

impl Busy {
    pub(crate) fn with_capacity(bytes: u64) -> Busy {
        Busy { device: SimDriver::with_capacity(bytes), is_busy: false }
    }
}

impl Driver for Busy {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.device.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.device.segment_free(addr)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.device.reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        self.device.release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.device.map(at, page_bytes, pages)
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.device.unmap(at, page_bytes, pages, on)
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        self.device.alias(at, page_bytes, pages)
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.device.unalias(at, page_bytes, pages, on)
    }

    fn is_done(&mut self, _: EventId) -> Result<bool, DriverError> {
        Ok(!self.is_busy)
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }
}
