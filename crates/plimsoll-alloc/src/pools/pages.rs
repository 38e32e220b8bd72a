//! Pages of expandable segments: blocks that change between cached and unmapped.
//!
//! An expandable segment is a list of blocks like any other, except that some of its blocks are unmapped.
//! `source/expandable.rs` maps and unmaps pages on the device.

use super::Pools;
use super::search::SizedRequest;
use crate::block::{Block, BlockId, SlotState};
use crate::request::Addr;

impl Pools {
    /// The first run, in address order, of adjacent cached and unmapped blocks that together hold the request. It
    /// starts with a cached block if one precedes the unmapped one.
    pub(crate) fn find_growable(&self, sized: &SizedRequest) -> Option<BlockId> {
        let stream = sized.request.stream;
        let unmapped = &self.pool(sized.pool).unmapped;
        let of_stream = unmapped.range((stream, Addr(0))..=(stream, Addr(u64::MAX)));
        let mut starts = of_stream.map(|(_, &id)| match self.blocks[id].prev {
            Some(prev) if self.is_unused(prev) => prev,
            _ => id,
        });
        starts.find(|&start| self.unused_bytes_from(start, sized.block_bytes) >= sized.block_bytes)
    }

    fn is_unused(&self, id: BlockId) -> bool {
        matches!(self.blocks[id].state, SlotState::Cached | SlotState::Unmapped)
    }

    /// The bytes of `start` and the unused blocks after it, counted up to `enough`.
    fn unused_bytes_from(&self, start: BlockId, enough: u64) -> u64 {
        let (mut sum, mut at) = (0, Some(start));
        while let Some(id) = at.filter(|&id| sum < enough && self.is_unused(id)) {
            sum += self.blocks[id].bytes;
            at = self.blocks[id].next;
        }
        sum
    }

    /// Makes the first `mapped_bytes` of an unmapped block cached, merged with their neighbours.
    pub(crate) fn map_front(&mut self, id: BlockId, mapped_bytes: u64) {
        let block = self.blocks[id];
        self.unfile(id);
        if mapped_bytes < block.bytes {
            let (addr, bytes) = (block.addr.plus(mapped_bytes), block.bytes - mapped_bytes);
            let rest = Block { addr, bytes, requested_bytes: 0, ..block };
            let rest = self.insert_between(Some(id), block.next, rest);
            self.file(rest);
        }
        let front = &mut self.blocks[id];
        (front.bytes, front.state) = (mapped_bytes, SlotState::Cached);
        self.merge_and_file(id);
    }

    /// Splits a filed block into up to three parts. The middle, whole pages, changes between cached and unmapped; the
    /// parts around it keep their state.
    pub(crate) fn convert(&mut self, id: BlockId, addr: Addr, bytes: u64, state: SlotState) {
        self.unfile(id);
        let block = self.blocks[id];
        let before_bytes = addr.0 - block.addr.0;
        let behind_bytes = block.bytes - before_bytes - bytes;
        if before_bytes > 0 {
            let before = Block { bytes: before_bytes, requested_bytes: 0, ..block };
            let before = self.insert_between(block.prev, Some(id), before);
            self.file(before);
        }
        if behind_bytes > 0 {
            let behind = Block { addr: addr.plus(bytes), bytes: behind_bytes, requested_bytes: 0, ..block };
            let behind = self.insert_between(Some(id), block.next, behind);
            self.file(behind);
        }
        let middle = &mut self.blocks[id];
        (middle.addr, middle.bytes, middle.state) = (addr, bytes, state);
        self.merge_and_file(id);
    }
}
