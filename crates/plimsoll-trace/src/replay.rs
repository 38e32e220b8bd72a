//! Replays a recording through our allocator and compares where each block lands: [`Replay`].
//!
//! The device's part comes from the recording: segments and pages come and go when it says so (`state.rs`; the
//! initial state is built in `start.rs`). Each request is served by our allocator's own search, from a cache that it
//! has split and merged itself, and compared with the recorded address. So a single wrong rule shows at the first
//! block that it moves. A difference is counted, and our block is put at the recorded address, so that later requests
//! can still be compared.
//!
//! A replay also finds what the trace lacks: the exact sizes of blocks that kept an unsplit rest. They are written
//! into the timeline, whose sums then equal PyTorch's.

mod run;
mod start;
mod state;

use plimsoll_alloc::{StreamId, TieOrder};

use crate::conformance::Choice;
use crate::snapshot::{EventIndex, HOST_DEVICE, Snapshot};
use crate::timeline::Timeline;

/// The result of replaying one device's recording.
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
    /// Requests for which our allocator would have decided differently.
    pub conflicts: usize,
    /// The first of them, with the reason.
    pub first: Option<Divergence>,
    /// Blocks that could not be put at the recorded address: another block is there, or no segment.
    pub unplaced: usize,
    /// Segment events that could not be applied.
    pub stray_segments: usize,
    /// Whether all blocks at the end are as the snapshot shows them.
    pub ends_as_shown: bool,
    /// Blocks from before the recording whose size is known only to within 1 MiB. They are counted with the smallest
    /// possible size.
    pub inexact: usize,
    /// The most bytes that these blocks may have in addition: by so much the sums may be too low.
    pub inexact_bytes: u64,
    /// Which of several equal blocks the recorded allocator took first. Usually what the file shows; the other order
    /// if that one had conflicts early in the recording and the other had fewer.
    pub tie_order: TieOrder,
}

/// A wrong order shows early, if at all: this many events decide.
const TRIAL_EVENTS: usize = 1 << 17;

/// The first request for which our allocator would have decided differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// Its `alloc` event.
    pub event: EventIndex,
    /// The requested bytes.
    pub bytes: u64,
    /// Its stream.
    pub stream: StreamId,
    /// The candidates, and what each allocator took. If both took the same, the recorded one had requested memory of
    /// the device that ours would not have needed, or of another size.
    pub choice: Option<Choice>,
}

impl Replay {
    /// Replays the recording of the timeline's device, and writes the sizes that it finds into the timeline. Does
    /// nothing for pinned host memory, which has another allocator. Costs some hundred nanoseconds for each request.
    pub fn of(snapshot: &Snapshot, timeline: &mut Timeline) -> Self {
        let config = snapshot.config();
        if timeline.device == HOST_DEVICE {
            return Self::nothing(config.tie_order());
        }
        let given = config.tie_order();
        let mut best = run::run(snapshot, timeline, given, usize::MAX);
        if best.replay.first.as_ref().is_some_and(|first| first.event.index() < TRIAL_EVENTS) {
            let other = match given {
                TieOrder::RegistrationCounter => TieOrder::Address,
                TieOrder::Address => TieOrder::RegistrationCounter,
            };
            let trial = |order| run::run(snapshot, timeline, order, TRIAL_EVENTS).replay.conflicts;
            if trial(other) < trial(given) {
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

    /// Whether every request landed at the recorded address, and all blocks end as the snapshot shows them.
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
