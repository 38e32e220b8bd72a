//! A device that answers from a record: [`Recorded`].

use std::collections::{BTreeMap, VecDeque};

use plimsoll_alloc::{Addr, Driver, DriverError, MemoryInfo};

use super::corpus::Call;

/// Answers the calls of one row with the recorded addresses, and fails at the first call that is not the
/// one recorded. Refusals leave no record: they follow from the capacity, counted in steps of 2 MiB.
pub(crate) struct Recorded {
    capacity_bytes: u64,
    used_bytes: u64,
    segments: BTreeMap<Addr, u64>,
    expected: VecDeque<Call>,
}

impl Recorded {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, used_bytes: 0, segments: BTreeMap::new(), expected: VecDeque::new() }
    }

    /// Sets the calls that the next row must make.
    pub(crate) fn expect(&mut self, calls: &[Call]) {
        self.expected = calls.iter().copied().collect();
    }

    /// The calls that the row did not make.
    pub(crate) fn not_made(&self) -> &VecDeque<Call> {
        &self.expected
    }

    fn differs(&self, made: &str) -> DriverError {
        DriverError::Failed(format!("made {made}, expected {:?}", self.expected.front()))
    }
}

impl Driver for Recorded {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let taken = bytes.next_multiple_of(2 << 20);
        if self.used_bytes + taken > self.capacity_bytes {
            return Err(DriverError::OutOfMemory);
        }
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
        if self.expected.front() != Some(&Call::Free { addr: addr.0 }) {
            return Err(self.differs(&format!("Free of {addr}")));
        }
        self.expected.pop_front();
        self.used_bytes -= self.segments.remove(&addr).unwrap_or(0);
        Ok(())
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { free_bytes: self.capacity_bytes - self.used_bytes, total_bytes: self.capacity_bytes }
    }
}
