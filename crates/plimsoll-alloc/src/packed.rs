//! The packed policy: [`PackedAllocator`], a caching allocator that reserves little more than is allocated.
//!
//! It accepts the same requests and the same [`Driver`] as [`Allocator`](crate::Allocator), and sends the same events.
//! Its addresses are its own, not PyTorch's. Small blocks share 2 MiB pages. Larger blocks are placed by best fit, as
//! in an expandable segment. If no gap is long enough, a block is stitched: free pages are mapped a second time, one
//! after another. So new memory is allocated only if there are too few free pages, never because they are not
//! contiguous.
//!
//! The files, from the bottom up; a file uses only those above it:
//!
//! | file | contents |
//! |---|---|
//! | `gaps.rs` | the free bytes of an arena |
//! | `stitch.rs` | which free bytes a stitched block takes |
//! | `stitched.rs` | the stitched ranges, which stay mapped for the next block of their size |
//! | `arena.rs` | the memory of one stream |
//! | `pages.rs` | all arenas, and the device calls |
//! | `block.rs` | a block in use |
//! | `waiting.rs` | freed blocks that other streams still use |
//!
//! Note [Two addresses of a page]: CUDA allows a page to be mapped several times. A kernel sees what earlier kernels
//! wrote through another mapping. Two blocks never share a byte, and begin at multiples of 512 bytes, so no cache line
//! is used through two mappings at the same time. A range is unmapped only after the work on its stream is done.

mod arena;
mod block;
mod gaps;
mod pages;
mod stitch;
mod stitched;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use crate::category::CategoryBytes;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, LiveBlock, Observer, SplitChange};
use crate::memory_limit::fraction_of;
use crate::out_of_memory::OutOfMemory;
use crate::request::{Addr, PoolId, Request, StreamId};
use crate::size::{MIN_BLOCK_BYTES, ONE_EXBIBYTE, kind_of};
use crate::violation::{Violation, equal};
use arena::{ArenaKey, Found};
use block::{Block, Place};
use gaps::PAGE_BYTES;
pub use pages::PackedCalls;
use pages::Pages;
use stitched::RangeNumber;
use waiting::WaitingBlocks;

/// A caching allocator for one device under the packed policy, as a state machine.
///
/// ```
/// use plimsoll_alloc::{PackedAllocator, Request, SimDriver};
///
/// let mut allocator = PackedAllocator::new(SimDriver::with_capacity(64 << 20), ());
/// let blocks: Vec<_> = (0..5).map(|_| allocator.malloc(Request::of(4 << 20))).collect::<Result<_, _>>()?;
/// assert_eq!(allocator.reserved(), 20 << 20);
/// for (nth, block) in blocks.into_iter().enumerate() {
///     if nth % 2 == 0 { allocator.free(block) } else { std::mem::forget(block) }
/// }
/// // 12 MiB are free in three gaps: the block is stitched from them.
/// let x = allocator.malloc(Request::of(12 << 20))?;
/// assert_eq!((allocator.reserved(), allocator.calls().stitches), (20 << 20, 1));
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug)]
pub struct PackedAllocator<D, O> {
    pages: Pages<D>,
    observer: O,
    live: BTreeMap<Addr, Block>,
    waiting: WaitingBlocks,
    /// The bytes in blocks that callers complete later.
    kept_bytes: u64,
}

/// Ownership of one block of a [`PackedAllocator`]; `free` ends it. Like [`Allocation`](crate::Allocation), it cannot
/// be copied, and dropping it leaks the block.
///
/// ```
/// # use plimsoll_alloc::{PackedAllocator, Request, SimDriver};
/// let mut allocator = PackedAllocator::new(SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(1000))?;
/// assert_eq!((x.requested_bytes(), x.bytes()), (1000, 1024));
/// allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub struct PackedAllocation {
    addr: Addr,
    bytes: u64,
    requested_bytes: u64,
}

