//! One block and its life: held, waiting for the streams that used it, cached, held again.

use super::request::{DeviceStream, During};
use super::segment::PinnedState;
use crate::request::PoolId;

/// A block of pinned memory. Its address is its key in the allocator.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) bytes: u64,
    /// What its last holder asked for.
    pub(super) requested_bytes: u64,
    /// The pool that it was made for, for life.
    pub(super) pool: PoolId,
    /// How its last holder asked for it.
    pub(super) during: During,
    pub(super) state: State,
    /// Where its holder used it, each stream once, in the order of first use.
    pub(super) streams: Vec<DeviceStream>,
}

/// Where a block is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// A caller has it.
    Held,
    /// Given back; so many of its events are not known to be done.
    Waiting { events: usize },
    /// Given back, and nothing can tell when it is done with. It is never used again.
    Retired,
    /// Free, in its bucket.
    Cached,
}

impl Block {
    /// Notes a use; a stream counts once.
    pub(super) fn used_on(&mut self, on: DeviceStream) {
        if !self.streams.contains(&on) {
            self.streams.push(on);
        }
    }

    /// Notes that one of its events is done. Whether that was the last that it waited for.
    pub(super) fn event_is_done(&mut self) -> bool {
        match &mut self.state {
            State::Waiting { events } => {
                *events -= 1;
                *events == 0
            }
            State::Retired => false, // its other events could not be recorded
            other => panic!("an event is pending for a block that is {other:?}"),
        }
    }
}

impl State {
    /// As others see it.
    pub(super) fn seen(self) -> PinnedState {
        match self {
            Self::Held => PinnedState::Held,
            Self::Waiting { .. } => PinnedState::Waiting,
            Self::Retired => PinnedState::Retired,
            Self::Cached => PinnedState::Cached,
        }
    }
}
