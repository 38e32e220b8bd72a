//! A device that returns recorded results: [`Recorded`].

use std::collections::{BTreeMap, VecDeque};

use plimsoll_alloc::{Addr, Driver, DriverError, EventId, MemoryInfo, StreamId};

use super::corpus::Call;

const GRAIN_BYTES: u64 = 2 << 20;
/// The alignment of segments.
const ALIGNMENT_BYTES: u64 = 512;
/// The end of the address space.
const LAST_ADDRESS: u64 = 1 << 63;

/// Returns the recorded addresses for the calls of one row, and fails at the first call that differs from the recorded
/// call. Rejected calls are not recorded: they follow from the capacity, in steps of 2 MiB.
pub(crate) struct Recorded {
    capacity_bytes: u64,
    used_bytes: u64,
    segments: BTreeMap<Addr, u64>,
    ranges: BTreeMap<Addr, u64>,
    expected: VecDeque<Call>,
    /// Whether every CUDA event is pending.
    pub(crate) pending: bool,
}

impl Recorded {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let (segments, ranges, expected) = Default::default();
        Self { capacity_bytes, used_bytes: 0, segments, ranges, expected, pending: false }
    }

    /// Sets the calls that the next row must make.
    pub(crate) fn expect(&mut self, calls: &[Call]) {
        self.expected = calls.iter().copied().collect();
    }

    /// The recorded calls that our allocator did not make.
    pub(crate) fn not_made(&self) -> &VecDeque<Call> {
        &self.expected
    }

    /// Checks that this call is the next recorded call.
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

    /// Checks that a device could place memory at this address. A forged recording may place it over existing memory,
    /// at 0, at an address that is not a multiple of 512, or beyond the address space.
    fn is_place(&self, addr: u64, bytes: u64) -> Result<Addr, DriverError> {
        let end = addr.checked_add(bytes).filter(|&end| end <= LAST_ADDRESS);
        let below = |taken: &BTreeMap<Addr, u64>| {
            let (start, length) = taken.range(..Addr(end?)).next_back()?;
            Some(start.0 + length)
        };
        let free_from = below(&self.segments).max(below(&self.ranges)).unwrap_or(ALIGNMENT_BYTES);
        if end.is_some() && addr >= free_from && addr.is_multiple_of(ALIGNMENT_BYTES) {
            Ok(Addr(addr))
        } else {
            Err(DriverError::Failed(format!("{bytes} bytes cannot lie at {addr:#x}")))
        }
    }

    fn room_for(&self, bytes: u64) -> Result<(), DriverError> {
        let used_bytes = self.used_bytes.checked_add(bytes);
        let fits = used_bytes.is_some_and(|used_bytes| used_bytes <= self.capacity_bytes);
        if fits { Ok(()) } else { Err(DriverError::OutOfMemory) }
    }
}

impl Driver for Recorded {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let taken = bytes.next_multiple_of(GRAIN_BYTES);
        self.room_for(taken)?;
        match self.expected.front() {
            Some(&Call::Malloc { addr, bytes: recorded }) if recorded == bytes => {
                let addr = self.is_place(addr, taken)?;
                self.expected.pop_front();
                self.used_bytes += taken;
                self.segments.insert(addr, taken);
                Ok(addr)
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
                let addr = self.is_place(addr, bytes)?;
                self.expected.pop_front();
                self.ranges.insert(addr, bytes);
                Ok(addr)
            }
            _ => Err(self.differs(&format!("Reserve of {bytes}"))),
        }
    }

    fn release(&mut self, at: Addr, _bytes: u64) -> Result<(), DriverError> {
        self.ranges.remove(&at);
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
