//! The device on which the oracle's shell recorded its programs: [`FirstFit`]. It reuses addresses as soon as it can.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, StreamId};

const BASE: u64 = 0x7f00_0000_0000;
const RANGE_BASE: u64 = 0x30_0000_0000;
const GRAIN_BYTES: u64 = 2 << 20;
/// The end of the address space.
const LAST_ADDRESS: u64 = 1 << 63;

/// Allocates at the lowest multiple of 2 MiB where the request fits. The capacity can be set at any time, and so can
/// the busy streams, of which no event counts as done.
pub(crate) struct FirstFit {
    total_bytes: u64,
    limit_bytes: u64,
    used_bytes: u64,
    segments: BTreeMap<u64, u64>,
    ranges: BTreeMap<u64, u64>,
    busy: BTreeSet<StreamId>,
}

impl FirstFit {
    pub(crate) fn new(total_bytes: u64) -> Self {
        let (segments, ranges, busy) = Default::default();
        Self { total_bytes, limit_bytes: total_bytes, used_bytes: 0, segments, ranges, busy }
    }

    /// Sets the capacity in bytes that applies from now on.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit_bytes = bytes;
    }

    /// Sets whether a stream is busy.
    pub(crate) fn set_busy(&mut self, stream: StreamId, busy: bool) {
        if busy {
            self.busy.insert(stream);
        } else {
            self.busy.remove(&stream);
        }
    }

    fn take(&mut self, bytes: u64) -> Result<(), DriverError> {
        let used_bytes = self.used_bytes.checked_add(bytes);
        let fitting = used_bytes.filter(|&used_bytes| used_bytes <= self.limit_bytes);
        self.used_bytes = fitting.ok_or(DriverError::OutOfMemory)?;
        Ok(())
    }
}

fn lowest_gap(taken: &BTreeMap<u64, u64>, base: u64, bytes: u64) -> Result<u64, DriverError> {
    let taken_bytes = bytes.checked_next_multiple_of(GRAIN_BYTES).ok_or(DriverError::OutOfMemory)?;
    let mut addr = base;
    for (start, length) in taken {
        if start - addr >= taken_bytes {
            break;
        }
        addr = start + length.next_multiple_of(GRAIN_BYTES);
    }
    if taken_bytes <= LAST_ADDRESS - addr { Ok(addr) } else { Err(DriverError::OutOfMemory) }
}

impl Driver for FirstFit {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let addr = lowest_gap(&self.segments, BASE, bytes)?;
        self.take(bytes)?;
        self.segments.insert(addr, bytes);
        Ok(Addr(addr))
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        let Some(bytes) = self.segments.remove(&addr.0) else {
            return Err(DriverError::Failed(format!("no segment starts at {addr}")));
        };
        self.used_bytes -= bytes;
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let addr = lowest_gap(&self.ranges, RANGE_BASE, bytes)?;
        self.ranges.insert(addr, bytes);
        Ok(Addr(addr))
    }

    fn release(&mut self, at: Addr, _bytes: u64) -> Result<(), DriverError> {
        let freed = self.ranges.remove(&at.0);
        freed.map(|_| ()).ok_or_else(|| DriverError::Failed(format!("no range starts at {at}")))
    }

    fn map(&mut self, _at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.take(page_bytes * pages)
    }

    fn unmap(&mut self, _at: Addr, page_bytes: u64, pages: u64, _on: StreamId) -> Result<(), DriverError> {
        self.used_bytes -= page_bytes * pages;
        Ok(())
    }

    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        Ok(EventId(stream.0))
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        Ok(!self.busy.contains(&StreamId(event.0)))
    }

    fn memory(&self) -> MemoryInfo {
        let free_bytes = self.limit_bytes.saturating_sub(self.used_bytes);
        MemoryInfo { free_bytes, total_bytes: self.total_bytes }
    }
}
