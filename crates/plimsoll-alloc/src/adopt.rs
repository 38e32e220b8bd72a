//! State imported from a recording: segments, pages and blocks of another allocator, added without a call to
//! the driver and without an event.
//!
//! A replay starts in the middle of a recording, and the recording lists what the device allocated and freed. So
//! segments are imported with their blocks ([`Allocator::adopt`]), memory is added and removed by segment or page
//! ([`adopt_pages`](Allocator::adopt_pages), [`disown`](Allocator::disown)), and a freed block
//! stays pending until the recording completes its free ([`free_later`](Allocator::free_later)). Requests are
//! served as usual; the request path does not run any of this code.

use std::fmt;

use crate::allocator::Allocator;
use crate::block::{Block, BlockId, SlotState};
use crate::driver::Driver;
use crate::event::{DeviceRange, Event, Observer};
use crate::expandable::Range;
use crate::pieces::NewSegment;
use crate::pool::PoolKind;
use crate::request::{Addr, Allocation};
use crate::size::{MIN_BLOCK_BYTES, ONE_EXBIBYTE, SMALL_SEGMENT_BYTES};

/// A segment of another allocator, with its blocks.
///
/// ```
/// use plimsoll_alloc::{Addr, Adoption, Allocator, Config, DeviceRange, Piece, PieceState, PoolId, PoolKind};
/// use plimsoll_alloc::{Request, SimDriver, StreamId};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(0), ());
/// let (stream, pool_id) = (StreamId(0), PoolId::DEFAULT);
/// let memory = DeviceRange { addr: Addr(0x20_0000), bytes: 20 << 20, stream, pool: PoolKind::Large, pool_id };
/// let pieces = [
///     Piece { bytes: 3 << 20, state: PieceState::Held { requested_bytes: 3_000_000 } },
///     Piece { bytes: 17 << 20, state: PieceState::Cached },
/// ];
/// let held = allocator.adopt(&Adoption { memory, page_bytes: None, pieces: &pieces })?;
/// let x = allocator.malloc(Request::of(2 << 20))?;
/// assert_eq!((x.addr(), allocator.reserved()), (Addr(0x50_0000), 20 << 20));
/// # assert!(allocator.check().is_ok());
/// # for allocation in held { allocator.free(allocation); }
/// # allocator.free(x);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adoption<'a> {
    /// The address range, stream and pool. It must not overlap a segment of this allocator, and a
    /// private pool must exist.
    pub memory: DeviceRange,
    /// The page size in bytes, if the segment is expandable.
    pub page_bytes: Option<u64>,
    /// The blocks by address, without gaps.
    pub pieces: &'a [Piece],
}

/// One piece of an [`Adoption`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its size, bytes.
    pub bytes: u64,
    /// What it is.
    pub state: PieceState,
}

/// The state of a [`Piece`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceState {
    /// Allocated.
    Held {
        /// The requested value, bytes.
        requested_bytes: u64,
    },
    /// Cached. No neighbour is cached.
    Cached,
    /// Unmapped pages of an expandable segment. No neighbour is unmapped.
    Unmapped,
}

/// Why a segment cannot be imported, and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdoptError {
    /// The reason.
    pub why: &'static str,
    /// The address.
    pub addr: Addr,
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: at {}", self.why, self.addr)
    }
}

impl std::error::Error for AdoptError {}

/// A freed block that is still pending: [`Allocator::free_later`].
#[derive(Debug)]
#[must_use = "the block is not used again until it is given to `complete`"]
pub struct Waiting(BlockId);

/// Returns the rule as an error unless it holds.
fn must(holds: bool, why: &'static str, addr: Addr) -> Result<(), AdoptError> {
    if holds { Ok(()) } else { Err(AdoptError { why, addr }) }
}

