//! Snapshots of the allocator's state: [`Segment`]s and their blocks.
//!
//! Used by reports, tests and the checks in `check.rs`. `pools/snapshot.rs` takes them.

use crate::request::{Addr, PoolId, StackId, StreamId, Tag};
use crate::size::PoolKind;

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
    /// Whether it can grow and shrink page by page.
    pub is_expandable: bool,
    /// Its blocks, in address order.
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
    /// Free, and available to requests.
    Cached,
}

/// The size of the cache: [`Allocator::cache_info`](crate::Allocator::cache_info).
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
