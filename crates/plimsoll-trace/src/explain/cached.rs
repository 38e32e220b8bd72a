//! Finds which cached bytes can be released to the device: [`Releasing`].
//!
//! `torch.cuda.empty_cache` releases segments without a block, and whole pages of expandable segments without a block.
//! `empty_cache` waits for all streams first, so blocks that were waiting for a stream are cached by then. Private
//! pools keep their segments as long as something, such as a graph, uses the pool; a snapshot does not record that. In
//! PyTorch: `release_cached_blocks`, `release_blocks`.

use plimsoll_alloc::PoolId;

use super::state::{AllocatorState, SegmentState, Use};
use crate::snapshot::{PoolIndex, SegmentType, Snapshot};

/// The page size of small pools, in bytes.
const SMALL_PAGE_BYTES: u64 = 2 << 20;

/// Computes the memory that can be released under a recording's settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Releasing<'a> {
    snapshot: &'a Snapshot,
    large_page_bytes: u64,
}

/// The cached bytes of a segment, by whether they can be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedBytes {
    /// Bytes in memory that can be released completely: they can serve any request.
    pub reusable: u64,
    /// Bytes in memory of private pools that could be released completely. A pool keeps this memory as long as
    /// something, such as a CUDA graph, uses the pool.
    pub private: u64,
    /// Bytes next to blocks that are live or wait for a stream. These bytes serve only requests that fit between the
    /// blocks.
    pub pinned: u64,
}

impl CachedBytes {
    /// Adds two values, field by field.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            reusable: self.reusable.saturating_add(other.reusable),
            private: self.private.saturating_add(other.private),
            pinned: self.pinned.saturating_add(other.pinned),
        }
    }

    /// The sum of all fields.
    pub fn sum(self) -> u64 {
        self.reusable.saturating_add(self.private).saturating_add(self.pinned)
    }
}

impl<'a> Releasing<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, large_page_bytes: snapshot.config().large_segment_bytes() }
    }

    /// The cached bytes of one segment of a state.
    pub(super) fn cached(&self, state: &AllocatorState, segment: &SegmentState) -> CachedBytes {
        let whole = self.given_back(state, segment, |usage| usage == Use::Cached);
        let (reusable, private) = if self.is_private(segment.memory.pool) { (0, whole) } else { (whole, 0) };
        CachedBytes { reusable, private, pinned: segment.bytes.cached.saturating_sub(whole) }
    }

    /// The bytes that `empty_cache` releases: the minimum, and the maximum (if nothing uses the private pools).
    pub(super) fn by_empty_cache(&self, state: &AllocatorState) -> (u64, u64) {
        let is_free = |usage| !matches!(usage, Use::Live(_));
        let (mut least, mut most) = (0_u64, 0_u64);
        for segment in &state.segments {
            let bytes = self.given_back(state, segment, is_free);
            most = most.saturating_add(bytes);
            least = least.saturating_add(if self.is_private(segment.memory.pool) { 0 } else { bytes });
        }
        (least, most)
    }

    /// The number of bytes of a segment that can be released if pieces of these kinds of use count as free.
    fn given_back(
        &self,
        state: &AllocatorState,
        segment: &SegmentState,
        is_free: impl Fn(Use) -> bool,
    ) -> u64 {
        let memory = segment.memory;
        let page_bytes = match memory.segment_type {
            _ if !memory.is_expandable => memory.bytes,
            SegmentType::Small => SMALL_PAGE_BYTES,
            SegmentType::Large => self.large_page_bytes,
        };
        let (mut bytes, mut from, mut to, mut was_free) = (0_u64, 0, 0, true);
        let mut close = |from: u64, to: u64| {
            let pages = (to / page_bytes.max(1)).saturating_sub(from.div_ceil(page_bytes.max(1)));
            bytes = bytes.saturating_add(pages.saturating_mul(page_bytes));
        };
        for piece in state.pieces_of(segment) {
            // The uncut end of a block counts as free if the block does.
            let is_free = if piece.usage == Use::Uncut { was_free } else { is_free(piece.usage) };
            let at = piece.addr.0.saturating_sub(memory.addr.0);
            if is_free {
                from = if was_free { from } else { at };
                to = at.saturating_add(piece.bytes);
            } else if was_free {
                close(from, to);
            }
            was_free = is_free;
        }
        if was_free {
            close(from, to);
        }
        bytes
    }

    fn is_private(&self, pool: Option<PoolIndex>) -> bool {
        pool.is_some_and(|pool| self.snapshot.pools.get(pool) != PoolId::default())
    }
}
