//! Expandable segments: address space reserved once, memory mapped into it page by page.
//!
//! Such a segment is a list of blocks like any other; some of its blocks are unmapped. A block grows by
//! mapping pages of the unmapped block after it. Besides its blocks, a segment has a
//! [`Range`]: its address range and page size.
//!
//! As PyTorch: `ExpandableSegment`, `try_allocate_expandable_block`, `map_block`, `unmap_block`.

use std::num::NonZeroU32;

use crate::allocator::Allocator;
use crate::block::{Block, BlockId, SlotState};
use crate::config::Config;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::grow::assert_start;
use crate::pieces::NewSegment;
use crate::pool::PoolKind;
use crate::request::Addr;
use crate::search::SizedRequest;
use crate::size::SMALL_SEGMENT_BYTES;

/// An index into [`Ranges`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeId(NonZeroU32);

/// The address space of one expandable segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    pub(crate) page_bytes: u64,
}

/// The address space of all expandable segments.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    slots: Vec<Range>,
    vacant: Vec<RangeId>,
}

impl Ranges {
    pub(crate) fn insert(&mut self, range: Range) -> RangeId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.0.get() as usize - 1] = range;
            return id;
        }
        self.slots.push(range);
        let number = u32::try_from(self.slots.len()).ok().and_then(NonZeroU32::new);
        RangeId(number.expect("fewer than 2^32 expandable segments at one time"))
    }

    pub(crate) fn get(&self, id: RangeId) -> Range {
        self.slots[id.0.get() as usize - 1]
    }

    fn remove(&mut self, id: RangeId) {
        self.vacant.push(id);
    }
}

impl Range {
    /// The whole pages inside `block`: the first, and their number.
    fn pages_inside(&self, block: &Block) -> (u64, u64) {
        let from = block.addr.0 - self.addr.0;
        let (first, end) = (from.div_ceil(self.page_bytes), (from + block.bytes) / self.page_bytes);
        (first, end.saturating_sub(first))
    }

    /// Whether this is a positive number of whole pages.
    pub(crate) fn is_pages(&self, addr: Addr, bytes: u64) -> bool {
        let from = addr.0 - self.addr.0;
        bytes > 0 && from.is_multiple_of(self.page_bytes) && bytes.is_multiple_of(self.page_bytes)
    }

