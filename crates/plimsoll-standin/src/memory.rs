//! The memory in use: device allocations, address reservations, physical memory that is mapped into them, and pinned
//! host memory.
//!
//! Device memory does not exist: an allocation is a range of addresses that faults on access ([`space`]), and a number
//! of bytes that count against the device's. Memory outside the process's requests, such as its context, is counted in
//! addition ([`uses`]), but has no addresses.

pub(crate) mod copy;
pub(crate) mod reads;
pub(crate) mod recent;
mod space;
mod stray;
pub(crate) mod uses;
pub(crate) mod writes;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::call::new_handle;
use crate::error::{Failure, Outcome};
use crate::lock::locked;
use space::Access;
use uses::{Place, Uses};

/// Device memory is allocated in pages of this size, like that of the real driver.
pub(crate) const PAGE_BYTES: u64 = plimsoll_gpu::outside::PAGE_BYTES;

/// The kind of an address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device (`cudaMalloc`).
    Device(usize),
    /// Memory of a device's pool (`cudaMallocAsync`).
    Pool(usize),
    /// Addresses into which physical memory can be mapped (`cuMemAddressReserve`).
    Reserved,
    /// Memory of a device that the host may access (`cudaMallocManaged`).
    Managed(usize),
    /// Pinned memory of the host (`cudaHostAlloc`).
    Host,
    /// Existing host memory that was pinned (`cudaHostRegister`).
    Registered,
}

/// An address range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Its first address.
    pub(crate) begin: u64,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its kind.
    pub(crate) kind: Kind,
}

/// Physical memory of a device (`cuMemCreate`).
#[derive(Debug, Clone, Copy)]
struct Physical {
    bytes: u64,
    device: usize,
    /// References: one for its handle until that is released, and one for each mapping. It is freed at zero.
    holds: u64,
}

/// A device pool's current and peak use, for `cudaMemPoolGetAttribute`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolUse {
    pub(crate) current_bytes: u64,
    pub(crate) high_bytes: u64,
}

/// This process's memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Range>,
    physical: BTreeMap<u64, Physical>,
    /// Mappings of physical memory: bytes and handle, by address.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// The places of small requests that share pages, by address.
    small: BTreeMap<u64, Place>,
    /// The memory that the process uses on each device.
    pub(crate) uses: Uses,
    pools: BTreeMap<usize, PoolUse>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    ranges: BTreeMap::new(),
    physical: BTreeMap::new(),
    mapped: BTreeMap::new(),
    small: BTreeMap::new(),
    uses: Uses::new(),
    pools: BTreeMap::new(),
});

/// The memory of this process, until the guard is dropped.
pub(crate) fn memory() -> MutexGuard<'static, Memory> {
    locked(&MEMORY)
}

/// The memory, for a signal handler; `None` if the lock is held.
fn memory_if_free() -> Option<MutexGuard<'static, Memory>> {
    MEMORY.try_lock().ok()
}

impl Memory {
    /// Allocates on a device, in whole pages. `kind` is device, pool or managed.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the device has less free memory. Managed memory needs none: it can be on the host.
    pub(crate) fn allocate(&mut self, device: usize, bytes: u64, kind: Kind) -> Outcome<u64> {
        let (asked_bytes, bytes) = (bytes, pages(bytes)?);
        if let Kind::Managed(_) = kind {
            self.uses.take_managed(device, bytes)?;
            let begin = map(bytes, Access::Host).inspect_err(|_| self.uses.give_managed(device, bytes))?;
            self.ranges.insert(begin, Range { begin, bytes, kind });
            return Ok(begin);
        }
        let small_bytes = matches!(kind, Kind::Device(_)).then_some(asked_bytes);
        let place = self.uses.place(device, small_bytes, bytes)?;
        let begin = map(bytes, Access::None).inspect_err(|_| self.uses.remove(device, place, bytes))?;
        self.ranges.insert(begin, Range { begin, bytes, kind });
        if let Some(place) = place {
            self.small.insert(begin, place);
        }
        if let Kind::Pool(_) = kind {
            let pool = self.pools.entry(device).or_default();
            pool.current_bytes += bytes;
            pool.high_bytes = pool.high_bytes.max(pool.current_bytes);
        }
        Ok(begin)
    }

    /// Frees an allocation of [`Memory::allocate`]. Null does nothing.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if no allocation starts there.
    pub(crate) fn free(&mut self, begin: u64) -> Outcome {
        if begin == 0 {
            return Ok(());
        }
        let range = *self.ranges.get(&begin).ok_or(Failure::InvalidValue)?;
        let (Kind::Device(device) | Kind::Pool(device) | Kind::Managed(device)) = range.kind else {
            return Err(Failure::InvalidValue);
        };
        if let Kind::Pool(_) = range.kind {
            self.pools.entry(device).or_default().current_bytes -= range.bytes;
        }
        let place = self.small.remove(&begin);
        match range.kind {
            Kind::Managed(_) => self.uses.give_managed(device, range.bytes),
            _ => self.uses.remove(device, place, range.bytes),
        }
        self.forget(range);
        Ok(())
    }

