//! The arenas and the device calls for them: [`Pages`].
//!
//! Failed calls change nothing, except that pages that were already mapped remain as free memory.

use std::collections::BTreeMap;

use super::arena::{Arena, ArenaKey};
use super::gaps::{Extent, PAGE_BYTES};
use super::stitched::{RangeNumber, StitchedRange, pages_of};
use crate::driver::{Driver, DriverError};
use crate::event::{DeviceRange, Event, Observer};
use crate::request::Addr;

/// How many times, on average, an arena's pages may be mapped in stitched ranges. Beyond that, the least recently used
/// ranges are unmapped. A mapping takes a few bytes of page tables on the device.
const MAPPINGS_OF_A_PAGE: u64 = 8;

/// The number of device calls that a [`PackedAllocator`](super::PackedAllocator) has made.
///
/// ```
/// # use plimsoll_alloc::{PackedAllocator, PackedCalls, Request, SimDriver};
/// let mut allocator = PackedAllocator::new(SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(3 << 20))?;
/// assert_eq!(allocator.calls(), PackedCalls { maps: 1, mapped_pages: 2, ..PackedCalls::default() });
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PackedCalls {
    /// Ranges of new pages that were mapped.
    pub maps: u64,
    /// The pages in them.
    pub mapped_pages: u64,
    /// Ranges of pages that were returned to the device.
    pub unmaps: u64,
    /// The pages in them.
    pub unmapped_pages: u64,
    /// Ranges that were stitched from pages of the allocator.
    pub stitches: u64,
    /// The pages in them.
    pub stitched_pages: u64,
    /// Stitched ranges that were unmapped.
    pub unstitches: u64,
    /// The pages in them.
    pub unstitched_pages: u64,
}

impl PackedCalls {
    /// All calls: each covers a range of pages.
    pub fn total(&self) -> u64 {
        self.maps + self.unmaps + self.stitches + self.unstitches
    }
}

#[derive(Debug)]
pub(super) struct Pages<D> {
    pub(super) driver: D,
    pub(super) arenas: BTreeMap<ArenaKey, Arena>,
    pub(super) reserved_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) calls: PackedCalls,
}

impl<D: Driver> Pages<D> {
    pub(super) fn new(driver: D) -> Self {
        let (arenas, calls) = Default::default();
        Self { driver, arenas, reserved_bytes: 0, limit_bytes: None, calls }
    }

    /// Creates an arena if there is none: reserves its home, 9/8 of the device as for expandable segments.
    pub(super) fn open(&mut self, key: ArenaKey) -> Result<(), DriverError> {
        if !self.arenas.contains_key(&key) {
            let total_bytes = self.driver.memory().total_bytes;
            let pages = total_bytes.saturating_add(total_bytes / 8).div_ceil(PAGE_BYTES);
            let home = self.driver.reserve(pages.saturating_mul(PAGE_BYTES))?;
            self.arenas.insert(key, Arena::new(home, pages));
        }
        Ok(())
    }

    pub(super) fn arena(&mut self, key: ArenaKey) -> &mut Arena {
        self.arenas
            .get_mut(&key)
            .expect("an arena is opened before its first request, and stays while a block is in it")
    }

    /// Maps new pages. Returns whether there was memory for all of them.
    pub(super) fn grow(
        &mut self,
        key: ArenaKey,
        pages: u64,
        observer: &mut impl Observer,
    ) -> Result<bool, DriverError> {
        let wanted_bytes = self.reserved_bytes.saturating_add(pages.saturating_mul(PAGE_BYTES));
        let is_beyond_limit = self.limit_bytes.is_some_and(|limit_bytes| wanted_bytes > limit_bytes);
        if is_beyond_limit || pages.saturating_mul(PAGE_BYTES) > self.driver.memory().free_bytes {
            return Ok(false);
        }
        let mut missing = pages;
        while missing > 0 {
            let Some(run) = self.arena(key).next_pages(missing) else { return Ok(false) };
            let addr = self.arena(key).address(run.start);
            match self.driver.map(addr, PAGE_BYTES, run.bytes / PAGE_BYTES) {
                Ok(()) => {}
                Err(DriverError::OutOfMemory) => return Ok(false),
                Err(why) => return Err(why),
            }
            self.arena(key).add_pages(run);
            self.reserved_bytes += run.bytes;
            self.calls.maps += 1;
            self.calls.mapped_pages += run.bytes / PAGE_BYTES;
            observer.on(&Event::SegmentMap { memory: memory(key, addr, run), stack: None });
            missing -= run.bytes / PAGE_BYTES;
        }
        Ok(true)
    }

