//! The contents of the device's memory at any moment of a recording, piece by piece: [`AllocatorState`].
//!
//! A snapshot shows one moment. Earlier moments follow from the trace: segments change with their own events
//! ([`Timeline::memory_before`] and the events after it), blocks with their lifetimes, and the gaps between blocks are
//! cached. [`AllocatorStates`] visits many moments in one walk.

use std::ops::Range;

use plimsoll_alloc::Addr;

use crate::snapshot::{Event, EventIndex, LifeIndex, SegmentType};
use crate::timeline::{Memory, MemoryMap, Timeline};

/// The memory of one device at one moment. Every byte of a segment is in exactly one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatorState {
    /// The last event that this state includes. `None` stands for the state before the first event, and the index after
    /// the last event for the snapshot itself.
    pub after: Option<EventIndex>,
    /// The segments of the allocator, in address order.
    pub segments: Vec<SegmentState>,
    /// Blocks that are in no recorded segment, or overlap another block. In a file without segments, these are all blocks.
    pub unplaced: Vec<Piece>,
    /// The pieces of all segments, in address order.
    pieces: Vec<Piece>,
}

/// A segment, or a mapped range of an expandable segment, with its bytes by use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentState {
    /// The address, size, pool and stream of the segment.
    pub memory: Memory,
    /// The bytes of the segment by use. The sum is `memory.bytes`.
    pub bytes: BytesByUse,
    /// The indices of the segment's pieces in `AllocatorState::pieces`.
    pieces: Range<usize>,
}

/// Bytes by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BytesByUse {
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes in freed blocks that wait for a stream.
    pub waiting: u64,
    /// Bytes at the ends of blocks ([`Use::Uncut`]).
    pub uncut: u64,
    /// Bytes in no block.
    pub cached: u64,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The address of the piece.
    pub addr: Addr,
    /// The bytes of the piece.
    pub bytes: u64,
    /// The use of the piece.
    pub usage: Use,
}

/// The use of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A live block.
    Live(LifeIndex),
    /// A freed block that waits for a stream; `None` if it was freed before the recording.
    Waiting(Option<LifeIndex>),
    /// The end of the block below it: Note [Uncut ends].
    Uncut,
    /// Free, and available to requests.
    Cached,
}

// Note [Uncut ends]
// A block of a large segment (that is not expandable) is split only if more than 1 MiB is left (`should_split`). So
// every piece there is larger than 1 MiB, and a gap of up to 1 MiB after a block is the end of the block. By default, a
// block's size is assumed to be its rounded request (`Life::bytes`); a replay finds the exact sizes and leaves no such
// gap. If a hole follows the end of a block, the end counts as part of the hole. An end of more than 1 MiB, which
// occurs only with `max_split_size`, also counts as part of the hole.
const UNCUT_BYTES: u64 = 1 << 20;

impl SegmentState {
    /// Whether the segment has a live or waiting block. If so, PyTorch cannot release the segment.
    pub fn is_used(&self) -> bool {
        self.bytes.live > 0 || self.bytes.waiting > 0
    }
}

impl BytesByUse {
    fn of(pieces: &[Piece]) -> Self {
        let mut sums = Self::default();
        for piece in pieces {
            let sum = match piece.usage {
                Use::Live(_) => &mut sums.live,
                Use::Waiting(_) => &mut sums.waiting,
                Use::Uncut => &mut sums.uncut,
                Use::Cached => &mut sums.cached,
            };
            *sum = sum.saturating_add(piece.bytes);
        }
        sums
    }

    /// Adds two values, field by field.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            live: self.live.saturating_add(other.live),
            waiting: self.waiting.saturating_add(other.waiting),
            uncut: self.uncut.saturating_add(other.uncut),
            cached: self.cached.saturating_add(other.cached),
        }
    }

    /// The sum of all uses.
    pub fn sum(self) -> u64 {
        [self.live, self.waiting, self.uncut, self.cached].into_iter().fold(0, u64::saturating_add)
    }
}

impl AllocatorState {
    /// The state after an event. `trace` is the timeline's trace. Costs a walk over the events and blocks up to this
    /// event.
    ///
    /// ```
    /// # use plimsoll_alloc::{Addr, StreamId};
    /// # use plimsoll_trace::explain::{AllocatorState, Use};
    /// # use plimsoll_trace::snapshot::{Action, Event, EventIndex, Snapshot};
    /// # use plimsoll_trace::timeline::Timeline;
    /// let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
    /// let trace = vec![
    ///     event(Action::SegmentAlloc, 0x20_0000, 2 << 20),
    ///     event(Action::Alloc, 0x20_0000, 1000),
    ///     event(Action::FreeRequested, 0x20_0000, 1000),
    ///     event(Action::FreeCompleted, 0x20_0000, 1000),
    ///     event(Action::SegmentFree, 0x20_0000, 2 << 20),
    /// ];
    /// let timeline = Timeline::of(&Snapshot { traces: vec![trace.clone()], ..Snapshot::default() }, 0);
    /// let state = AllocatorState::of(&timeline, &trace, EventIndex::new(1));
    /// let pieces: Vec<_> = state.pieces().iter().map(|piece| (piece.bytes, piece.usage)).collect();
    /// assert_eq!(pieces[0].0, 1024);
    /// assert_eq!(pieces[1], ((2 << 20) - 1024, Use::Cached));
    /// ```
    pub fn of(timeline: &Timeline, trace: &[Event], after: Option<EventIndex>) -> Self {
        AllocatorStates::new(timeline, trace).at(after)
    }