    /// Reserves addresses, in whole pages.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if no such range of addresses is free.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = pages(bytes)?;
        let begin = map(bytes, Access::None)?;
        self.ranges.insert(begin, Range { begin, bytes, kind: Kind::Reserved });
        Ok(begin)
    }

    /// Releases reserved addresses.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if no reservation starts there, or something is mapped into it.
    pub(crate) fn unreserve(&mut self, begin: u64) -> Outcome {
        let range = self.ranges.get(&begin).filter(|range| range.kind == Kind::Reserved);
        let range = *range.ok_or(Failure::InvalidValue)?;
        if self.mapped.range(begin..begin + range.bytes).next().is_some() {
            return Err(Failure::InvalidValue);
        }
        self.forget(range);
        Ok(())
    }

    /// Creates physical memory, and returns its handle.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the size is 0 or not a multiple of the page size, `OutOfMemory` if the device has less free memory.
    pub(crate) fn create(&mut self, device: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Failure::InvalidValue);
        }
        self.uses.take(device, bytes)?;
        let handle = new_handle();
        self.physical.insert(handle, Physical { bytes, device, holds: 1 });
        Ok(handle)
    }

    /// Releases the handle of physical memory. The memory is freed when it is no longer mapped.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such handle.
    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        let physical = self.physical.get_mut(&handle).ok_or(Failure::InvalidHandle)?;
        physical.holds -= 1;
        if physical.holds == 0 {
            let Physical { bytes, device, .. } = *physical;
            self.physical.remove(&handle);
            self.uses.give(device, bytes);
        }
        Ok(())
    }

    /// Adds a reference to the physical memory that is mapped at an address, and returns its handle.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if nothing is mapped there.
    pub(crate) fn retain(&mut self, address: u64) -> Outcome<u64> {
        let (begin, (bytes, handle)) =
            self.mapped.range(..=address).next_back().ok_or(Failure::InvalidValue)?;
        let inside = address < begin + bytes;
        let physical = self.physical.get_mut(handle).filter(|_| inside).ok_or(Failure::InvalidValue)?;
        physical.holds += 1;
        Ok(*handle)
    }

    /// Maps all of a physical memory at an unmapped address inside a reservation.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such handle, `InvalidValue` if it does not fit there.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Outcome {
        let end = address.checked_add(bytes).ok_or(Failure::InvalidValue)?;
        let range = self.find(address).filter(|range| range.kind == Kind::Reserved);
        let inside = range.is_some_and(|range| end <= range.begin + range.bytes);
        let before = self.mapped.range(..end).next_back();
        let free = before.is_none_or(|(begin, (bytes, _))| begin + bytes <= address);
        let physical = self.physical.get_mut(&handle).ok_or(Failure::InvalidHandle)?;
        if !inside || !free || bytes != physical.bytes {
            return Err(Failure::InvalidValue);
        }
        physical.holds += 1;
        self.mapped.insert(address, (bytes, handle));
        Ok(())
    }

    /// Unmaps everything between two addresses.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if the mappings there are not exactly this range.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Outcome {
        let end = address.checked_add(bytes).ok_or(Failure::InvalidValue)?;
        let there = self.mapped.range(address..end).map(|(begin, (bytes, handle))| (*begin, *bytes, *handle));
        let there: Vec<(u64, u64, u64)> = there.collect();
        if there.iter().map(|(_, bytes, _)| bytes).sum::<u64>() != bytes {
            return Err(Failure::InvalidValue);
        }
        for (begin, _, handle) in there {
            self.mapped.remove(&begin);
            self.release(handle)?;
        }
        Ok(())
    }

    /// Allocates pinned host memory, zeroed.
    ///
    /// # Errors
    ///
    /// The host is out of memory.
    pub(crate) fn pin(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = bytes.max(1);
        let begin = space::host(bytes)?;
        self.ranges.insert(begin, Range { begin, bytes, kind: Kind::Host });
        Ok(begin)
    }

    /// Frees pinned memory. Null does nothing.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if none starts there.
    pub(crate) fn unpin(&mut self, begin: u64) -> Outcome {
        if begin == 0 {
            return Ok(());
        }
        let range = self.ranges.get(&begin).filter(|range| range.kind == Kind::Host);
        let range = *range.ok_or(Failure::InvalidValue)?;
        self.forget(range);
        Ok(())
    }

    /// Records that existing host memory is pinned.
    pub(crate) fn register(&mut self, begin: u64, bytes: u64) {
        self.ranges.insert(begin, Range { begin, bytes, kind: Kind::Registered });
    }

    /// Undoes [`Memory::register`].
    ///
    /// # Errors
    ///
    /// `InvalidValue` if no registered memory starts there.
    pub(crate) fn unregister(&mut self, begin: u64) -> Outcome {
        let range = self.ranges.get(&begin).filter(|range| range.kind == Kind::Registered);
        range.ok_or(Failure::InvalidValue)?;
        self.ranges.remove(&begin);
        Ok(())
    }

    /// The range that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.begin + range.bytes).then_some(*range)
    }

    /// The use of a device's pool.
    pub(crate) fn pool(&mut self, device: usize) -> &mut PoolUse {
        self.pools.entry(device).or_default()
    }

    /// Removes a range and its addresses.
    fn forget(&mut self, range: Range) {
        self.ranges.remove(&range.begin);
        space::unmap(range.begin, range.bytes);
    }
}

/// A size, rounded up to whole pages.
fn pages(bytes: u64) -> Outcome<u64> {
    bytes.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(Failure::OutOfMemory)
}

/// Reserves device addresses. From then on, accesses by the host are reported.
fn map(bytes: u64, access: Access) -> Outcome<u64> {
    stray::watch();
    space::map(bytes, access)
}
