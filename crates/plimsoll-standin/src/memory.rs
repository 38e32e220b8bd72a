//! What is held of each device: allocations, reservations of addresses, physical memory mapped into them,
//! pinned memory of the host.
//!
//! Nothing of a device's memory exists: an allocation is address space that faults when it is touched
//! ([`space`]), and a number of bytes that count against the device's.

pub(crate) mod copy;
pub(crate) mod reads;
pub(crate) mod recent;
mod space;
mod stray;
pub(crate) mod writes;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use crate::call::new_handle;
use crate::error::{Failure, Outcome};
use crate::gpu::setup;
use crate::lock::locked;
use space::Access;

/// Device memory is given in pages of this size, as by the real driver.
pub(crate) const PAGE_BYTES: u64 = 2 << 20;

/// What a range of addresses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device (`cudaMalloc`).
    Device(usize),
    /// Memory of a device's pool (`cudaMallocAsync`).
    Pool(usize),
    /// Addresses for physical memory to be mapped into (`cuMemAddressReserve`).
    Reserved,
    /// Memory of a device that the host may touch (`cudaMallocManaged`).
    Managed(usize),
    /// Pinned memory of the host (`cudaHostAlloc`).
    Host,
    /// Memory of the host that was pinned where it was (`cudaHostRegister`).
    Registered,
}

/// A range of addresses, by its begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Where it begins.
    pub(crate) begin: u64,
    /// How long it is.
    pub(crate) bytes: u64,
    /// What it is.
    pub(crate) kind: Kind,
}

/// Physical memory of a device (`cuMemCreate`).
#[derive(Debug, Clone, Copy)]
struct Physical {
    bytes: u64,
    device: usize,
    /// Its handle, if it is not released, and the places where it is mapped. At zero it is given back.
    holds: u64,
}

/// Use of a device's pool now and at most, for `cudaMemPoolGetAttribute`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolUse {
    pub(crate) current_bytes: u64,
    pub(crate) high_bytes: u64,
}

/// Everything held by this process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Range>,
    physical: BTreeMap<u64, Physical>,
    /// Where physical memory is mapped: by address, its bytes and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// By device: bytes in use.
    used: BTreeMap<usize, u64>,
    /// By device: the most bytes that were in use at one time.
    most: BTreeMap<usize, u64>,
    pools: BTreeMap<usize, PoolUse>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    ranges: BTreeMap::new(),
    physical: BTreeMap::new(),
    mapped: BTreeMap::new(),
    used: BTreeMap::new(),
    most: BTreeMap::new(),
    pools: BTreeMap::new(),
});

/// The memory of this process, until the guard is dropped.
pub(crate) fn memory() -> MutexGuard<'static, Memory> {
    locked(&MEMORY)
}

/// The same from a signal's handler: nothing if somebody else has it.
fn memory_if_free() -> Option<MutexGuard<'static, Memory>> {
    MEMORY.try_lock().ok()
}

/// The most bytes that this process had of a device at one time, without its context: for whoever watches it.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_most_bytes(device: c_int) -> u64 {
    let device = usize::try_from(device).unwrap_or(usize::MAX);
    memory().most.get(&device).copied().unwrap_or(0)
}

impl Memory {
    /// Allocates on a device, in whole pages. `kind` says how it will be known: device, pool or managed.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the device has less left.
    pub(crate) fn allocate(&mut self, device: usize, bytes: u64, kind: Kind) -> Outcome<u64> {
        let bytes = pages(bytes)?;
        self.take(device, bytes)?;
        let access = if matches!(kind, Kind::Managed(_)) { Access::Host } else { Access::None };
        let begin = space::map(bytes, access).inspect_err(|_| self.give(device, bytes))?;
        self.ranges.insert(begin, Range { begin, bytes, kind });
        if let Kind::Pool(_) = kind {
            let pool = self.pools.entry(device).or_default();
            pool.current_bytes += bytes;
            pool.high_bytes = pool.high_bytes.max(pool.current_bytes);
        }
        Ok(begin)
    }

