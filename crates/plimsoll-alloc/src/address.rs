//! Memory by its address: a request for one given place, and the segment around a block.
//!
//! A program that was recorded with its addresses (a graph, a compiled step) can be given the same ones again,
//! as long as the cache holds them. Nothing is asked of the device for it.
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
use crate::search::Ask;
use crate::size::MIN_BLOCK_BYTES;

/// Why there is no memory at an address.
///
/// ```
/// # use plimsoll_alloc::{Addr, AddressError};
/// assert_eq!(AddressError::Unaligned(Addr(0x301)).to_string(), "blocks start at multiples of 512, not at 0x301");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressError {
    /// No block can start there.
    Unaligned(Addr),
    /// The pool has no cached block of the request's stream and size class around it.
    NotCached {
        /// Where it was to start.
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
    /// Serves a request at a given address, from the one cached block that lies around it. What is in front of
    /// the address is given out and taken back, so that it is seen to come and go by the observer. A request
    /// of 0 bytes is given nothing. Costs a walk over the pool's cached blocks that are large enough.
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
    /// [`AddressError`] if no block can start there or none is cached there; otherwise as
    /// [`malloc`](Self::malloc). Nothing is allocated then.
    pub fn malloc_with_address(&mut self, request: Request, addr: Addr) -> Result<Allocation, Error> {
        if request.bytes == 0 {
            return Ok(Allocation::nothing());
        }
        if !addr.0.is_multiple_of(MIN_BLOCK_BYTES) {
            return Err(AddressError::Unaligned(addr).into());
        }
        self.settle_frees(request.stream)?;
        let ask = self.ask(request)?;
        let Some(found) = self.cached_around(addr, &ask) else {
            return Err(AddressError::NotCached { addr, block_bytes: ask.block_bytes }.into());
        };
        let front_bytes = addr.0 - self.pools.blocks[found].addr.0;
        if front_bytes == 0 {
            return Ok(self.give(found, &ask));
        }
        let Request { stream, pool, stack, .. } = request;
        let front = Request { stream, pool, stack, ..Request::of(front_bytes) };
        let front = self.give_cut(found, front_bytes, &front, Cut::Front);
        let allocation = self.give(found, &ask); // what is behind the front
        self.free(front);
        Ok(allocation)
    }

    fn cached_around(&self, addr: Addr, ask: &Ask) -> Option<BlockId> {
        let blocks = &self.pools.blocks;
        let end = addr.0.checked_add(ask.block_bytes)?;
        let cached = &self.pools.pool(ask.pool).cached;
        let smallest = cached.first_from(blocks, ask.request.stream, ask.block_bytes);
        std::iter::successors(smallest, |&id| cached.after(blocks, id)).find(|&id| {
            let block = &blocks[id];
            block.addr <= addr && end <= block.addr.0 + block.bytes
        })
    }

    /// Where the segment that holds an allocation starts, and its bytes: what another process is given to map.
    /// `None` for a request of 0 bytes, and in an expandable segment, which cannot be shared so (PyTorch
    /// refuses it in words). As PyTorch: `getBaseAllocation`.
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
    /// If the allocation is another allocator's.
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
