//! The segment that is pinned up front: [`Reserve`]. Small blocks are carved from it without a driver call.
//!
//! It is never refilled: the space of a released block is not reused. In
//! PyTorch: `PinnedReserveSegment`.

use crate::request::Addr;

/// Pieces are multiples of this, bytes.
pub(super) const PIECE_GRAIN_BYTES: u64 = 4096;

/// Whether there is a reserve. This is decided when the first block is needed; changing the options later has no effect.
#[derive(Debug)]
pub(super) enum Reserve {
    /// No block has been needed yet.
    Undecided,
    /// No reserve.
    None,
    /// The reserve.
    Segment { addr: Addr, bytes: u64, used_bytes: u64 },
}

impl Reserve {
    /// Carves a piece of at least `bytes`, if there is room.
    pub(super) fn carve(&mut self, bytes: u64) -> Option<Addr> {
        let Self::Segment { addr, bytes: all_bytes, used_bytes } = self else { return None };
        let piece_bytes = bytes.checked_next_multiple_of(PIECE_GRAIN_BYTES)?;
        if piece_bytes > *all_bytes - *used_bytes {
            return None;
        }
        let at = Addr(addr.0 + *used_bytes);
        *used_bytes += piece_bytes;
        Some(at)
    }

    /// Whether `at` is in the reserve.
    pub(super) fn owns(&self, at: Addr) -> bool {
        match *self {
            Self::Segment { addr, bytes, .. } => at >= addr && at.0 - addr.0 < bytes,
            Self::Undecided | Self::None => false,
        }
    }
}
