//! State taken over from a recording: segments, pages and blocks that another allocator's driver and callers
//! are known to have made, without asking ours and without an announcement.
//!
//! Whoever replays a recording begins in the middle of it, and is told what the device gave and took back. So
//! memory comes in cut as it is ([`Allocator::adopt`]), comes and goes whole or by the page
//! ([`adopt_pages`](Allocator::adopt_pages), [`disown`](Allocator::disown)), and a block that was given back
//! waits until the recording says that it is free ([`free_later`](Allocator::free_later)). Requests are served
//! from it as always, and nothing here is on their way.

use std::fmt;

use crate::allocator::Allocator;
use crate::block::{Block, BlockId, State};
use crate::driver::Driver;
use crate::event::{DeviceRange, Event, Observer};
use crate::expandable::Range;
use crate::pieces::NewSegment;
use crate::pool::PoolKind;
use crate::request::{Addr, Allocation};
use crate::size::{MIN_BLOCK_BYTES, ONE_EXBIBYTE, SMALL_SEGMENT_BYTES};

/// A segment of another allocator's, and how it is cut.
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
    /// Where it lies, and whom it serves. It must lie apart from everything that the allocator has, and a
    /// private pool must exist.
    pub memory: DeviceRange,
    /// The size of its pages, if it is an expandable segment, bytes.
    pub page_bytes: Option<u64>,
    /// What it is cut into, by address, without holes.
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

/// What a [`Piece`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceState {
    /// Somebody holds it.
    Held {
        /// What was asked for, bytes.
        requested_bytes: u64,
    },
    /// It is in the cache. Its neighbours are not.
    Cached,
    /// Whole pages of an expandable segment without memory. Its neighbours are not such pages.
    Unmapped,
}

/// What cannot be taken over, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdoptError {
    /// What is wrong.
    pub why: &'static str,
    /// Where.
    pub addr: Addr,
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: at {}", self.why, self.addr)
    }
}

impl std::error::Error for AdoptError {}

/// A block that was given back and waits: [`Allocator::free_later`].
#[derive(Debug)]
#[must_use = "the block is not used again until it is given to `complete`"]
pub struct Waiting(BlockId);

/// The rule, unless it holds.
fn must(holds: bool, why: &'static str, addr: Addr) -> Result<(), AdoptError> {
    if holds { Ok(()) } else { Err(AdoptError { why, addr }) }
}

