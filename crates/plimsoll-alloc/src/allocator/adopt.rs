//! State imported from a recording: segments, pages and blocks of another allocator, added without a call to
//! the driver and without an event.
//!
//! A replay starts in the middle of a recording, and the recording lists what the device allocated and freed. So
//! segments are imported with their blocks ([`Allocator::adopt`]), memory is added and removed by segment or page
//! ([`adopt_pages`](Allocator::adopt_pages), [`disown`](Allocator::disown)), and a freed block stays pending until the
//! recording completes its free ([`free_later`](Allocator::free_later)). Requests are served as usual;
//! the request path does not run any of this code.

use super::Allocator;
use crate::adopt::{AdoptError, Adoption, Waiting, must};
use crate::allocation::Allocation;
use crate::driver::Driver;
use crate::event::{DeviceRange, Observer};
use crate::pools::NewSegment;
use crate::ranges::Range;
use crate::size::ONE_EXBIBYTE;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Imports a segment with its blocks. It counts as the newest segment. Returns its allocations in address order.
    ///
    /// # Errors
    /// If the layout is impossible, or the pool does not exist. In this case, nothing is imported.
    pub fn adopt(&mut self, adoption: &Adoption<'_>) -> Result<Vec<Allocation>, AdoptError> {
        adoption.check()?;
        let DeviceRange { addr, bytes, stream, pool: kind, pool_id } = adoption.memory;
        let is_possible = bytes < ONE_EXBIBYTE && self.heap.reserved_bytes() < ONE_EXBIBYTE;
        must(is_possible, "no device has so many bytes", addr)?;
        let no_pool = |_| AdoptError { why: "there is no such pool", addr };
        let pool = self.private_pools.half_of(pool_id, kind).map_err(no_pool)?;
        let range =
            adoption.page_bytes.map(|page_bytes| self.source.import_range(Range { addr, bytes, page_bytes }));
        let segment = NewSegment { addr, bytes, stream, pool, range };
        Ok(self.heap.import(segment, adoption.pieces, adoption.mapped_bytes()))
    }

    /// Imports pages of an expandable segment that the device has mapped. They become cached.
    ///
    /// # Errors
    /// If they are not whole unmapped pages of one segment.
    pub fn adopt_pages(&mut self, memory: &DeviceRange) -> Result<(), AdoptError> {
        let &DeviceRange { addr, bytes, stream, pool: kind, pool_id } = memory;
        let no_pages = AdoptError { why: "no unmapped pages of a segment start at this address", addr };
        let pool = self.private_pools.half_of(pool_id, kind).map_err(|_| no_pages)?;
        let pools = self.heap.pools();
        let id = pools.unmapped_before(pool, stream, addr).ok_or(no_pages)?;
        let block = pools.block(id);
        let end = addr.0.checked_add(bytes).filter(|&end| end <= block.addr.0 + block.bytes);
        let range = block.range.map(|range| self.source.ranges().get(range));
        let is_whole = range.is_some_and(|range| range.is_pages(addr, bytes));
        must(end.is_some() && is_whole, no_pages.why, addr)?;
        self.heap.import_pages(id, addr, bytes);
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
        let pool = self.private_pools.half_of(pool_id, kind).map_err(|_| no_memory)?;
        let id = self.heap.cached_around(pool, stream, addr, bytes).ok_or(no_memory)?;
        let block = self.heap.pools().block(id);
        match block.range.map(|range| self.source.ranges().get(range)) {
            Some(range) => {
                must(range.is_pages(addr, bytes), no_memory.why, addr)?;
                self.heap.disown_pages(id, addr, bytes);
            }
            None => {
                must(!block.is_piece() && block.bytes == bytes, no_memory.why, addr)?;
                self.heap.disown_segment(id);
            }
        }
        Ok(())
    }

    /// Frees a block that stays pending until the caller reports, with [`complete`](Self::complete), that its streams
    /// are done.
    ///
    /// # Panics
    /// Like [`free`](Self::free).
    #[expect(clippy::needless_pass_by_value, reason = "as for `free`")]
    pub fn free_later(&mut self, allocation: Allocation) -> Option<Waiting> {
        let id = self.heap.held(&allocation)?;
        self.heap.request_free(id, &self.config);
        self.pending.wait_for_caller(&mut self.heap, id);
        Some(Waiting(id))
    }

    /// Completes the free of a pending block: it becomes cached.
    ///
    /// # Panics
    /// If the block belongs to another allocator.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes it end only once")]
    pub fn complete(&mut self, waiting: Waiting) {
        self.pending.complete(&mut self.heap, waiting.0);
    }
}
