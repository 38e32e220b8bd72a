//! Memory as the snapshot found it: [`Segment`] and [`Block`].

use plimsoll_alloc::{Addr, StreamId};

use super::{MaybeU64, PoolIndex, StackId};

/// Which requests a segment serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentType {
    /// Those of at most 1 MiB.
    Small,
    /// Those above.
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

/// One piece of memory that the allocator has from the device; of an expandable segment, one mapped range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The device's number; `None` before PyTorch 2.0, which had no such key.
    pub device: Option<i32>,
    /// Where it begins.
    pub address: Addr,
    /// Its bytes.
    pub total_size: u64,
    /// Bytes of its blocks that are in use.
    pub allocated_size: MaybeU64,
    /// Bytes of its blocks that are in use or wait to be free.
    pub active_size: MaybeU64,
    /// Bytes asked for by what is in use.
    pub requested_size: MaybeU64,
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// Which requests it serves.
    pub segment_type: SegmentType,
    /// Its pool; `None` before PyTorch 2.1.
    pub pool: Option<PoolIndex>,
    /// Whether it grows in place; `None` before PyTorch 2.1.
    pub is_expandable: Option<bool>,
    /// Where in the program it was made; often empty (the allocator loses it when the head is cut).
    pub stack: Option<StackId>,
    /// What it is cut into, by address, without holes.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// The device's number; 0 where the file did not say.
    pub fn device(&self) -> i32 {
        self.device.unwrap_or(0)
    }

    /// Where it ends.
    pub fn end(&self) -> Addr {
        Addr(self.address.0.saturating_add(self.total_size))
    }
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockState {
    /// In use.
    ActiveAllocated,
    /// Let go by the user, but a stream still works on it.
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

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it begins. Files of 2022 and 2023 do not say; then it is the end of the block before.
    pub address: Addr,
    /// Its bytes, rounded as the allocator does.
    pub size: u64,
    /// Bytes that were asked for. Of a free block, what was asked for last.
    pub requested_size: MaybeU64,
    /// What it is.
    pub state: BlockState,
    /// Where in the program it was handed out; `None` without a key that tells.
    pub stack: Option<StackId>,
}