    /// Maps the pages of free pieces a second time, one after another.
    pub(super) fn stitch(&mut self, key: ArenaKey, pieces: Vec<Extent>) -> Result<RangeNumber, DriverError> {
        let arena = self.arena(key);
        let from: Vec<Addr> = pages_of(&pieces).map(|start| arena.address(start)).collect();
        let bytes = from.len() as u64 * PAGE_BYTES;
        let addr = self.driver.reserve(bytes)?;
        if let Err(why) = self.driver.alias(addr, PAGE_BYTES, &from) {
            // The request fails with the first error; address space that cannot be released is lost, not memory.
            let _ = self.driver.release(addr, bytes);
            return Err(why);
        }
        self.calls.stitches += 1;
        self.calls.stitched_pages += from.len() as u64;
        Ok(self.arena(key).stitched.insert(StitchedRange::new(addr, pieces)))
    }

    /// Unmaps the least recently used stitched ranges, if pages are mapped too often.
    pub(super) fn trim(&mut self, key: ArenaKey) -> Result<(), DriverError> {
        loop {
            let arena = self.arena(key);
            let is_within = arena.stitched.mapped_pages() <= MAPPINGS_OF_A_PAGE * arena.pages();
            match arena.stitched.least_recent().filter(|_| !is_within) {
                Some(number) => self.unstitch(key, number)?,
                None => return Ok(()),
            }
        }
    }

    /// Unmaps a stitched range that has no block.
    fn unstitch(&mut self, key: ArenaKey, number: RangeNumber) -> Result<(), DriverError> {
        let range = self.arena(key).stitched.get(number);
        let (addr, pages) = (range.addr, range.pages);
        self.driver.unalias(addr, PAGE_BYTES, pages, key.stream)?;
        self.arena(key).stitched.remove(number);
        self.calls.unstitches += 1;
        self.calls.unstitched_pages += pages;
        self.driver.release(addr, pages * PAGE_BYTES)
    }

    /// Returns free pages of an arena to the device, starting with the last ones, until `pages` are returned or none
    /// are left. Returns their number.
    pub(super) fn shrink(
        &mut self,
        key: ArenaKey,
        pages: u64,
        observer: &mut impl Observer,
    ) -> Result<u64, DriverError> {
        let mut returned = 0;
        for run in self.arena(key).free_pages() {
            let bytes = run.bytes.min((pages - returned).saturating_mul(PAGE_BYTES));
            if bytes == 0 {
                break;
            }
            let run = Extent::between(run.end() - bytes, run.end());
            for number in self.arena(key).stitched.mapping(run) {
                self.unstitch(key, number)?;
            }
            let addr = self.arena(key).address(run.start);
            self.driver.unmap(addr, PAGE_BYTES, bytes / PAGE_BYTES, key.stream)?;
            self.arena(key).remove_pages(run);
            self.reserved_bytes -= bytes;
            self.calls.unmaps += 1;
            self.calls.unmapped_pages += bytes / PAGE_BYTES;
            observer.on(&Event::SegmentUnmap { memory: memory(key, addr, run) });
            returned += bytes / PAGE_BYTES;
        }
        Ok(returned)
    }

    /// Releases the address space of an arena without pages.
    pub(super) fn close(&mut self, key: ArenaKey) -> Result<(), DriverError> {
        if self.arena(key).pages() > 0 {
            return Ok(());
        }
        for number in self.arena(key).stitched.numbers() {
            self.unstitch(key, number)?;
        }
        let (home, bytes) = self.arena(key).home();
        self.driver.release(home, bytes)?;
        self.arenas.remove(&key);
        Ok(())
    }
}

fn memory(key: ArenaKey, addr: Addr, run: Extent) -> DeviceRange {
    DeviceRange { addr, bytes: run.bytes, stream: key.stream, pool: key.kind, pool_id: key.pool }
}