    fn page(&self, nth: u64) -> Addr {
        self.addr.plus(nth * self.page_bytes)
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Grows an expandable segment until a cached block of it holds the request, and returns that block.
    /// `None` if the device is out of memory. Pages mapped before that stay mapped and cached.
    pub(crate) fn grow_range(&mut self, sized: &SizedRequest) -> Result<Option<BlockId>, Error> {
        let mut block = match self.find_growable(sized) {
            Some(block) => block,
            None => match self.reserve_range(sized)? {
                Some(block) => block,
                None => return Ok(None),
            },
        };
        if !self.pools.blocks[block].is_mapped() && !self.map_front(block, sized.block_bytes, sized)? {
            return Ok(None);
        }
        while self.pools.blocks[block].bytes < sized.block_bytes {
            let missing = sized.block_bytes - self.pools.blocks[block].bytes;
            let next = self.pools.blocks[block].next.expect("the range was found large enough");
            if !self.map_front(next, missing, sized)? {
                return Ok(None);
            }
            block = next; // it absorbed `block`
        }
        Ok(Some(block))
    }

    /// The first run, by address, of cached and unmapped neighbours that together hold the request. It
    /// starts with a cached block if one precedes the unmapped one.
    fn find_growable(&self, sized: &SizedRequest) -> Option<BlockId> {
        let stream = sized.request.stream;
        let unmapped = &self.pools.pool(sized.pool).unmapped;
        let of_stream = unmapped.range((stream, Addr(0))..=(stream, Addr(u64::MAX)));
        let mut starts = of_stream.map(|(_, &id)| match self.pools.blocks[id].prev {
            Some(prev) if self.is_unused(prev) => prev,
            _ => id,
        });
        starts.find(|&start| self.unused_bytes_from(start, sized.block_bytes) >= sized.block_bytes)
    }

    fn is_unused(&self, id: BlockId) -> bool {
        matches!(self.pools.blocks[id].state, SlotState::Cached | SlotState::Unmapped)
    }

    /// The bytes of `start` and the unused blocks after it, counted up to `enough`.
    fn unused_bytes_from(&self, start: BlockId, enough: u64) -> u64 {
        let (mut sum, mut at) = (0, Some(start));
        while let Some(id) = at.filter(|&id| sum < enough && self.is_unused(id)) {
            sum += self.pools.blocks[id].bytes;
            at = self.pools.blocks[id].next;
        }
        sum
    }

    /// Reserves address space for a new expandable segment. Returns its one block, unmapped.
    fn reserve_range(&mut self, sized: &SizedRequest) -> Result<Option<BlockId>, Error> {
        let total_bytes = self.driver.memory().total_bytes;
        let (page_bytes, bytes) = range_and_page_bytes(&self.config, sized.kind, total_bytes);
        let addr = match self.driver.reserve(bytes) {
            Ok(addr) => addr,
            Err(DriverError::OutOfMemory) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        assert_start(addr);
        let range = self.ranges.insert(Range { addr, bytes, page_bytes });
        let (stream, pool) = (sized.request.stream, sized.pool);
        let id = self.pools.add_segment(NewSegment { addr, bytes, stream, pool, range: Some(range) });
        self.pools.file(id);
        if bytes < sized.block_bytes {
            self.release_range(id)?;
            return Ok(None);
        }
        Ok(Some(id))
    }

    /// Maps the first pages of an unmapped block, enough for `bytes` or all of it, and caches them, merged
    /// with their neighbours. False if the device is out of memory; nothing is mapped then.
    fn map_front(&mut self, id: BlockId, bytes: u64, sized: &SizedRequest) -> Result<bool, Error> {
        let block = self.pools.blocks[id];
        let range = self.ranges.get(block.range.expect("only expandable segments have unmapped blocks"));
        let pages = bytes.min(block.bytes).div_ceil(range.page_bytes);
        let mapped_bytes = pages * range.page_bytes;
        match self.driver.map(block.addr, range.page_bytes, pages) {
            Ok(()) => {}
            Err(DriverError::OutOfMemory) => return Ok(false),
            Err(why) => return Err(why.into()),
        }
        self.pools.unfile(id);
        if mapped_bytes < block.bytes {
            let (addr, bytes) = (block.addr.plus(mapped_bytes), block.bytes - mapped_bytes);
            let rest = Block { addr, bytes, requested_bytes: 0, ..block };
            let rest = self.pools.insert_between(Some(id), block.next, rest);
            self.pools.file(rest);
        }
        let front = &mut self.pools.blocks[id];
        (front.bytes, front.state) = (mapped_bytes, SlotState::Cached);
        self.pools.merge_and_file(id);
        self.reserved_bytes += mapped_bytes;
        let memory = self.memory_of(&Block { bytes: mapped_bytes, ..block });
        self.observer.on(&Event::SegmentMap { memory, stack: sized.request.stack });
        Ok(true)
    }

    /// Unmaps the whole pages inside a cached block, and releases the address space if nothing else is
    /// left of the segment. The parts before and after those pages stay cached.
    pub(crate) fn unmap_pages(&mut self, id: BlockId) -> Result<(), Error> {
        let block = self.pools.blocks[id];
        let range = self.ranges.get(block.range.expect("only expandable segments are unmapped"));
        let (first, pages) = range.pages_inside(&block);
        if pages > 0 {
            let (addr, bytes) = (range.page(first), pages * range.page_bytes);
            self.driver.unmap(addr, range.page_bytes, pages, block.stream)?;
            self.leave_in(id, addr, bytes, SlotState::Unmapped);
            self.reserved_bytes -= bytes;
            let memory = self.memory_of(&Block { addr, bytes, ..block });
            self.observer.on(&Event::SegmentUnmap { memory });
        }
        self.release_range(id)
    }

    /// Splits a filed block in up to three: the middle, of whole pages, changes between cached and
    /// unmapped; the parts around it keep their state.
    pub(crate) fn leave_in(&mut self, id: BlockId, addr: Addr, bytes: u64, state: SlotState) {
        self.pools.unfile(id);
        let block = self.pools.blocks[id];
        let before_bytes = addr.0 - block.addr.0;
        let behind_bytes = block.bytes - before_bytes - bytes;
        if before_bytes > 0 {
            let before = Block { bytes: before_bytes, requested_bytes: 0, ..block };
            let before = self.pools.insert_between(block.prev, Some(id), before);
            self.pools.file(before);
        }
        if behind_bytes > 0 {
            let behind = Block { addr: addr.plus(bytes), bytes: behind_bytes, requested_bytes: 0, ..block };
            let behind = self.pools.insert_between(Some(id), block.next, behind);
            self.pools.file(behind);
        }
        let middle = &mut self.pools.blocks[id];
        (middle.addr, middle.bytes, middle.state) = (addr, bytes, state);
        self.pools.merge_and_file(id);
    }

    /// Releases the address space of a segment, if `id` is unmapped and spans all of it.
    fn release_range(&mut self, id: BlockId) -> Result<(), Error> {
        let block = self.pools.blocks[id];
        let (Some(range_id), SlotState::Unmapped, false) = (block.range, block.state, block.is_piece())
        else {
            return Ok(());
        };
        let range = self.ranges.get(range_id);
        self.driver.release(range.addr, range.bytes)?;
        self.pools.remove_segment(id);
        self.ranges.remove(range_id);
        Ok(())
    }
}

/// The page size and size of a new range: the option's value, or 9/8 of the device, in whole pages.
fn range_and_page_bytes(config: &Config, kind: PoolKind, total_bytes: u64) -> (u64, u64) {
    let page_bytes = match kind {
        PoolKind::Small => SMALL_SEGMENT_BYTES,
        PoolKind::Large => config.large_segment_bytes(),
    };
    let wanted_bytes = match config.expandable_segments_reserve() {
        Some(reserve) => reserve.bytes(total_bytes),
        None => total_bytes.saturating_add(total_bytes / 8),
    };
    (page_bytes, wanted_bytes.div_ceil(page_bytes).saturating_mul(page_bytes))
}

/// The reserve that the option sets, if `sized` needs more than such a range can hold, bytes.
pub(crate) fn exceeded_reserve(config: &Config, sized: &SizedRequest, total_bytes: u64) -> Option<u64> {
    let reserve = config.expandable_segments_reserve().filter(|_| sized.expandable)?;
    let (_, range_bytes) = range_and_page_bytes(config, sized.kind, total_bytes);
    (sized.block_bytes > range_bytes).then(|| reserve.bytes(total_bytes))
}
