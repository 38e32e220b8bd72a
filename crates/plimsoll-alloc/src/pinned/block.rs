//! A block and its states: allocated, waiting for the streams that used it, cached.

use super::request::{DeviceStream, During};
use super::segment::{PinnedSegment, PinnedState};
use crate::request::{Addr, PoolId};

/// A block of pinned memory. Its address is its key in the allocator.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) bytes: u64,
    /// The last requested size.
    pub(super) requested_bytes: u64,
    /// Its pool, which never changes.
    pub(super) pool: PoolId,
    /// Whether the last request came from a captured stream.
    pub(super) during: During,
    pub(super) state: HostBlockState,
    /// The streams that used it, each once, in the order of first use.
    pub(super) streams: Vec<DeviceStream>,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostBlockState {
    /// Allocated.
    Held,
    /// Freed, with this many pending events.
    Waiting { events: usize },
    /// Freed, but the end of its use cannot be determined. It is never reused.
    Retired,
    /// Cached in its bucket.
    Cached,
}

impl Block {
    /// The block at `addr`, for a snapshot.
    pub(super) fn seen(&self, addr: Addr) -> PinnedSegment {
        let Self { bytes, requested_bytes, pool, state, .. } = *self;
        PinnedSegment { addr, bytes, requested_bytes, pool, state: state.seen() }
    }

    /// Records a use; a stream counts once.
    pub(super) fn used_on(&mut self, on: DeviceStream) {
        if !self.streams.contains(&on) {
            self.streams.push(on);
        }
    }

    /// Records that one of its events is done. Returns whether it was the last one.
    pub(super) fn event_is_done(&mut self) -> bool {
        match &mut self.state {
            HostBlockState::Waiting { events } => {
                *events -= 1;
                *events == 0
            }
            HostBlockState::Retired => false, // its other events could not be recorded
            other => panic!("an event is pending for a block that is {other:?}"),
        }
    }
}

impl HostBlockState {
    /// The state in snapshots.
    pub(super) fn seen(self) -> PinnedState {
        match self {
            Self::Held => PinnedState::Held,
            Self::Waiting { .. } => PinnedState::Waiting,
            Self::Retired => PinnedState::Retired,
            Self::Cached => PinnedState::Cached,
        }
    }
}