    /// The pieces of all segments, in address order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces of one of these segments, in address order.
    pub fn pieces_of(&self, segment: &SegmentState) -> &[Piece] {
        self.pieces.get(segment.pieces.clone()).unwrap_or_default()
    }

    /// The bytes of all segments.
    pub fn reserved_bytes(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.memory.bytes))
    }

    /// The bytes of all segments by use.
    pub fn bytes(&self) -> BytesByUse {
        self.segments.iter().fold(BytesByUse::default(), |sum, segment| sum.plus(segment.bytes))
    }

    /// The bytes of blocks in no recorded segment.
    pub fn unplaced_bytes(&self) -> BytesByUse {
        BytesByUse::of(&self.unplaced)
    }
}

/// The states of one device at several moments, in order.
#[derive(Debug, Clone)]
pub struct AllocatorStates<'a> {
    timeline: &'a Timeline,
    trace: &'a [Event],
    memory: MemoryMap,
    /// The numbers of events and of blocks processed so far.
    events: usize,
    lives: usize,
    /// Live and waiting blocks, in address order.
    active: Vec<Active>,
}

/// A live or waiting block.
#[derive(Debug, Clone, Copy)]
struct Active {
    addr: Addr,
    bytes: u64,
    life: Option<LifeIndex>,
    freed: Option<EventIndex>,
    completed: Option<EventIndex>,
}

impl Active {
    fn is_after(&self, event: Option<EventIndex>) -> bool {
        self.completed.is_none_or(|completed| Some(completed) > event)
    }

    fn piece(&self, after: Option<EventIndex>) -> Piece {
        let usage = match self.life {
            Some(life) if self.freed.is_none_or(|freed| Some(freed) > after) => Use::Live(life),
            life => Use::Waiting(life),
        };
        Piece { addr: self.addr, bytes: self.bytes, usage }
    }
}

impl<'a> AllocatorStates<'a> {
    /// Begins before the first event. `trace` is the timeline's trace.
    pub fn new(timeline: &'a Timeline, trace: &'a [Event]) -> Self {
        let waiting = timeline.waiting_before.iter().map(|life| Active {
            addr: life.addr,
            bytes: life.bytes,
            life: None,
            freed: None,
            completed: life.completed,
        });
        let memory = MemoryMap::new(&timeline.memory_before);
        Self { timeline, trace, memory, events: 0, lives: 0, active: waiting.collect() }
    }

    /// The state after an event. Events must be given in ascending order: for an earlier event, this returns the last
    /// state again.
    pub fn at(&mut self, after: Option<EventIndex>) -> AllocatorState {
        let events = after.map_or(0, |event| event.index() + 1).min(self.trace.len());
        for nth in self.events..events {
            self.memory.follow(&self.trace[nth], nth, self.timeline);
        }
        self.events = self.events.max(events);

        self.active.retain(|active| active.is_after(after));
        let lives = self.timeline.lives.iter().enumerate().skip(self.lives);
        for (index, life) in lives.take_while(|(_, life)| life.born <= after) {
            self.lives = index + 1;
            let (addr, bytes, freed, completed) = (life.addr, life.bytes, life.freed, life.completed);
            let active = Active { addr, bytes, life: LifeIndex::new(index), freed, completed };
            if active.is_after(after) {
                self.active.push(active);
            }
        }
        self.active.sort_by_key(|active| active.addr);
        self.lay_out(after)
    }

    /// Places the live and waiting blocks in the segments.
    fn lay_out(&self, after: Option<EventIndex>) -> AllocatorState {
        let (mut segments, mut pieces, mut unplaced) = (Vec::new(), Vec::new(), Vec::new());
        let mut blocks = self.active.iter().map(|active| active.piece(after)).peekable();
        for memory in self.memory.iter() {
            let first = pieces.len();
            let mut from = memory.addr;
            while let Some(block) = blocks.next_if(|block| block.addr < memory.end()) {
                let end = block.addr.0.checked_add(block.bytes).map(Addr);
                let Some(end) = end.filter(|&end| from <= block.addr && end <= memory.end()) else {
                    unplaced.push(block);
                    continue;
                };
                pieces.extend(gap(memory, from, block.addr));
                pieces.push(block);
                from = end;
            }
            pieces.extend(gap(memory, from, memory.end()));
            let bytes = BytesByUse::of(&pieces[first..]);
            segments.push(SegmentState { memory: *memory, bytes, pieces: first..pieces.len() });
        }
        unplaced.extend(blocks);
        AllocatorState { after, segments, unplaced, pieces }
    }
}

/// The piece between two blocks.
fn gap(memory: &Memory, from: Addr, to: Addr) -> Option<Piece> {
    let bytes = to.0.saturating_sub(from.0);
    let is_cut = memory.is_expandable || memory.segment_type == SegmentType::Small;
    let is_uncut = !is_cut && bytes <= UNCUT_BYTES && from > memory.addr;
    let usage = if is_uncut { Use::Uncut } else { Use::Cached };
    (bytes > 0).then_some(Piece { addr: from, bytes, usage })
}