impl Adoption<'_> {
    fn check(&self) -> Result<(), AdoptError> {
        let DeviceRange { addr, bytes, pool, .. } = self.memory;
        let starts = addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES);
        must(starts && addr.0.checked_add(bytes).is_some(), "no segment can lie there", addr)?;
        let sum = self.pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes));
        must(sum == Some(bytes), "the pieces are not the whole segment", addr)?;
        let sized = pool == PoolKind::Large || bytes == SMALL_SEGMENT_BYTES || self.page_bytes.is_some();
        must(sized, "a small segment is 2 MiB", addr)?;
        let page_bytes = self.page_bytes.unwrap_or(MIN_BLOCK_BYTES);
        let pages = page_bytes > 0 && page_bytes.is_multiple_of(MIN_BLOCK_BYTES);
        must(pages && bytes.is_multiple_of(page_bytes), "the segment is not whole pages", addr)?;
        let (mut from, mut before) = (0, None);
        for piece in self.pieces {
            let at = Addr(addr.0 + from);
            let whole = piece.bytes > 0 && piece.bytes.is_multiple_of(MIN_BLOCK_BYTES);
            must(whole, "blocks are multiples of 512 bytes", at)?;
            match piece.state {
                PieceState::Held { requested_bytes } => {
                    must(requested_bytes <= piece.bytes, "a block is smaller than what was asked for", at)?;
                }
                PieceState::Cached => {}
                PieceState::Unmapped => {
                    let whole = from.is_multiple_of(page_bytes) && piece.bytes.is_multiple_of(page_bytes);
                    must(self.page_bytes.is_some() && whole, "what is unmapped is not whole pages", at)?;
                }
            }
            let is_held = matches!(piece.state, PieceState::Held { .. });
            must(is_held || before != Some(piece.state), "two neighbours are one block", at)?;
            (from, before) = (from + piece.bytes, Some(piece.state));
        }
        Ok(())
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Takes a segment over as it is. It counts as made now: younger than all that are there. Returns what is
    /// held of it, by address.
    ///
    /// # Errors
    /// If no allocator could have cut a segment so, or the pool does not exist. Nothing is taken over then.
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
                PieceState::Held { requested_bytes } => (State::Active, requested_bytes),
                PieceState::Cached => (State::Cached, 0),
                PieceState::Unmapped => (State::Unmapped, 0),
            };
            let block = Block { addr: at, bytes: piece.bytes, state, requested_bytes, ..template };
            let id = match last {
                None => {
                    self.pools.blocks[first] = block;
                    first
                }
                Some(last) => self.pools.insert_between(Some(last), None, block),
            };
            if state == State::Active {
                held.push(Allocation::of_block(id, block.generation, &self.live(id)));
            } else {
                self.pools.file(id);
            }
            self.reserved_bytes += if state == State::Unmapped { 0 } else { piece.bytes };
            (at, last) = (at.plus(piece.bytes), Some(id));
        }
        Ok(held)
    }

    /// Takes pages of an expandable segment over that the device has put memory behind: they are cached.
    ///
    /// # Errors
    /// If they are not whole unmapped pages of one segment.
    pub fn adopt_pages(&mut self, memory: &DeviceRange) -> Result<(), AdoptError> {
        let &DeviceRange { addr, bytes, stream, pool: kind, pool_id } = memory;
        let no_pages = AdoptError { why: "there are no such pages to map", addr };
        let pool = self.half_of(pool_id, kind).map_err(|_| no_pages)?;
        let unmapped = &self.pools.pool(pool).unmapped;
        let below = unmapped.range((stream, Addr(0))..=(stream, addr)).next_back();
        let id = below.map(|(_, &id)| id).ok_or(no_pages)?;
        let block = self.pools.blocks[id];
        let end = addr.0.checked_add(bytes).filter(|&end| end <= block.addr.0 + block.bytes);
        let range = block.range.map(|range| self.ranges.get(range));
        let is_whole = range.is_some_and(|range| range.is_pages(addr, bytes));
        must(end.is_some() && is_whole, no_pages.why, addr)?;
        self.leave_in(id, addr, bytes, State::Cached);
        self.reserved_bytes += bytes;
        Ok(())
    }

    /// Forgets cached memory that the device took back: a whole segment, or pages of an expandable one, of
    /// which the address space stays.
    ///
    /// # Errors
    /// If it is not cached so.
    pub fn disown(&mut self, memory: &DeviceRange) -> Result<(), AdoptError> {
        let &DeviceRange { addr, bytes, stream, pool: kind, pool_id } = memory;
        let no_memory = AdoptError { why: "no such memory is cached", addr };
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
                self.leave_in(id, addr, bytes, State::Unmapped);
            }
            None => {
                must(!block.is_piece() && block.bytes == bytes, no_memory.why, addr)?;
                self.pools.remove_segment(id);
            }
        }
        self.reserved_bytes -= bytes;
        Ok(())
    }

    /// Takes a block back that waits for streams which are somebody else's matter, until
    /// [`complete`](Self::complete).
    ///
    /// # Panics
    /// As [`free`](Self::free).
    #[expect(clippy::needless_pass_by_value, reason = "as for `free`")]
    pub fn free_later(&mut self, allocation: Allocation) -> Option<Waiting> {
        let id = self.held(&allocation)?;
        let (block, oversize) = (self.live(id), crate::size::is_oversize(&self.config, allocation.bytes()));
        self.observer.on(&Event::Free { block, oversize });
        self.pools.blocks[id].state = State::Pending;
        self.streams.elsewhere.insert(id);
        Some(Waiting(id))
    }

    /// Ends a block's waiting: it goes into the cache.
    ///
    /// # Panics
    /// If it is another allocator's.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes it end only once")]
    pub fn complete(&mut self, waiting: Waiting) {
        assert!(self.streams.elsewhere.remove(&waiting.0), "the block is another allocator's");
        self.complete_free(waiting.0);
    }
}