impl PackedAllocation {
    /// The block's address: a multiple of 512, or `Addr(0)` for a request of 0 bytes.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The requested size, rounded up to 512 bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The requested size.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }
}

/// A freed block that the caller keeps until other streams are done with it: [`PackedAllocator::free_later`].
#[derive(Debug)]
#[must_use = "a block that is dropped instead of completed is leaked"]
pub struct PackedWaiting(Block);

/// What can still be done for a request if there is no memory.
#[derive(Clone, Copy)]
enum Relief {
    Wait,
    Release,
    Nothing,
}

impl<D: Driver, O: Observer> PackedAllocator<D, O> {
    /// Creates an empty allocator. The driver must support virtual memory, including [`Driver::alias`].
    pub fn new(driver: D, observer: O) -> Self {
        let (live, waiting) = Default::default();
        Self { pages: Pages::new(driver), observer, live, waiting, kept_bytes: 0 }
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device is out of memory even after freed blocks were waited for and free pages of
    /// other streams were returned; [`Error::TooLarge`]; [`Error::Driver`] if the device fails otherwise.
    pub fn malloc(&mut self, request: Request) -> Result<PackedAllocation, Error> {
        if request.bytes == 0 {
            return Ok(PackedAllocation { addr: Addr(0), bytes: 0, requested_bytes: 0 });
        }
        if request.bytes >= ONE_EXBIBYTE {
            return Err(Error::TooLarge { requested_bytes: request.bytes });
        }
        for block in self.waiting.done(&mut self.pages.driver) {
            self.complete_free(&block, false);
        }
        let bytes = request.bytes.next_multiple_of(MIN_BLOCK_BYTES);
        let key = ArenaKey { pool: request.pool, stream: request.stream, kind: kind_of(bytes) };
        let (addr, place) = self.place(key, bytes, &request)?;
        let live = LiveBlock {
            addr,
            bytes,
            requested_bytes: request.bytes,
            stream: request.stream,
            pool: key.kind,
            pool_id: request.pool,
            tag: request.tag(),
            stack: request.stack,
        };
        self.observer.on(&Event::Alloc {
            block: live,
            inactive_split: SplitChange::default(),
            oversize: false,
        });
        self.live.insert(addr, Block { live, key, place, uses: BTreeSet::new() });
        Ok(PackedAllocation { addr, bytes, requested_bytes: request.bytes })
    }

    /// Finds or makes room for a block, and allocates it.
    fn place(&mut self, key: ArenaKey, bytes: u64, request: &Request) -> Result<(Addr, Place), Error> {
        match self.pages.open(key) {
            Err(DriverError::OutOfMemory) => return Err(self.out_of_memory(key, bytes, 0, request)),
            opened => opened?,
        }
        let mut relief = Relief::Wait;
        loop {
            let missing = match self.pages.arena(key).find(bytes, key.kind) {
                Found::Home(extent) => {
                    let arena = self.pages.arena(key);
                    arena.gaps.take(extent);
                    return Ok((arena.address(extent.start), Place::Home(extent)));
                }
                Found::Stitched(number) => return Ok(self.take_range(key, number)),
                Found::Pieces(pieces) => match self.pages.stitch(key, pieces) {
                    Ok(number) => {
                        let taken = self.take_range(key, number);
                        // If something cannot be unmapped now, this is tried again after the next stitching.
                        let _ = self.pages.trim(key);
                        return Ok(taken);
                    }
                    Err(DriverError::OutOfMemory) => return Err(self.out_of_memory(key, bytes, 0, request)),
                    Err(why) => return Err(why.into()),
                },
                Found::Missing(pages) => pages,
            };
            if self.pages.grow(key, missing, &mut self.observer)? {
                continue;
            }
            relief = match relief {
                Relief::Wait => {
                    self.wait()?;
                    Relief::Release
                }
                Relief::Release => {
                    self.observer.on(&Event::SyncAllStreams);
                    self.observer.on(&Event::Retry { segment_bytes: missing.saturating_mul(PAGE_BYTES) });
                    self.release_others(key, missing)?;
                    Relief::Nothing
                }
                Relief::Nothing => return Err(self.out_of_memory(key, bytes, missing, request)),
            };
        }
    }

    fn take_range(&mut self, key: ArenaKey, number: RangeNumber) -> (Addr, Place) {
        let arena = self.pages.arena(key);
        let range = arena.stitched.get(number);
        range.pieces.iter().for_each(|&piece| arena.gaps.take(piece));
        let addr = range.block_addr();
        arena.stitched.set_in_use(number, true);
        (addr, Place::Stitched(number))
    }

    /// Frees a block. If other streams use it, it becomes free when they are done.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes a double free impossible")]
    pub fn free(&mut self, allocation: PackedAllocation) {
        let Some(block) = self.request_free(&allocation) else { return };
        if block.uses.is_empty() {
            self.complete_free(&block, true);
        } else {
            self.waiting.add(block, &mut self.pages.driver);
        }
    }

    /// Frees a block that the caller completes later, with [`complete`](Self::complete). `None` for a request of 0
    /// bytes.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes a double free impossible")]
    pub fn free_later(&mut self, allocation: PackedAllocation) -> Option<PackedWaiting> {
        let block = self.request_free(&allocation)?;
        self.kept_bytes += block.live.bytes;
        Some(PackedWaiting(block))
    }

    fn request_free(&mut self, allocation: &PackedAllocation) -> Option<Block> {
        if allocation.bytes == 0 {
            return None;
        }
        let block = self.live.remove(&allocation.addr);
        let block = block.unwrap_or_else(|| panic!("the block at {} is of this allocator", allocation.addr));
        self.observer.on(&Event::Free { block: block.live, oversize: false });
        Some(block)
    }

    /// Completes the free of a block.
    pub fn complete(&mut self, waiting: PackedWaiting) {
        let PackedWaiting(block) = waiting;
        self.kept_bytes -= block.live.bytes;
        self.complete_free(&block, false);
    }

    fn complete_free(&mut self, block: &Block, at_once: bool) {
        let &Block { live, key, place, .. } = block;
        let arena = self.pages.arena(key);
        match place {
            Place::Home(extent) => arena.gaps.put(extent),
            Place::Stitched(number) => {
                arena.stitched.get(number).pieces.iter().for_each(|&piece| arena.gaps.put(piece));
                arena.stitched.set_in_use(number, false);
            }
        }
        let inactive_split = SplitChange::default();
        self.observer.on(&Event::FreeCompleted { block: live, inactive_split, at_once });
    }

    /// Records that work on `stream` also uses a block: after it is freed, it is not reused until that work is done.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn record_stream(&mut self, allocation: &PackedAllocation, stream: StreamId) {
        if allocation.bytes > 0 {
            let block = self.live.get_mut(&allocation.addr);
            let block =
                block.unwrap_or_else(|| panic!("the block at {} is of this allocator", allocation.addr));
            if stream != block.key.stream {
                block.uses.insert(stream);
            }
        }
    }

