//! A simulated device with address space only: [`Sim`], or [`SimDriver`] with a capacity.
//!
//! It computes nothing and stores no bytes, so it can be of any size.

use std::collections::BTreeMap;

use crate::driver::{Driver, DriverError, MemoryInfo};
use crate::limit::Limit;
use crate::request::{Addr, StreamId};
use crate::size::SEGMENT_GRAIN_BYTES;

/// The first address. It is the same as in the conformance corpus, to make comparison easy.
const BASE: Addr = Addr(0x5000_0000_0000);
/// The size of the address space. No address is reused, so a real device's 47 bits would run
/// out after a large device was filled a few hundred times.
const SPACE_BYTES: u64 = (1 << 63) - BASE.0;

/// Address space without a capacity. Segments and reserved ranges follow one another at multiples of 2 MiB, and no
/// address is reused. Its streams run no work, so every event is done at once.
///
/// ```
/// # use plimsoll_alloc::{Addr, Driver, Sim};
/// let mut device = Sim::default();
/// assert_eq!(device.segment_alloc(1), Ok(Addr(0x5000_0000_0000)));
/// assert_eq!(device.segment_alloc(1), Ok(Addr(0x5000_0020_0000)));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Sim {
    handed_out_bytes: u64,
    segments: BTreeMap<Addr, u64>,
    ranges: BTreeMap<Addr, u64>,
    /// The start and size of each mapped page.
    pages: BTreeMap<Addr, u64>,
    /// The start of each page that is mapped again, and where it was mapped first.
    aliases: BTreeMap<Addr, Addr>,
}

impl Sim {
    fn next_address(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let taken = bytes.checked_next_multiple_of(SEGMENT_GRAIN_BYTES).ok_or(DriverError::OutOfMemory)?;
        if taken > SPACE_BYTES - self.handed_out_bytes {
            return Err(DriverError::OutOfMemory);
        }
        let addr = BASE.plus(self.handed_out_bytes);
        self.handed_out_bytes += taken;
        Ok(addr)
    }

    /// Checks that `bytes` at `at` are inside one reserved range.
    fn range_around(&self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        match self.ranges.range(..=at).next_back() {
            Some((&start, &space)) if at.0 + bytes <= start.0 + space => Ok(()),
            _ => Err(DriverError::Failed(format!("no reserved range contains {bytes} bytes at {at}"))),
        }
    }

    fn pages_in(&self, at: Addr, bytes: u64) -> usize {
        self.pages.range(at..at.plus(bytes)).count() + self.aliases.range(at..at.plus(bytes)).count()
    }
}

impl Driver for Sim {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let addr = self.next_address(bytes)?;
        self.segments.insert(addr, bytes);
        Ok(addr)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        match self.segments.remove(&addr) {
            Some(_) => Ok(()),
            None => Err(DriverError::Failed(format!("no segment starts at {addr}"))),
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        let addr = self.next_address(bytes)?;
        self.ranges.insert(addr, bytes);
        Ok(addr)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        if self.ranges.get(&at) != Some(&bytes) || self.pages_in(at, bytes) > 0 {
            return Err(DriverError::Failed(format!("no unmapped range of {bytes} bytes starts at {at}")));
        }
        self.ranges.remove(&at);
        Ok(())
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.range_around(at, page_bytes * pages)?;
        if self.pages_in(at, page_bytes * pages) > 0 {
            return Err(DriverError::Failed(format!("a page at {at} is already mapped")));
        }
        self.pages.extend((0..pages).map(|page| (at.plus(page * page_bytes), page_bytes)));
        Ok(())
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, _on: StreamId) -> Result<(), DriverError> {
        let starts = (0..pages).map(|page| at.plus(page * page_bytes));
        if !starts.clone().all(|start| self.pages.get(&start) == Some(&page_bytes)) {
            return Err(DriverError::Failed(format!("some of the {pages} pages at {at} are not mapped")));
        }
        if let Some((again, _)) =
            self.aliases.iter().find(|(_, from)| (at..at.plus(page_bytes * pages)).contains(from))
        {
            return Err(DriverError::Failed(format!("a page at {at} is still mapped at {again}")));
        }
        for start in starts {
            self.pages.remove(&start);
        }
        Ok(())
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        let bytes = page_bytes * pages.len() as u64;
        self.range_around(at, bytes)?;
        if self.pages_in(at, bytes) > 0 {
            return Err(DriverError::Failed(format!("a page at {at} is already mapped")));
        }
        if let Some(from) = pages.iter().find(|from| self.pages.get(from) != Some(&page_bytes)) {
            return Err(DriverError::Failed(format!("no page of {page_bytes} bytes is mapped at {from}")));
        }
        self.aliases.extend((0..).map(|page| at.plus(page * page_bytes)).zip(pages.iter().copied()));
        Ok(())
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, _on: StreamId) -> Result<(), DriverError> {
        let starts = (0..pages).map(|page| at.plus(page * page_bytes));
        if !starts.clone().all(|start| self.aliases.contains_key(&start)) {
            return Err(DriverError::Failed(format!(
                "some of the {pages} pages at {at} are not mapped again"
            )));
        }
        for start in starts {
            self.aliases.remove(&start);
        }
        Ok(())
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { free_bytes: SPACE_BYTES - self.handed_out_bytes, total_bytes: SPACE_BYTES }
    }
}

/// The simulated device: address space with a capacity.
///
/// ```
/// # use plimsoll_alloc::{Driver, DriverError, SimDriver};
/// let mut device = SimDriver::with_capacity(3 << 20);
/// let first = device.segment_alloc(1 << 20)?; // takes 2 MiB
/// assert_eq!(device.segment_alloc(1 << 20), Err(DriverError::OutOfMemory));
/// device.segment_free(first)?;
/// assert!(device.segment_alloc(1 << 20).is_ok());
/// # Ok::<(), DriverError>(())
/// ```
pub type SimDriver = Limit<Sim>;

impl SimDriver {
    /// Makes a simulated device of `bytes`.
    pub fn with_capacity(bytes: u64) -> Self {
        Self::new(Sim::default(), bytes)
    }
}
