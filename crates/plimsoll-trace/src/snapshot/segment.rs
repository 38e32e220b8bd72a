//! The memory at the time of the snapshot: [`Segment`] and [`Block`].

use plimsoll_alloc::{Addr, StreamId};

use super::{MaybeU64, PoolIndex, StackId};

/// Which requests a segment serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentType {
    /// Requests of at most 1 MiB.
    Small,
    /// Larger requests.
    Large,
}

impl SegmentType {
    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// One piece of device memory held by the allocator; for an expandable segment, one mapped range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The device's number; `None` before PyTorch 2.0, which had no such key.
    pub device: Option<i32>,
    /// The segment's address.
    pub address: Addr,
    /// The segment's size in bytes.
    pub total_size: u64,
    /// Bytes in blocks that are in use.
    pub allocated_size: MaybeU64,
    /// Bytes in blocks that are in use or wait for a stream.
    pub active_size: MaybeU64,
    /// Requested bytes of the blocks in use.
    pub requested_size: MaybeU64,
    /// The segment's stream.
    pub stream: StreamId,
    /// Whether the segment serves small or large requests.
    pub segment_type: SegmentType,
    /// The segment's pool; `None` in files from before PyTorch 2.1.
    pub pool: Option<PoolIndex>,
    /// Whether the segment is expandable; `None` in files from before PyTorch 2.1.
    pub is_expandable: Option<bool>,
    /// The call stack with which the segment was allocated; often empty, because the allocator loses it when the first
    /// block is split.
    pub stack: Option<StackId>,
    /// The segment's blocks, in address order, without gaps.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// The device's number; 0 if the file does not say.
    pub fn device(&self) -> i32 {
        self.device.unwrap_or(0)
    }

    /// The address at which the segment ends.
    pub fn end(&self) -> Addr {
        Addr(self.address.0.saturating_add(self.total_size))
    }
}

/// A block's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockState {
    /// In use.
    ActiveAllocated,
    /// Freed by the user, but a stream still uses it.
    ActivePendingFree,
    /// Free.
    Inactive,
}

impl BlockState {
    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The block's address. Files of 2022 and 2023 do not contain it; then the address is computed from the previous
    /// block.
    pub address: Addr,
    /// The block's size in bytes, as rounded by the allocator.
    pub size: u64,
    /// The requested bytes; for a free block, the bytes of the last request that it served.
    pub requested_size: MaybeU64,
    /// The block's state.
    pub state: BlockState,
    /// The call stack of its allocation; `None` if the block has no such key.
    pub stack: Option<StackId>,
}
