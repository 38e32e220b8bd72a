//! The device of the oracle's shell: [`FirstFit`]. It uses an address again as soon as it can.

use std::collections::BTreeMap;

use plimsoll_alloc::{Addr, Driver, DriverError, MemoryInfo};

const BASE: u64 = 0x7f00_0000_0000;
const GRAIN_BYTES: u64 = 2 << 20;

/// Hands out the lowest gap that fits, on multiples of 2 MiB. What is free can be set at any time.
pub(crate) struct FirstFit {
    total_bytes: u64,
    limit_bytes: u64,
    segments: BTreeMap<u64, u64>,
}

impl FirstFit {
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self { total_bytes, limit_bytes: total_bytes, segments: BTreeMap::new() }
    }

    /// Sets how many bytes may be held from now on.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit_bytes = bytes;
    }

    fn used_bytes(&self) -> u64 {
        self.segments.values().sum()
    }
}

impl Driver for FirstFit {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        if self.used_bytes() + bytes > self.limit_bytes {
            return Err(DriverError::OutOfMemory);
        }
        let mut addr = BASE;
        for (start, taken) in &self.segments {
            if start - addr >= bytes.next_multiple_of(GRAIN_BYTES) {
                break;
            }
            addr = start + taken.next_multiple_of(GRAIN_BYTES);
        }
        self.segments.insert(addr, bytes);
        Ok(Addr(addr))
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        let freed = self.segments.remove(&addr.0);
        freed.map(|_| ()).ok_or_else(|| DriverError::Failed(format!("no segment starts at {addr}")))
    }

    fn memory(&self) -> MemoryInfo {
        let free_bytes = self.limit_bytes.saturating_sub(self.used_bytes());
        MemoryInfo { free_bytes, total_bytes: self.total_bytes }
    }
}
