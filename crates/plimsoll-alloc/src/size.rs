//! The fixed sizes of PyTorch's allocator, and the half of a pool for a size: [`PoolKind`].
//!
//! `rounding.rs` rounds a request under an allocator's options.

use std::fmt;

/// Every block's size is a multiple of this (`kMinBlockSize`).
pub(crate) const MIN_BLOCK_BYTES: u64 = 512;
/// Blocks up to this size are in the small half of a pool. In the large half, only a remainder larger than this is
/// split off (`kSmallSize`).
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
/// The size of a segment in the small half (`kSmallBuffer`).
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The default size of a segment in the large half that several blocks share (`kLargeBuffer`).
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// Blocks of at least this size get their own segment (`kMinLargeAlloc`). It does not depend on
/// `large_segment_bytes`.
pub(crate) const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
/// Sizes of such segments are rounded up to a multiple of this (`kRoundLarge`), which is also the granularity of real
/// devices.
pub(crate) const SEGMENT_GRAIN_BYTES: u64 = 2 << 20;
/// Requests of at least this size are rejected immediately.
pub(crate) const ONE_EXBIBYTE: u64 = 1 << 60;

/// The half of a pool that a block belongs to. It never changes.
///
/// ```
/// # use plimsoll_alloc::PoolKind;
/// assert_eq!(PoolKind::Small.to_string(), "small_pool");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Blocks up to 1 MiB, cut from segments of 2 MiB.
    Small,
    /// Larger blocks.
    Large,
}

impl PoolKind {
    /// PyTorch's name, as in the keys of its statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small_pool",
            Self::Large => "large_pool",
        }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The half of a pool for a block size.
pub(crate) fn kind_of(block_bytes: u64) -> PoolKind {
    if block_bytes <= SMALL_BYTES { PoolKind::Small } else { PoolKind::Large }
}
