//! The ladder: what is tried, in which order, when no cached block holds a request.
//!
//! 1. Ask the device for a segment, if the limit allows.
//! 2. Release every cached segment that is whole, and ask once more.
//! 3. Give up, with the numbers.
//!
//! As PyTorch: `malloc` from `alloc_block` on, `release_cached_blocks`, `release_block`.

use crate::allocator::Allocator;
use crate::block::{BlockId, State};
use crate::category::CategoryBytes;
use crate::driver::{Driver, DriverError};
use crate::error::{Error, OutOfMemory};
use crate::event::{Event, Observer};
use crate::pool::PoolKind;
use crate::size::{Ask, MIN_BLOCK_BYTES};

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Climbs the ladder until there is an uncached block for the request.
    pub(crate) fn make_room(&mut self, ask: &Ask) -> Result<BlockId, Error> {
        if let Some(id) = self.try_segment(ask)? {
            return Ok(id);
        }
        self.empty_cache()?;
        self.observer.on(&Event::Retry { segment_bytes: ask.segment_bytes });
        // The cache is not searched again: what is left in it is as split as before (PyTorch does the same).
        match self.try_segment(ask)? {
            Some(id) => Ok(id),
            None => Err(self.give_up(ask)),
        }
    }

    /// Asks the device for a segment; `None` if the limit or the device's memory does not allow it.
    /// As PyTorch: `alloc_block`.
    fn try_segment(&mut self, ask: &Ask) -> Result<Option<BlockId>, Error> {
        let bytes = ask.segment_bytes;
        if self.limit_bytes.is_some_and(|limit_bytes| self.reserved_bytes.saturating_add(bytes) > limit_bytes)
        {
            return Ok(None);
        }
        let addr = match self.driver.segment_alloc(bytes) {
            Ok(addr) => addr,
            Err(DriverError::OutOfMemory) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        assert!(
            addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES),
            "the driver's segment starts at {addr}"
        );
        self.reserved_bytes += bytes;
        let id = self.pools.add_segment(ask, addr);
        self.observer.on(&Event::SegmentAlloc { addr, bytes, stream: ask.request.stream, pool: ask.pool });
        Ok(Some(id))
    }

    /// Returns every cached segment that is whole to the device: the large pool's, then the small pool's,
    /// each in the order of the cache. Split ones stay. Returns bytes released.
    /// As PyTorch: `emptyCache`, `release_cached_blocks`.
    ///
    /// # Errors
    /// [`Error::Driver`] if the device fails; that segment and those behind it are still cached then.
    pub fn empty_cache(&mut self) -> Result<u64, Error> {
        self.observer.on(&Event::SyncAllStreams);
        let before = self.reserved_bytes;
        for pool in [PoolKind::Large, PoolKind::Small] {
            for id in self.pools.whole_segments(pool) {
                self.release_segment(id)?;
            }
        }
        Ok(before - self.reserved_bytes)
    }

    /// Returns one cached whole segment. As PyTorch: `release_block`.
    fn release_segment(&mut self, id: BlockId) -> Result<(), Error> {
        let block = &self.pools.blocks[id];
        let (addr, bytes, stream, pool) = (block.addr, block.bytes, block.stream, block.pool);
        self.driver.segment_free(addr)?;
        self.reserved_bytes -= bytes;
        self.pools.remove_segment(id);
        self.observer.on(&Event::SegmentFree { addr, bytes, stream, pool });
        Ok(())
    }

    /// Takes down how things stand and announces the failure.
    fn give_up(&mut self, ask: &Ask) -> Error {
        let why = self.out_of_memory(ask);
        self.observer.on(&Event::OutOfMemory {
            requested_bytes: why.requested_bytes,
            rounded_bytes: why.rounded_bytes,
            segment_bytes: why.segment_bytes,
            stream: why.stream,
            tag: ask.request.tag(),
            device_free_bytes: why.device_free_bytes,
        });
        Error::OutOfMemory(Box::new(why))
    }

    fn out_of_memory(&self, ask: &Ask) -> OutOfMemory {
        let mut by_category = CategoryBytes::default();
        for block in self.pools.blocks.iter().filter(|block| block.state == State::Active) {
            by_category[block.tag.category] += block.bytes;
        }
        let device = self.driver.memory();
        OutOfMemory {
            requested_bytes: ask.request.bytes,
            rounded_bytes: ask.block_bytes,
            segment_bytes: ask.segment_bytes,
            stream: ask.request.stream,
            category: ask.request.category,
            label: ask.request.label,
            allocated_bytes: by_category.total(),
            reserved_bytes: self.reserved_bytes,
            limit_bytes: self.limit_bytes,
            device_free_bytes: device.free_bytes,
            device_total_bytes: device.total_bytes,
            largest_free_block_bytes: self.pools.largest_cached_bytes(ask.request.stream),
            by_category,
        }
    }
}
