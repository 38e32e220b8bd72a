//! Expandable segments: address space reserved once, memory mapped into it page by page.
//!
//! A block grows when pages of the unmapped block after it are mapped. `pools/pages.rs` changes the blocks.
//!
//! In PyTorch: `ExpandableSegment`, `try_allocate_expandable_block`, `map_block`, `unmap_block`.

use super::SegmentSource;
use crate::block::{BlockId, SlotState};
use crate::config::Config;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::Observer;
use crate::heap::Heap;
use crate::pools::{NewSegment, SizedRequest};
use crate::ranges::Range;
use crate::size::{PoolKind, SMALL_SEGMENT_BYTES};

impl<D: Driver> SegmentSource<D> {
    /// Grows an expandable segment until a cached block of it holds the request, and returns that block.
    /// `None` if the device is out of memory. Pages mapped before that stay mapped and cached.
    pub(crate) fn grow_range<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        config: &Config,
        sized: &SizedRequest,
    ) -> Result<Option<BlockId>, Error> {
        let mut id = match heap.pools().find_growable(sized) {
            Some(id) => id,
            None => match self.reserve_range(heap, config, sized)? {
                Some(id) => id,
                None => return Ok(None),
            },
        };
        if !heap.pools().block(id).is_mapped() && !self.map_front(heap, id, sized.block_bytes, sized)? {
            return Ok(None);
        }
        while heap.pools().block(id).bytes < sized.block_bytes {
            let missing = sized.block_bytes - heap.pools().block(id).bytes;
            let next = heap.pools().block(id).next.expect("the range was found large enough");
            if !self.map_front(heap, next, missing, sized)? {
                return Ok(None);
            }
            id = next; // it absorbed the block
        }
        Ok(Some(id))
    }

    /// Reserves address space for a new expandable segment. Returns its only block, which is unmapped.
    fn reserve_range<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        config: &Config,
        sized: &SizedRequest,
    ) -> Result<Option<BlockId>, Error> {
        let total_bytes = self.driver.memory().total_bytes;
        let (page_bytes, bytes) = range_and_page_bytes(config, sized.kind, total_bytes);
        let addr = match self.driver.reserve(bytes) {
            Ok(addr) => addr,
            Err(DriverError::OutOfMemory) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        let range = Some(self.ranges.insert(Range { addr, bytes, page_bytes }));
        let (stream, pool) = (sized.request.stream, sized.pool);
        let id = heap.add_unmapped(NewSegment { addr, bytes, stream, pool, range });
        if bytes < sized.block_bytes {
            self.release_range(heap, id)?;
            return Ok(None);
        }
        Ok(Some(id))
    }

    /// Maps the first pages of an unmapped block, enough for `bytes` or all of it. They become cached, and merge with
    /// their neighbours. Returns false, and maps nothing, if the device is out of memory.
    fn map_front<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        id: BlockId,
        bytes: u64,
        sized: &SizedRequest,
    ) -> Result<bool, Error> {
        let block = heap.pools().block(id);
        let range = self.ranges.get(block.range.expect("only expandable segments have unmapped blocks"));
        let pages = bytes.min(block.bytes).div_ceil(range.page_bytes);
        match self.driver.map(block.addr, range.page_bytes, pages) {
            Ok(()) => {}
            Err(DriverError::OutOfMemory) => return Ok(false),
            Err(why) => return Err(why.into()),
        }
        heap.map_front(id, pages * range.page_bytes, sized.request.stack);
        Ok(true)
    }

    /// Unmaps the whole pages inside a cached block, and releases the address space if nothing else is
    /// left of the segment. The parts before and after those pages stay cached.
    pub(super) fn unmap_pages<O: Observer>(&mut self, heap: &mut Heap<O>, id: BlockId) -> Result<(), Error> {
        let block = *heap.pools().block(id);
        let range = self.ranges.get(block.range.expect("only expandable segments are unmapped"));
        let (addr, pages) = range.pages_inside(block.addr, block.bytes);
        if pages > 0 {
            self.driver.unmap(addr, range.page_bytes, pages, block.stream)?;
            heap.unmap(id, addr, pages * range.page_bytes);
        }
        self.release_range(heap, id)
    }

    /// Releases the address space of a segment, if `id` is unmapped and spans all of it.
    fn release_range<O>(&mut self, heap: &mut Heap<O>, id: BlockId) -> Result<(), Error> {
        let block = heap.pools().block(id);
        let (Some(range_id), SlotState::Unmapped, false) = (block.range, block.state, block.is_piece())
        else {
            return Ok(());
        };
        let range = self.ranges.get(range_id);
        self.driver.release(range.addr, range.bytes)?;
        heap.remove_unmapped(id);
        self.ranges.remove(range_id);
        Ok(())
    }
}

/// The size and page size of a new range: the size that the option sets, or 9/8 of the device, rounded to whole pages.
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

/// The size that `expandable_segments_reserve` sets, if a range of that size cannot hold the request, bytes.
pub(crate) fn exceeded_reserve(config: &Config, sized: &SizedRequest, total_bytes: u64) -> Option<u64> {
    let reserve = config.expandable_segments_reserve().filter(|_| sized.expandable)?;
    let (_, range_bytes) = range_and_page_bytes(config, sized.kind, total_bytes);
    (sized.block_bytes > range_bytes).then(|| reserve.bytes(total_bytes))
}