    /// Frees what [`Memory::allocate`] gave. Null is nothing.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if no allocation begins there.
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
        self.give(device, range.bytes);
        self.forget(range);
        Ok(())
    }

    /// Reserves addresses, in whole pages.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the host has no such addresses left.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = pages(bytes)?;
        let begin = space::map(bytes, Access::None)?;
        self.ranges.insert(begin, Range { begin, bytes, kind: Kind::Reserved });
        Ok(begin)
    }

    /// Gives reserved addresses back, into which nothing is mapped.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if no reservation begins there, or something is mapped.
    pub(crate) fn unreserve(&mut self, begin: u64) -> Outcome {
        let range = self.ranges.get(&begin).filter(|range| range.kind == Kind::Reserved);
        let range = *range.ok_or(Failure::InvalidValue)?;
        if self.mapped.range(begin..begin + range.bytes).next().is_some() {
            return Err(Failure::InvalidValue);
        }
        self.forget(range);
        Ok(())
    }

    /// Makes physical memory, and returns its handle.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if it is not of whole pages, `OutOfMemory` if the device has less left.
    pub(crate) fn create(&mut self, device: usize, bytes: u64) -> Outcome<u64> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Failure::InvalidValue);
        }
        self.take(device, bytes)?;
        let handle = new_handle();
        self.physical.insert(handle, Physical { bytes, device, holds: 1 });
        Ok(handle)
    }

    /// Lets go of physical memory; it is given back when it is mapped nowhere, too.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle.
    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        let physical = self.physical.get_mut(&handle).ok_or(Failure::InvalidHandle)?;
        physical.holds -= 1;
        if physical.holds == 0 {
            let Physical { bytes, device, .. } = *physical;
            self.physical.remove(&handle);
            self.give(device, bytes);
        }
        Ok(())
    }

    /// One more hold on the physical memory that is mapped at an address; its handle.
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

    /// Maps physical memory, whole, at an address inside a reservation where nothing is mapped.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle, `InvalidValue` if it does not fit there.
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
    /// `InvalidValue` if what is mapped there is not these bytes exactly.
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

    /// Pinned memory of the host, all zero.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the host has none.
    pub(crate) fn pin(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = bytes.max(1);
        let begin = space::host(bytes)?;
        self.ranges.insert(begin, Range { begin, bytes, kind: Kind::Host });
        Ok(begin)
    }

    /// Gives pinned memory back. Null is nothing.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if none begins there.
    pub(crate) fn unpin(&mut self, begin: u64) -> Outcome {
        if begin == 0 {
            return Ok(());
        }
        let range = self.ranges.get(&begin).filter(|range| range.kind == Kind::Host);
        let range = *range.ok_or(Failure::InvalidValue)?;
        self.forget(range);
        Ok(())
    }

    /// Notes that memory of the host is pinned where it is.
    pub(crate) fn register(&mut self, begin: u64, bytes: u64) {
        self.ranges.insert(begin, Range { begin, bytes, kind: Kind::Registered });
    }

    /// Forgets what [`Memory::register`] noted.
    ///
    /// # Errors
    ///
    /// `InvalidValue` if nothing was noted there.
    pub(crate) fn unregister(&mut self, begin: u64) -> Outcome {
        let range = self.ranges.get(&begin).filter(|range| range.kind == Kind::Registered);
        range.ok_or(Failure::InvalidValue)?;
        self.ranges.remove(&begin);
        Ok(())
    }

    /// The range that an address lies in.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.begin + range.bytes).then_some(*range)
    }

    /// What of a device is free, in bytes.
    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        setup().free_bytes(device, self.used_bytes(device))
    }

    /// How a device's pool is used.
    pub(crate) fn pool(&mut self, device: usize) -> &mut PoolUse {
        self.pools.entry(device).or_default()
    }

    /// Takes bytes of a device.
    fn take(&mut self, device: usize, bytes: u64) -> Outcome {
        let used_bytes = self.used_bytes(device).checked_add(bytes).ok_or(Failure::OutOfMemory)?;
        if !setup().note(device, used_bytes) {
            return Err(Failure::OutOfMemory);
        }
        self.used.insert(device, used_bytes);
        let most_bytes = self.most.entry(device).or_default();
        *most_bytes = used_bytes.max(*most_bytes);
        Ok(())
    }

    /// Gives bytes back to their device.
    fn give(&mut self, device: usize, bytes: u64) {
        let used_bytes = self.used_bytes(device) - bytes;
        self.used.insert(device, used_bytes);
        // Less has room.
        setup().note(device, used_bytes);
    }

    /// What this process has of a device.
    fn used_bytes(&self, device: usize) -> u64 {
        self.used.get(&device).copied().unwrap_or(0)
    }

    /// Removes a range and its addresses.
    fn forget(&mut self, range: Range) {
        self.ranges.remove(&range.begin);
        space::unmap(range.begin, range.bytes);
    }
}

/// A size in whole pages.
fn pages(bytes: u64) -> Outcome<u64> {
    bytes.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(Failure::OutOfMemory)
}