impl Adoption<'_> {
    fn check(&self) -> Result<(), AdoptError> {
        let DeviceRange { addr, bytes, pool, .. } = self.memory;
        let starts = addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES);
        must(starts && addr.0.checked_add(bytes).is_some(), "no segment can start at this address", addr)?;
        let sum = self.pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes));
        must(sum == Some(bytes), "the pieces do not add up to the segment's size", addr)?;
        let sized = pool == PoolKind::Large || bytes == SMALL_SEGMENT_BYTES || self.page_bytes.is_some();
        must(sized, "a small segment is 2 MiB", addr)?;
        let page_bytes = self.page_bytes.unwrap_or(MIN_BLOCK_BYTES);
        let pages = page_bytes > 0 && page_bytes.is_multiple_of(MIN_BLOCK_BYTES);
        must(pages && bytes.is_multiple_of(page_bytes), "the segment is not a whole number of pages", addr)?;
        let (mut from, mut before) = (0, None);
        for piece in self.pieces {
            let at = Addr(addr.0 + from);
            let whole = piece.bytes > 0 && piece.bytes.is_multiple_of(MIN_BLOCK_BYTES);
            must(whole, "blocks are multiples of 512 bytes", at)?;
            match piece.state {
                PieceState::Held { requested_bytes } => {
                    must(requested_bytes <= piece.bytes, "a block is smaller than its request", at)?;
                }
                PieceState::Cached => {}
                PieceState::Unmapped => {
                    let whole = from.is_multiple_of(page_bytes) && piece.bytes.is_multiple_of(page_bytes);
                    must(
                        self.page_bytes.is_some() && whole,
                        "an unmapped piece is not a whole number of pages",
                        at,
                    )?;
                }
            }
            let is_held = matches!(piece.state, PieceState::Held { .. });
            must(
                is_held || before != Some(piece.state),
                "two neighbouring free pieces must be one block",
                at,
            )?;
            (from, before) = (from + piece.bytes, Some(piece.state));
        }
        Ok(())
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Imports a segment with its blocks. It counts as the newest segment. Returns the allocations in it,
    /// by address.
    ///
    /// # Errors
    /// If the layout is impossible, or the pool does not exist. Nothing is imported then.
    pub fn adopt(&mut self, adoption: &Adoption<'_>) -> Result<Vec<Allocation>, AdoptError> {
        adoption.check()?;
        let DeviceRange { addr, bytes, stream, pool: kind, pool_id } = adoption.memory;
        let is_possible = bytes < ONE_EXBIBYTE && self.reserved_bytes < ONE_EXBIBYTE;
        must(is_possible, "no device has so many bytes", addr)?;
        let no_pool = |_| AdoptError { why: "there is no such pool", addr };
        let pool = self.half_of(pool_id, kind).map_err(no_pool)?;
        let range =
            adoption.page_bytes.map(|page_bytes| self.ranges.insert(Range { addr, bytes, page_bytes }));
        let first = self.pools.add_segment(NewSegment { addr, bytes, stream, pool, range });
        let template = self.pools.blocks[first];
        let (mut held, mut at, mut last) = (Vec::new(), addr, None);
        for piece in adoption.pieces {
            let (state, requested_bytes) = match piece.state {
                PieceState::Held { requested_bytes } => (SlotState::Active, requested_bytes),
                PieceState::Cached => (SlotState::Cached, 0),
                PieceState::Unmapped => (SlotState::Unmapped, 0),
            };
            let block = Block { addr: at, bytes: piece.bytes, state, requested_bytes, ..template };
            let id = match last {
                None => {
                    self.pools.blocks[first] = block;
                    first
                }
                Some(last) => self.pools.insert_between(Some(last), None, block),
            };
            if state == SlotState::Active {
                held.push(Allocation::of_block(id, block.generation, &self.live(id)));
            } else {
                self.pools.file(id);
            }
            self.reserved_bytes += if state == SlotState::Unmapped { 0 } else { piece.bytes };
            (at, last) = (at.plus(piece.bytes), Some(id));
        }
        Ok(held)
    }

    /// Imports pages of an expandable segment that the device has mapped. They become cached.
    ///
    /// # Errors
    /// If they are not whole unmapped pages of one segment.
    pub fn adopt_pages(&mut self, memory: &DeviceRange) -> Result<(), AdoptError> {
        let &DeviceRange { addr, bytes, stream, pool: kind, pool_id } = memory;
        let no_pages = AdoptError { why: "no unmapped pages of a segment start at this address", addr };
        let pool = self.half_of(pool_id, kind).map_err(|_| no_pages)?;
        let unmapped = &self.pools.pool(pool).unmapped;
        let below = unmapped.range((stream, Addr(0))..=(stream, addr)).next_back();
        let id = below.map(|(_, &id)| id).ok_or(no_pages)?;
        let block = self.pools.blocks[id];
        let end = addr.0.checked_add(bytes).filter(|&end| end <= block.addr.0 + block.bytes);
        let range = block.range.map(|range| self.ranges.get(range));
        let is_whole = range.is_some_and(|range| range.is_pages(addr, bytes));
        must(end.is_some() && is_whole, no_pages.why, addr)?;
        self.leave_in(id, addr, bytes, SlotState::Cached);
        self.reserved_bytes += bytes;
        Ok(())
    }

    /// Removes cached memory that the device has freed: a whole segment, or pages of an expandable one, whose
    /// address space stays reserved.
    ///
    /// # Errors
    /// If this memory is not cached.
    pub fn disown(&mut self, memory: &DeviceRange) -> Result<(), AdoptError> {
        let &DeviceRange { addr, bytes, stream, pool: kind, pool_id } = memory;
        let no_memory = AdoptError { why: "this memory is not cached", addr };
        let pool = self.half_of(pool_id, kind).map_err(|_| no_memory)?;
        let end = addr.0.checked_add(bytes).ok_or(no_memory)?;
        let (blocks, cached) = (&self.pools.blocks, &self.pools.pool(pool).cached);
        let mut large_enough =
            std::iter::successors(cached.first_from(blocks, stream, bytes), |&id| cached.after(blocks, id));
        let around =
            |block: &Block| block.addr <= addr && end <= block.addr.0 + block.bytes && block.stream == stream;
        let id = large_enough.find(|&id| around(&blocks[id])).ok_or(no_memory)?;
        let block = blocks[id];
        match block.range.map(|range| self.ranges.get(range)) {
            Some(range) => {
                must(range.is_pages(addr, bytes), no_memory.why, addr)?;
                self.leave_in(id, addr, bytes, SlotState::Unmapped);
            }
            None => {
                must(!block.is_piece() && block.bytes == bytes, no_memory.why, addr)?;
                self.pools.remove_segment(id);
            }
        }
        self.reserved_bytes -= bytes;
        Ok(())
    }

    /// Frees a block that stays pending until the caller says that its streams are done:
    /// [`complete`](Self::complete).
    ///
    /// # Panics
    /// As [`free`](Self::free).
    #[expect(clippy::needless_pass_by_value, reason = "as for `free`")]
    pub fn free_later(&mut self, allocation: Allocation) -> Option<Waiting> {
        let id = self.held(&allocation)?;
        let (block, oversize) = (self.live(id), crate::size::is_oversize(&self.config, allocation.bytes()));
        self.observer.on(&Event::Free { block, oversize });
        self.pools.blocks[id].state = SlotState::Pending;
        self.streams.elsewhere.insert(id);
        Some(Waiting(id))
    }

    /// Completes the free of a pending block: it becomes cached.
    ///
    /// # Panics
    /// If the block belongs to another allocator.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes it end only once")]
    pub fn complete(&mut self, waiting: Waiting) {
        assert!(self.streams.elsewhere.remove(&waiting.0), "the block belongs to another allocator");
        self.complete_free(waiting.0);
    }
}
