//! Memory by address: allocation at a given address, and the segment that contains a block.
//!
//! If a program was recorded with its addresses (a graph, a compiled step), it can allocate at the same addresses
//! again, as long as that memory is cached. The device is not called.
//!
//! In PyTorch: `allocateWithAddress`, `getBaseAllocation`.

use super::Allocator;
use crate::allocation::Allocation;
use crate::driver::Driver;
use crate::error::{AddressError, Error};
use crate::event::Observer;
use crate::pools::Cut;
use crate::request::{Addr, Request};
use crate::size::MIN_BLOCK_BYTES;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Allocates at a given address, from the cached block that contains it. The part of the block before the address
    /// is allocated and freed again; the observer receives events for both. A request of 0 bytes allocates nothing.
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
    /// [`malloc`](Self::malloc). In this case, nothing is allocated.
    pub fn malloc_with_address(&mut self, request: Request, addr: Addr) -> Result<Allocation, Error> {
        if request.bytes == 0 {
            return Ok(Allocation::nothing());
        }
        if !addr.0.is_multiple_of(MIN_BLOCK_BYTES) {
            return Err(AddressError::Unaligned(addr).into());
        }
        self.settle_frees(request.stream)?;
        let sized = self.size_request(request)?;
        let found = self.heap.cached_around(sized.pool, request.stream, addr, sized.block_bytes);
        let Some(found) = found else {
            return Err(AddressError::NotCached { addr, block_bytes: sized.block_bytes }.into());
        };
        let front_bytes = addr.0 - self.heap.pools().block(found).addr.0;
        if front_bytes == 0 {
            return Ok(self.allocate(found, &sized));
        }
        let Request { stream, pool, stack, .. } = request;
        let front = Request { stream, pool, stack, ..Request::of(front_bytes) };
        let front = self.heap.allocate(found, front_bytes, &front, Cut::Front, &self.config);
        let allocation = self.allocate(found, &sized); // the part that starts at `addr`
        self.free(front);
        Ok(allocation)
    }

    /// The start and size of the segment that contains an allocation: the range that another process can map.
    /// `None` for a request of 0 bytes, and for an expandable segment, which cannot be shared this way (PyTorch
    /// returns an error). In PyTorch: `getBaseAllocation`.
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
        self.heap.pools().segment_around(self.heap.held(allocation)?)
    }
}