    /// Waits until other streams are done with all freed blocks.
    fn wait(&mut self) -> Result<(), Error> {
        for block in self.waiting.wait(&mut self.pages.driver)? {
            self.complete_free(&block, false);
        }
        Ok(())
    }

    /// Returns free pages of the other arenas to the device, until `pages` are returned.
    fn release_others(&mut self, key: ArenaKey, pages: u64) -> Result<(), Error> {
        let mut missing = pages;
        for other in self.keys().into_iter().filter(|&other| other != key) {
            missing -= self.pages.shrink(other, missing, &mut self.observer)?;
        }
        Ok(())
    }

    /// Returns all free pages to the device, after waiting for freed blocks. Returns their bytes.
    ///
    /// # Errors
    /// If the device fails; pages that were returned before stay returned.
    pub fn empty_cache(&mut self) -> Result<u64, Error> {
        self.wait()?;
        let before_bytes = self.pages.reserved_bytes;
        for key in self.keys() {
            self.pages.shrink(key, u64::MAX, &mut self.observer)?;
            self.pages.close(key)?;
        }
        Ok(before_bytes - self.pages.reserved_bytes)
    }

    fn keys(&self) -> Vec<ArenaKey> {
        self.pages.arenas.keys().copied().collect()
    }

    /// Creates the error, and sends the event.
    fn out_of_memory(&mut self, key: ArenaKey, bytes: u64, missing_pages: u64, request: &Request) -> Error {
        let mut by_category = CategoryBytes::default();
        for block in self.live.values() {
            by_category[block.live.tag.category] += block.live.bytes;
        }
        let private = self.pages.arenas.iter().filter(|(key, _)| key.pool != PoolId::DEFAULT);
        let device = self.pages.driver.memory();
        let arena = self.pages.arenas.get(&key);
        let why = OutOfMemory {
            requested_bytes: request.bytes,
            rounded_bytes: bytes,
            segment_bytes: missing_pages.saturating_mul(PAGE_BYTES),
            stream: request.stream,
            pool: request.pool,
            category: request.category,
            label: request.label,
            allocated_bytes: by_category.total(),
            pending_bytes: self.waiting.bytes() + self.kept_bytes,
            private_cached_bytes: private.map(|(_, arena)| arena.gaps.free_bytes()).sum(),
            reserved_bytes: self.pages.reserved_bytes,
            limit_bytes: self.pages.limit_bytes,
            device_free_bytes: device.free_bytes,
            device_total_bytes: device.total_bytes,
            largest_free_block_bytes: arena.map_or(0, |arena| arena.gaps.largest_bytes()),
            by_category,
            expandable_segments: true,
            exceeded_reserve_bytes: None,
            segment_allocator_refused: false,
        };
        self.observer.on(&Event::OutOfMemory {
            requested_bytes: why.requested_bytes,
            rounded_bytes: why.rounded_bytes,
            segment_bytes: why.segment_bytes,
            stream: why.stream,
            pool_id: why.pool,
            tag: request.tag(),
            stack: request.stack,
            device_free_bytes: why.device_free_bytes,
        });
        Error::OutOfMemory(Box::new(why))
    }

