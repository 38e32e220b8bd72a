//! Our allocator during a replay: [`ReplayState`]. Memory is added to it and removed from it as recorded, because it
//! has no device.

use std::collections::BTreeMap;

use plimsoll_alloc::{
    Addr, Allocator, Config, DeviceRange, Driver, DriverError, MemoryInfo, PoolId, TieOrder,
};

use crate::snapshot::Snapshot;

/// A device that has no memory.
pub(super) struct NoDevice;

impl Driver for NoDevice {
    fn segment_alloc(&mut self, _: u64) -> Result<Addr, DriverError> {
        Err(DriverError::OutOfMemory)
    }

    fn segment_free(&mut self, _: Addr) -> Result<(), DriverError> {
        Ok(())
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { free_bytes: 0, total_bytes: 0 }
    }
}

pub(super) struct ReplayState {
    pub(super) allocator: Allocator<NoDevice, ()>,
    /// Segments, and the address space of expandable segments. These ranges must not overlap.
    pub(super) memory: BTreeMap<Addr, DeviceRange>,
    pub(super) stray_segments: usize,
}

impl ReplayState {
    /// An empty allocator with the recorded options, except those that affect requests to the device.
    pub(super) fn new(snapshot: &Snapshot, config: Config, tie_order: TieOrder) -> Self {
        let config = config.with_tie_order(tie_order).with_throw_on_cudamalloc_oom(false);
        let config = config.with_per_process_memory_fraction(1.0).unwrap_or_default();
        let mut allocator = Allocator::new(config, NoDevice, ());
        for pool in snapshot.pools.iter().filter(|&pool| pool != PoolId::DEFAULT) {
            allocator.create_pool(pool).expect("a pool with a name of its own");
        }
        Self { allocator, memory: BTreeMap::new(), stray_segments: 0 }
    }

    /// Claims a range of memory. Returns `false` if a part of the range is already claimed.
    pub(super) fn claim(&mut self, memory: DeviceRange) -> bool {
        let end = memory.addr.0.checked_add(memory.bytes);
        let below = end.and_then(|end| self.memory.range(..Addr(end)).next_back());
        let is_free = end.is_some()
            && memory.bytes > 0
            && below.is_none_or(|(_, below)| below.addr.0 + below.bytes <= memory.addr.0);
        if is_free {
            self.memory.insert(memory.addr, memory);
        }
        is_free
    }

    /// The segment that contains an address.
    fn around(&self, addr: Addr) -> Option<&DeviceRange> {
        let (_, memory) = self.memory.range(..=addr).next_back()?;
        (addr.0 < memory.addr.0 + memory.bytes).then_some(memory)
    }

    /// Applies the mapping of pages.
    pub(super) fn map(&mut self, addr: Addr, bytes: u64) {
        let pages = self.around(addr).map(|around| DeviceRange { addr, bytes, ..*around });
        let done = pages.is_some_and(|pages| self.allocator.adopt_pages(&pages).is_ok());
        self.stray_segments += usize::from(!done);
    }

    /// Applies the unmapping of pages.
    pub(super) fn unmap(&mut self, addr: Addr, bytes: u64) {
        let pages = self.around(addr).map(|around| DeviceRange { addr, bytes, ..*around });
        let done = pages.is_some_and(|pages| self.allocator.disown(&pages).is_ok());
        self.stray_segments += usize::from(!done);
    }

    /// Applies the release of a segment.
    pub(super) fn free_segment(&mut self, addr: Addr, bytes: u64) {
        let segment = self.memory.get(&addr).map(|segment| DeviceRange { bytes, ..*segment });
        let done = segment.is_some_and(|segment| self.allocator.disown(&segment).is_ok());
        if done {
            self.memory.remove(&addr);
        }
        self.stray_segments += usize::from(!done);
    }
}
