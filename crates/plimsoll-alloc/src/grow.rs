//! Memory from the device: a segment of its own for a request, or more pages of an expandable one.
//!
//! As PyTorch: `alloc_block`.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::ladder::Climber;
use crate::pieces::NewSegment;
use crate::request::Addr;
use crate::search::Ask;
use crate::size::{MIN_BLOCK_BYTES, is_oversize};

/// Asks the device for memory that holds the request; `None` if the limit or the device's memory does not
/// allow it. The limit is compared with what a whole segment would take, also where an expandable segment
/// would need less, as in PyTorch.
///
/// # Errors
/// [`Error::Rejected`] if `throw_on_cudamalloc_oom` says so, [`Error::Driver`] if the device failed.
pub(crate) fn try_device<C: Climber>(climber: &mut C, ask: &Ask) -> Result<Option<BlockId>, Error> {
    let allocator = climber.allocator();
    let after_bytes = allocator.reserved_bytes.saturating_add(ask.segment_bytes);
    if allocator.limit_bytes.is_some_and(|limit_bytes| after_bytes > limit_bytes) {
        return Ok(None);
    }
    if allocator.config.throw_on_cudamalloc_oom() {
        allocator.reject_beyond_fraction(ask, after_bytes)?;
    }
    if ask.expandable {
        return allocator.grow_range(ask);
    }
    match climber.segment_alloc(ask) {
        Ok(addr) => Ok(Some(climber.allocator().add_segment(ask, addr))),
        Err(DriverError::OutOfMemory) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// As PyTorch: neither the cache is released nor is this counted as out of memory.
    fn reject_beyond_fraction(&mut self, ask: &Ask, after_bytes: u64) -> Result<(), Error> {
        let allowed_bytes =
            fraction_of(self.config.per_process_memory_fraction(), self.driver.memory().total_bytes);
        if after_bytes <= allowed_bytes {
            return Ok(());
        }
        let segment_bytes = ask.segment_bytes;
        self.observer.on(&Event::Rejected { segment_bytes });
        Err(Error::Rejected { segment_bytes, reserved_bytes: self.reserved_bytes, allowed_bytes })
    }

    /// Takes a new segment in. Its one block is cached.
    fn add_segment(&mut self, ask: &Ask, addr: Addr) -> BlockId {
        assert_start(addr);
        let bytes = ask.segment_bytes;
        self.reserved_bytes += bytes;
        let (stream, pool) = (ask.request.stream, ask.pool);
        let id = self.pools.add_segment(NewSegment { addr, bytes, stream, pool, range: None });
        self.pools.file(id);
        let memory = self.memory_of(&self.pools.blocks[id]);
        let oversize = is_oversize(&self.config, bytes);
        self.observer.on(&Event::SegmentAlloc { memory, oversize, stack: ask.request.stack });
        id
    }
}

/// The driver's word on where memory starts.
///
/// # Panics
/// If it is not a start that blocks can be cut from: a bug of the driver.
pub(crate) fn assert_start(addr: Addr) {
    assert!(addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES), "the driver's memory starts at {addr}");
}

/// A part of a device's memory, rounded down to bytes.
pub(crate) fn fraction_of(fraction: f64, total_bytes: u64) -> u64 {
    (fraction * total_bytes as f64) as u64
}
