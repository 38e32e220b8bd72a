//! A recording replayed through our allocator: does it land every block where PyTorch did? [`Replay`].
//!
//! The device's part is taken from the record: segments and pages come and go when it says so (`state.rs`,
//! begun in `start.rs`). Each request is then served by our allocator's own search, from a cache that was
//! cut and merged by it, and compared with where the recorded one landed: so a single wrong rule shows at the
//! first block that it moves. Where the two differ, it is counted and ours is put where theirs was, so that
//! what follows can be compared again.
//!
//! A replay also tells what the trace does not: blocks' exact sizes, where the rest of a cached block was not
//! worth a block of its own. They are written into the timeline, whose sums are then PyTorch's own.

mod run;
mod start;
mod state;

use plimsoll_alloc::{StreamId, TieOrder};

use crate::conformance::Choice;
use crate::snapshot::{EventIndex, HOST_DEVICE, Snapshot};
use crate::timeline::Timeline;

/// What replaying one device's recording found.
///
/// ```
/// use plimsoll_alloc::{Addr, StreamId};
/// use plimsoll_trace::replay::Replay;
/// use plimsoll_trace::snapshot::{Action, Event, Snapshot};
/// use plimsoll_trace::timeline::Timeline;
///
/// let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
/// let trace = vec![
///     event(Action::SegmentAlloc, 0x700_0000_0000, 20 << 20),
///     event(Action::Alloc, 0x700_0000_0000, 3 << 20),
///     event(Action::Alloc, 0x700_0030_0000, 9 << 20),
/// ];
/// let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
/// let mut timeline = Timeline::of(&snapshot, 0);
/// let replay = Replay::of(&snapshot, &mut timeline);
/// assert_eq!((replay.requests, replay.conflicts), (2, 0));
/// assert!(!replay.ends_as_shown); // the snapshot has no segment at all
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Requests that were replayed.
    pub requests: usize,
    /// Those on which ours would have decided otherwise.
    pub conflicts: usize,
    /// The first of them, and why.
    pub first: Option<Divergence>,
    /// Blocks that could not be put where the record has them: something else is there, or no memory.
    pub unplaced: usize,
    /// Events about memory of the device that could not be followed.
    pub stray_segments: usize,
    /// Whether every block at the end is as the snapshot shows it.
    pub ends_as_shown: bool,
    /// Blocks from before the recording of which the size is known up to 1 MiB only; it is counted at its
    /// least.
    pub inexact: usize,
    /// What they may have together beyond what is counted, bytes: for so much the sums may be too low.
    pub inexact_bytes: u64,
    /// Which of equal blocks the recorded allocator took first: by what the file tells, or if that led to
    /// conflicts early in the recording, and the other to fewer there, the other.
    pub tie_order: TieOrder,
}

/// A wrong order among equal blocks shows early, if it shows at all: so many events tell which is right.
const TRIAL_EVENTS: usize = 1 << 17;

/// The first request on which ours would have decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The request's `alloc`.
    pub event: EventIndex,
    /// What it asked for, bytes.
    pub bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// What there was to choose from, and what each took. If both took the same, the recorded one had asked
    /// the device for memory that ours would not have needed, or for another amount.
    pub choice: Option<Choice>,
}

impl Replay {
    /// Replays the recording of the timeline's device, and writes what sizes it finds into the timeline.
    /// Pinned host memory has another allocator and is left alone. Costs some hundred nanoseconds a request.
    pub fn of(snapshot: &Snapshot, timeline: &mut Timeline) -> Self {
        let config = snapshot.config();
        if timeline.device == HOST_DEVICE {
            return Self::nothing(config.tie_order());
        }
        let told = config.tie_order();
        let mut best = run::run(snapshot, timeline, told, usize::MAX);
        if best.replay.first.as_ref().is_some_and(|first| first.event.index() < TRIAL_EVENTS) {
            let other = match told {
                TieOrder::RegistrationCounter => TieOrder::Address,
                TieOrder::Address => TieOrder::RegistrationCounter,
            };
            let trial = |order| run::run(snapshot, timeline, order, TRIAL_EVENTS).replay.conflicts;
            if trial(other) < trial(told) {
                best = run::run(snapshot, timeline, other, usize::MAX);
            }
        }
        for (life, bytes) in timeline.lives.iter_mut().zip(best.bytes) {
            life.bytes = bytes;
        }
        for (life, bytes) in timeline.waiting_before.iter_mut().zip(best.waiting_bytes) {
            life.bytes = bytes;
        }
        timeline.sum_up(snapshot.trace(timeline.device));
        best.replay
    }

    /// Whether every request landed where it was recorded, and everything ends as the snapshot shows.
    pub fn is_identical(&self) -> bool {
        self.conflicts == 0 && self.unplaced == 0 && self.stray_segments == 0 && self.ends_as_shown
    }

    fn nothing(tie_order: TieOrder) -> Self {
        Self {
            requests: 0,
            conflicts: 0,
            first: None,
            unplaced: 0,
            stray_segments: 0,
            ends_as_shown: false,
            inexact: 0,
            inexact_bytes: 0,
            tie_order,
        }
    }
}
