//! Snapshots of the allocator's state: [`Segment`]s and their blocks.
//!
//! For reports, tests and the checks in `check.rs`. A snapshot visits all blocks.

use crate::allocator::Allocator;
use crate::block::{Block, SlotState};
use crate::pool::PoolKind;
use crate::request::{Addr, PoolId, StackId, StreamId, Tag};

/// A segment and its blocks. In an expandable segment, each run of mapped pages
/// is one `Segment`, as in PyTorch's snapshots.
///
/// ```
/// use plimsoll_alloc::{Allocator, BlockState, Config, Request, SimDriver};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(3 << 20))?;
/// let segments = allocator.segments();
/// assert_eq!((segments.len(), segments[0].bytes, segments[0].allocated_bytes()), (1, 20 << 20, 3 << 20));
/// let states: Vec<_> = segments[0].blocks.iter().map(|block| (block.state, block.bytes)).collect();
/// assert_eq!(states, [(BlockState::Active, 3 << 20), (BlockState::Cached, 17 << 20)]);
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its address.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Small or large.
    pub pool: PoolKind,
    /// The pool.
    pub pool_id: PoolId,
    /// Whether it can grow and shrink by the page.
    pub is_expandable: bool,
    /// Its blocks, by address.
    pub blocks: Vec<SegmentBlock>,
}

impl Segment {
    /// Allocated bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks.iter().filter(|block| block.state == BlockState::Active).map(|block| block.bytes).sum()
    }
}

/// One block of a [`Segment`].
///
/// ```
/// # use plimsoll_alloc::{Allocator, Config, Request, SimDriver};
/// # let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(1000))?;
/// let block = allocator.segments()[0].blocks[0];
/// assert_eq!((block.addr, block.bytes, block.requested_bytes), (x.addr(), 1024, 1000));
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentBlock {
    /// Its address.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// The requested size, bytes. A cached block keeps the last one, as in PyTorch.
    pub requested_bytes: u64,
    /// Its state.
    pub state: BlockState,
    /// The tag. A cached block keeps the last one.
    pub tag: Tag,
    /// The stack of the request. A cached block keeps the last one.
    pub stack: Option<StackId>,
}

/// The state of a block.
///
/// ```
/// # use plimsoll_alloc::BlockState;
/// assert_ne!(BlockState::Active, BlockState::Cached);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Allocated.
    Active,
    /// Freed, but other streams still use it.
    Pending,
    /// Free for a request.
    Cached,
}

/// The size of the cache: [`Allocator::cache_info`].
///
/// ```
/// # use plimsoll_alloc::{Allocator, CacheInfo, Config, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let (x, y) = (allocator.malloc(Request::of(3 << 20))?, allocator.malloc(Request::of(5 << 20))?);
/// allocator.free(x);
/// assert_eq!(allocator.cache_info(), CacheInfo { largest_bytes: 12 << 20, total_bytes: 15 << 20 });
/// # allocator.free(y);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheInfo {
    /// The largest cached block, bytes; 0 if nothing is cached.
    pub largest_bytes: u64,
    /// All cached blocks, bytes.
    pub total_bytes: u64,
}

impl<D, O> Allocator<D, O> {
    /// The cached bytes of all pools and streams. As PyTorch: `cacheInfo`, which returns the larger of
    /// `largest_bytes` and its argument; an argument of 0 stands for the device's free memory.
    pub fn cache_info(&self) -> CacheInfo {
        let blocks = &self.pools.blocks;
        let cached = blocks.iter().filter(|block| block.state == SlotState::Cached).map(|block| block.bytes);
        cached.fold(CacheInfo::default(), |sum, bytes| CacheInfo {
            largest_bytes: sum.largest_bytes.max(bytes),
            total_bytes: sum.total_bytes + bytes,
        })
    }

    /// The largest cached block: `largest_bytes` of [`cache_info`](Self::cache_info), without visiting all
    /// blocks.
    pub(crate) fn largest_cached_bytes(&self) -> u64 {
        let pools = self.pools.halves().map(|pool| &self.pools.pool(pool).cached);
        pools.map(|cached| cached.largest_of_all_bytes(&self.pools.blocks)).max().unwrap_or(0)
    }

    /// All segments and their blocks, by address.
    pub fn segments(&self) -> Vec<Segment> {
        let blocks = &self.pools.blocks;
        let starts_segment =
            |block: &&Block| block.is_mapped() && block.prev.is_none_or(|prev| !blocks[prev].is_mapped());
        let firsts = blocks.iter().filter(starts_segment);
        let mut segments: Vec<Segment> = firsts.map(|first| self.picture(first)).collect();
        segments.sort_by_key(|segment| segment.addr);
        segments
    }

    /// The run of mapped blocks that starts at `first`.
    fn picture(&self, first: &Block) -> Segment {
        let run = self.pools.blocks.chain(first).take_while(|block| block.is_mapped());
        let blocks: Vec<SegmentBlock> = run.map(block_picture).collect();
        let pool = self.pools.pool(first.pool);
        Segment {
            addr: first.addr,
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            stream: first.stream,
            pool: pool.kind,
            pool_id: pool.id,
            is_expandable: first.range.is_some(),
            blocks,
        }
    }
}

fn block_picture(block: &Block) -> SegmentBlock {
    let Block { addr, bytes, requested_bytes, tag, stack, .. } = *block;
    let state = match block.state {
        SlotState::Active => BlockState::Active,
        SlotState::Pending => BlockState::Pending,
        SlotState::Cached | SlotState::Unmapped | SlotState::Vacant => BlockState::Cached,
    };
    SegmentBlock { addr, bytes, requested_bytes, state, tag, stack }
}

#[cfg(test)]
mod tests {
    use crate::{Allocator, Config, Request, SimDriver, StreamId};

    #[test]
    fn the_largest_cached_block_of_any_stream_and_pool_is_found() {
        let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(1 << 30), ());
        assert_eq!(allocator.largest_cached_bytes(), 0);
        for (bytes, stream) in [(1 << 10, 0), (30 << 20, 7), (3 << 20, 0), (50 << 20, 3)] {
            let request = Request { stream: StreamId(stream), ..Request::of(bytes) };
            let block = allocator.malloc(request).unwrap();
            assert_eq!(allocator.largest_cached_bytes(), allocator.cache_info().largest_bytes);
            allocator.free(block);
            assert_eq!(allocator.largest_cached_bytes(), allocator.cache_info().largest_bytes);
        }
        assert_eq!(allocator.largest_cached_bytes(), 50 << 20);
    }
}
