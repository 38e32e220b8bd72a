//! A segment of a recording, described for an import ([`Adoption`]), and the error if it is inconsistent ([`AdoptError`]).
//!
//! The import itself: `allocator/adopt.rs`.

use std::fmt;

use crate::block::BlockId;
use crate::event::DeviceRange;
use crate::request::Addr;
use crate::size::{MIN_BLOCK_BYTES, PoolKind, SMALL_SEGMENT_BYTES};

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
    /// The blocks in address order, without gaps.
    pub pieces: &'a [Piece],
}

/// One piece of an [`Adoption`].
///
/// ```
/// # use plimsoll_alloc::{Piece, PieceState};
/// let tensor = Piece { bytes: 1024, state: PieceState::Held { requested_bytes: 1000 } };
/// let rest = Piece { bytes: (2 << 20) - tensor.bytes, state: PieceState::Cached };
/// assert_eq!(tensor.bytes + rest.bytes, 2 << 20); // the pieces of a segment fill it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its size, bytes.
    pub bytes: u64,
    /// Its state.
    pub state: PieceState,
}

/// The state of a [`Piece`].
///
/// ```
/// # use plimsoll_alloc::PieceState;
/// assert_ne!(PieceState::Cached, PieceState::Unmapped); // only pages of expandable segments are unmapped
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceState {
    /// Allocated.
    Held {
        /// The requested size, bytes.
        requested_bytes: u64,
    },
    /// Cached. No neighbour is cached.
    Cached,
    /// Unmapped pages of an expandable segment. No neighbour is unmapped.
    Unmapped,
}

/// Why a segment cannot be imported, and its address.
///
/// ```
/// # use plimsoll_alloc::{Addr, Adoption, Allocator, Config, DeviceRange, PoolId, PoolKind, SimDriver, StreamId};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(0), ());
/// let (stream, pool_id) = (StreamId(0), PoolId::DEFAULT);
/// let memory = DeviceRange { addr: Addr(0x20_0000), bytes: 20 << 20, stream, pool: PoolKind::Large, pool_id };
/// let Err(why) = allocator.adopt(&Adoption { memory, page_bytes: None, pieces: &[] }) else {
///     panic!("no piece fills it")
/// };
/// assert_eq!(why.to_string(), "the pieces do not add up to the segment's size: at 0x200000");
/// ```
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

/// A freed block that is still pending: [`Allocator::free_later`](crate::Allocator::free_later).
///
/// ```
/// # use plimsoll_alloc::{Allocator, Config, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(20 << 20))?;
/// let waiting = allocator.free_later(x).expect("it has a block");
/// assert_eq!(allocator.cache_info().total_bytes, 0);
/// allocator.complete(waiting);
/// assert_eq!(allocator.cache_info().total_bytes, 20 << 20);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the block is not used again until it is given to `complete`"]
pub struct Waiting(pub(crate) BlockId);

/// Returns `why` as an error unless the rule holds.
pub(crate) fn must(holds: bool, why: &'static str, addr: Addr) -> Result<(), AdoptError> {
    if holds { Ok(()) } else { Err(AdoptError { why, addr }) }
}

impl Adoption<'_> {
    /// The number of mapped bytes.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        let mapped = self.pieces.iter().filter(|piece| piece.state != PieceState::Unmapped);
        mapped.map(|piece| piece.bytes).sum()
    }

    /// Checks that the layout is possible: sizes, alignment, neighbours.
    pub(crate) fn check(&self) -> Result<(), AdoptError> {
        let DeviceRange { addr, bytes, pool, .. } = self.memory;
        let starts = addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES);
        must(starts && addr.0.checked_add(bytes).is_some(), "no segment can start at this address", addr)?;
        let sum = self.pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes));
        must(sum == Some(bytes), "the pieces do not add up to the segment's size", addr)?;
        let sized = pool == PoolKind::Large || bytes == SMALL_SEGMENT_BYTES || self.page_bytes.is_some();
        must(sized, "a small segment must have 2 MiB", addr)?;
        let page_bytes = self.page_bytes.unwrap_or(MIN_BLOCK_BYTES);
        let pages = page_bytes > 0 && page_bytes.is_multiple_of(MIN_BLOCK_BYTES);
        must(pages && bytes.is_multiple_of(page_bytes), "the segment is not a whole number of pages", addr)?;
        let (mut from, mut before) = (0, None);
        for piece in self.pieces {
            let at = Addr(addr.0 + from);
            let whole = piece.bytes > 0 && piece.bytes.is_multiple_of(MIN_BLOCK_BYTES);
            must(whole, "block sizes must be multiples of 512 bytes", at)?;
            match piece.state {
                PieceState::Held { requested_bytes } => {
                    must(requested_bytes <= piece.bytes, "a block must not be smaller than its request", at)?;
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
