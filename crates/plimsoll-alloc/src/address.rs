//! Memory by address: allocation at a given address, and the segment that contains a block.
//!
//! A program that was recorded with its addresses (a graph, a compiled step) can allocate at the same addresses
//! again, as long as they are cached. The device is not called.
//!
//! As PyTorch: `allocateWithAddress`, `getBaseAllocation`.

use std::fmt;

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::pieces::Cut;
use crate::request::{Addr, Allocation, Request};
use crate::search::SizedRequest;
use crate::size::MIN_BLOCK_BYTES;

/// Why a request for a given address failed.
///
/// ```
/// # use plimsoll_alloc::{Addr, AddressError};
/// assert_eq!(AddressError::Unaligned(Addr(0x301)).to_string(), "blocks start at multiples of 512, not at 0x301");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressError {
    /// The address is not a multiple of 512.
    Unaligned(Addr),
    /// No cached block of the request's pool and stream contains the range.
    NotCached {
        /// The requested address.
        addr: Addr,
        /// The request, rounded up, bytes.
        block_bytes: u64,
    },
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned(addr) => {
                write!(f, "blocks start at multiples of {MIN_BLOCK_BYTES}, not at {addr}")
            }
            Self::NotCached { addr, block_bytes } => {
                write!(f, "no cached block of this stream and pool holds {block_bytes} bytes at {addr}")
            }
        }
    }
}

impl std::error::Error for AddressError {}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Allocates at a given address, from the cached block that contains it. The part of the block before
    /// the address is allocated and freed again, which the observer sees as events. A request
    /// of 0 bytes allocates nothing. Scans the pool's cached blocks that are large enough.
    /// As PyTorch: `allocateWithAddress`.
    ///
    /// ```
    /// use plimsoll_alloc::{Addr, Allocator, Config, Request, SimDriver};
    ///
    /// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
    /// let x = allocator.malloc(Request::of(3 << 20))?;
    /// let behind = Addr(x.addr().0 + (5 << 20));
    /// let y = allocator.malloc_with_address(Request::of(2 << 20), behind)?;
    /// assert_eq!(y.addr(), behind);
    /// # allocator.free(x);
    /// # allocator.free(y);
    /// # Ok::<(), plimsoll_alloc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AddressError`] if no block can start there, or none is cached there; otherwise as
    /// [`malloc`](Self::malloc). Nothing is allocated then.
    pub fn malloc_with_address(&mut self, request: Request, addr: Addr) -> Result<Allocation, Error> {
        if request.bytes == 0 {
            return Ok(Allocation::nothing());
        }
        if !addr.0.is_multiple_of(MIN_BLOCK_BYTES) {
            return Err(AddressError::Unaligned(addr).into());
        }
        self.settle_frees(request.stream)?;
        let sized = self.size_request(request)?;
        let Some(found) = self.cached_around(addr, &sized) else {
            return Err(AddressError::NotCached { addr, block_bytes: sized.block_bytes }.into());
        };
        let front_bytes = addr.0 - self.pools.blocks[found].addr.0;
        if front_bytes == 0 {
            return Ok(self.allocate(found, &sized));
        }
        let Request { stream, pool, stack, .. } = request;
        let front = Request { stream, pool, stack, ..Request::of(front_bytes) };
        let front = self.allocate_cut(found, front_bytes, &front, Cut::Front);
        let allocation = self.allocate(found, &sized); // the part after the front
        self.free(front);
        Ok(allocation)
    }

    fn cached_around(&self, addr: Addr, sized: &SizedRequest) -> Option<BlockId> {
        let blocks = &self.pools.blocks;
        let end = addr.0.checked_add(sized.block_bytes)?;
        let cached = &self.pools.pool(sized.pool).cached;
        let smallest = cached.first_from(blocks, sized.request.stream, sized.block_bytes);
        std::iter::successors(smallest, |&id| cached.after(blocks, id)).find(|&id| {
            let block = &blocks[id];
            block.addr <= addr && end <= block.addr.0 + block.bytes
        })
    }

    /// The start and size of the segment that contains an allocation: the range that another process can map.
    /// `None` for a request of 0 bytes, and for an expandable segment, which cannot be shared this way (PyTorch
    /// returns an error). As PyTorch: `getBaseAllocation`.
    ///
    /// ```
    /// # use plimsoll_alloc::{Allocator, Config, Request, SimDriver};
    /// # let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
    /// let (x, y) = (allocator.malloc(Request::of(3 << 20))?, allocator.malloc(Request::of(5 << 20))?);
    /// assert_eq!(allocator.base_allocation(&y), Some((x.addr(), 20 << 20)));
    /// # allocator.free(x);
    /// # allocator.free(y);
    /// # Ok::<(), plimsoll_alloc::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn base_allocation(&self, allocation: &Allocation) -> Option<(Addr, u64)> {
        let blocks = &self.pools.blocks;
        let mut first = &blocks[self.held(allocation)?];
        if first.range.is_some() {
            return None;
        }
        while let Some(prev) = first.prev {
            first = &blocks[prev];
        }
        Some((first.addr, blocks.chain(first).map(|block| block.bytes).sum()))
    }
}
