//! Replays a recording through our allocator and compares the address of each block: [`Replay`].
//!
//! The device's actions come from the recording: segments and pages are added and removed when the recording says so
//! (`state.rs`); `start.rs` builds the initial state. Each request is served by our allocator's own search, from a
//! cache that our allocator has split and merged itself, and the address is compared with the recorded address. So a
//! single wrong rule shows at the first block that it places elsewhere. Each difference is counted, and our block is
//! moved to the recorded address, so that later requests can still be compared.
//!
//! A replay also finds figures that the trace lacks: the exact sizes of blocks that kept an unsplit remainder. These
//! sizes are written into the timeline, so that its sums equal PyTorch's.

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
    /// The number of requests that were replayed.
    pub requests: usize,
    /// The number of requests for which our allocator would have decided differently.
    pub conflicts: usize,
    /// The first of these requests, with the reason.
    pub first: Option<Divergence>,
    /// Blocks that could not be placed at the recorded address, because another block is there, or no segment.
    pub unplaced: usize,
    /// Segment events that could not be applied.
    pub stray_segments: usize,
    /// Whether, at the end of the replay, all blocks are as in the snapshot.
    pub ends_as_shown: bool,
    /// The number of blocks from before the recording whose size is known only to within 1 MiB. These blocks are
    /// counted with the smallest possible size.
    pub inexact: usize,
    /// The most bytes that these blocks may have in addition. The sums may be too low by this amount.
    pub inexact_bytes: u64,
    /// Which of several equal blocks the recorded allocator used first. Usually this comes from the file. But if the
    /// order from the file led to conflicts early in the recording, and the opposite order to fewer, the opposite order
    /// is used.
    pub tie_order: TieOrder,
}

/// The number of events that are replayed to find the order of equal blocks: a wrong order causes differences early or
/// never.
const TRIAL_EVENTS: usize = 1 << 17;

/// The first request for which our allocator would have decided differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The `alloc` event of the request.
    pub event: EventIndex,
    /// The requested bytes.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The candidate blocks, and the block that each allocator used. If both used the same address, they differ in
    /// device memory: the recorded allocator requested device memory that our allocator would not have needed, or of a
    /// different size.
    pub choice: Option<Choice>,
}

impl Replay {
    /// Replays the recording of the timeline's device, and writes the sizes that it finds into the timeline. Does
    /// nothing for pinned host memory, which another allocator manages. Costs a few hundred nanoseconds per request.
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

    /// Whether every request got the recorded address, and at the end, all blocks are as in the snapshot.
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