    /// Limits the reserved bytes to a fraction of the device's memory; 1 removes the limit.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] outside 0 to 1; the limit does not change.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        let total_bytes = self.pages.driver.memory().total_bytes;
        self.pages.limit_bytes = (fraction < 1.0).then(|| fraction_of(fraction, total_bytes));
        Ok(())
    }

    /// Reserved memory in bytes: all pages, each counted once no matter how often it is mapped.
    pub fn reserved(&self) -> u64 {
        self.pages.reserved_bytes
    }

    /// The device calls so far.
    pub fn calls(&self) -> PackedCalls {
        self.pages.calls
    }

    /// Checks that reserved memory is the sum of what blocks use and what is free.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(&self) -> Result<(), Violation> {
        let arenas = self.pages.arenas.values();
        let (mut pages, mut free_bytes) = (0, 0);
        for arena in arenas {
            pages += arena.pages();
            free_bytes += arena.gaps.free_bytes();
        }
        let live_bytes: u64 = self.live.values().map(|block| block.live.bytes).sum();
        let used_bytes = live_bytes + self.waiting.bytes() + self.kept_bytes;
        equal("reserved is the sum of the pages", None, pages * PAGE_BYTES, self.pages.reserved_bytes)?;
        equal("reserved is used or free", None, self.pages.reserved_bytes, used_bytes + free_bytes)
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer, for resetting it.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.pages.driver
    }

    /// The driver, for changing it.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.pages.driver
    }
}
