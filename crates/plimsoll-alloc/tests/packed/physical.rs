//! A simulated device that knows the physical memory behind each address: [`Physical`].

use std::collections::BTreeMap;

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, SimDriver, StreamId};

/// A page's number, and a byte in it.
type Byte = (u64, u64);

/// Counts the pages that it maps, and remembers which page is mapped where.
pub(crate) struct Physical {
    device: SimDriver,
    /// The page that is mapped at each address, and its size.
    mapped: BTreeMap<Addr, (u64, u64)>,
    next_page: u64,
    /// Whether events are pending.
    pub(crate) is_pending: bool,
}

impl Physical {
    pub(crate) fn with_capacity(bytes: u64) -> Self {
        let device = SimDriver::with_capacity(bytes);
        Self { device, mapped: BTreeMap::new(), next_page: 0, is_pending: false }
    }

    /// The physical memory of a block: parts of pages, as first byte and size.
    pub(crate) fn parts(&self, addr: Addr, bytes: u64) -> Vec<(Byte, u64)> {
        let (mut at, end, mut parts) = (addr.0, addr.0 + bytes, Vec::new());
        while at < end {
            let (&start, &(page, page_bytes)) =
                self.mapped.range(..=Addr(at)).next_back().expect("a mapped page");
            assert!(at < start.0 + page_bytes, "{at:#x} is not mapped");
            let part_end = end.min(start.0 + page_bytes);
            parts.push(((page, at - start.0), part_end - at));
            at = part_end;
        }
        parts
    }
}

impl Driver for Physical {
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
        self.device.map(at, page_bytes, pages)?;
        for page in 0..pages {
            self.mapped.insert(Addr(at.0 + page * page_bytes), (self.next_page, page_bytes));
            self.next_page += 1;
        }
        Ok(())
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.device.unmap(at, page_bytes, pages, on)?;
        self.mapped.retain(|&addr, _| addr < at || addr.0 >= at.0 + page_bytes * pages);
        Ok(())
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        self.device.alias(at, page_bytes, pages)?;
        for (nth, from) in (0..).zip(pages) {
            self.mapped.insert(Addr(at.0 + nth * page_bytes), self.mapped[from]);
        }
        Ok(())
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.device.unalias(at, page_bytes, pages, on)?;
        self.mapped.retain(|&addr, _| addr < at || addr.0 >= at.0 + page_bytes * pages);
        Ok(())
    }

    fn is_done(&mut self, _event: EventId) -> Result<bool, DriverError> {
        Ok(!self.is_pending)
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }
}
