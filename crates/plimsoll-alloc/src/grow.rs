//! Allocating device memory: a new segment for a request, or more pages of an expandable one.
//!
//! As PyTorch: `alloc_block`.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::cache_miss::GrowthContext;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::pieces::NewSegment;
use crate::request::Addr;
use crate::search::SizedRequest;
use crate::size::{MIN_BLOCK_BYTES, is_oversize};

/// Allocates device memory for the request; `None` if the limit or the device's memory does not
/// suffice. The limit is compared with the size of a whole segment, even if an expandable segment
/// would need less, as in PyTorch.
///
/// # Errors
/// [`Error::Rejected`] with `throw_on_cudamalloc_oom`, [`Error::Driver`] if the device failed.
pub(crate) fn try_device<C: GrowthContext>(
    context: &mut C,
    sized: &SizedRequest,
) -> Result<Option<BlockId>, Error> {
    let allocator = context.allocator();
    let after_bytes = allocator.reserved_bytes.saturating_add(sized.segment_bytes);
    if allocator.limit_bytes.is_some_and(|limit_bytes| after_bytes > limit_bytes) {
        return Ok(None);
    }
    if allocator.config.throw_on_cudamalloc_oom() {
        allocator.reject_beyond_fraction(sized, after_bytes)?;
    }
    if sized.expandable {
        return allocator.grow_range(sized);
    }
    match context.segment_alloc(sized) {
        Ok(addr) => Ok(Some(context.allocator().add_segment(sized, addr))),
        Err(DriverError::OutOfMemory) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// As in PyTorch, the cache is not released, and this does not count as out of memory.
    fn reject_beyond_fraction(&mut self, sized: &SizedRequest, after_bytes: u64) -> Result<(), Error> {
        let allowed_bytes =
            fraction_of(self.config.per_process_memory_fraction(), self.driver.memory().total_bytes);
        if after_bytes <= allowed_bytes {
            return Ok(());
        }
        let segment_bytes = sized.segment_bytes;
        self.observer.on(&Event::Rejected { segment_bytes });
        Err(Error::Rejected { segment_bytes, reserved_bytes: self.reserved_bytes, allowed_bytes })
    }

    /// Adds a new segment. Its one block is cached.
    fn add_segment(&mut self, sized: &SizedRequest, addr: Addr) -> BlockId {
        assert_start(addr);
        let bytes = sized.segment_bytes;
        self.reserved_bytes += bytes;
        let (stream, pool) = (sized.request.stream, sized.pool);
        let id = self.pools.add_segment(NewSegment { addr, bytes, stream, pool, range: None });
        self.pools.file(id);
        let memory = self.memory_of(&self.pools.blocks[id]);
        let oversize = is_oversize(&self.config, bytes);
        self.observer.on(&Event::SegmentAlloc { memory, oversize, stack: sized.request.stack });
        id
    }
}

/// Checks the address of new device memory.
///
/// # Panics
/// If it is 0 or not a multiple of 512: a bug in the driver.
pub(crate) fn assert_start(addr: Addr) {
    assert!(addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES), "the driver's memory starts at {addr}");
}

/// A fraction of a device's memory, rounded down to bytes.
pub(crate) fn fraction_of(fraction: f64, total_bytes: u64) -> u64 {
    (fraction * total_bytes as f64) as u64
}
