//! A device that answers from a record: [`Recorded`].

use std::collections::{BTreeMap, VecDeque};

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, StreamId};

use super::corpus::Call;

const GRAIN_BYTES: u64 = 2 << 20;

/// Answers the calls of one row with the recorded addresses, and fails at the first call that is not the
/// one recorded. Refusals leave no record: they follow from the capacity, counted in steps of 2 MiB.
pub(crate) struct Recorded {
    capacity_bytes: u64,
    used_bytes: u64,
    segments: BTreeMap<Addr, u64>,
    expected: VecDeque<Call>,
    /// Whether every event is still to come.
    pub(crate) pending: bool,
}

impl Recorded {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let (segments, expected) = Default::default();
        Self { capacity_bytes, used_bytes: 0, segments, expected, pending: false }
    }

    /// Sets the calls that the next row must make.
    pub(crate) fn expect(&mut self, calls: &[Call]) {
        self.expected = calls.iter().copied().collect();
    }

    /// The calls that the row did not make.
    pub(crate) fn not_made(&self) -> &VecDeque<Call> {
        &self.expected
    }

    /// The recorded call must be this one.
    fn made(&mut self, call: Call) -> Result<(), DriverError> {
        if self.expected.front() != Some(&call) {
            return Err(self.differs(&format!("{call:x?}")));
        }
        self.expected.pop_front();
        Ok(())
    }

    fn differs(&self, made: &str) -> DriverError {
        DriverError::Failed(format!("made {made}, expected {:x?}", self.expected.front()))
    }

    fn room_for(&self, bytes: u64) -> Result<(), DriverError> {
        if self.used_bytes + bytes > self.capacity_bytes { Err(DriverError::OutOfMemory) } else { Ok(()) }
    }
}

impl Driver for Recorded {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let taken = bytes.next_multiple_of(GRAIN_BYTES);
        self.room_for(taken)?;
        match self.expected.front() {
            Some(&Call::Malloc { addr, bytes: recorded }) if recorded == bytes => {
                self.expected.pop_front();
                self.used_bytes += taken;
                self.segments.insert(Addr(addr), taken);
                Ok(Addr(addr))
            }
            _ => Err(self.differs(&format!("Malloc of {bytes}"))),
        }
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.made(Call::Free { addr: addr.0 })?;
        self.used_bytes -= self.segments.remove(&addr).unwrap_or(0);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        match self.expected.front() {
            Some(&Call::Reserve { addr, bytes: recorded }) if recorded == bytes => {
                self.expected.pop_front();
                Ok(Addr(addr))
            }
            _ => Err(self.differs(&format!("Reserve of {bytes}"))),
        }
    }

    fn release(&mut self, _at: Addr, _bytes: u64) -> Result<(), DriverError> {
        Ok(())
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        let taken = page_bytes.next_multiple_of(GRAIN_BYTES) * pages;
        self.room_for(taken)?;
        for page in 0..pages {
            self.made(Call::Map { addr: at.0 + page * page_bytes, bytes: page_bytes })?;
        }
        self.used_bytes += taken;
        Ok(())
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, _on: StreamId) -> Result<(), DriverError> {
        for page in 0..pages {
            self.made(Call::Unmap { addr: at.0 + page * page_bytes, bytes: page_bytes })?;
        }
        self.used_bytes -= page_bytes.next_multiple_of(GRAIN_BYTES) * pages;
        Ok(())
    }

    fn is_done(&mut self, _event: EventId) -> Result<bool, DriverError> {
        Ok(!self.pending)
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { free_bytes: self.capacity_bytes - self.used_bytes, total_bytes: self.capacity_bytes }
    }
}
