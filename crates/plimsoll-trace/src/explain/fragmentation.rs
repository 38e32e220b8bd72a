//! What keeps cached memory from being of use: [`Fragmentation`] at one moment, and over time.
//!
//! A hole is a cached piece. Its bytes serve a request of its own pool and stream that fits; every other request
//! needs the device's memory, and that comes back only if nothing else is in the segment, or on the page.

use std::collections::BTreeMap;

use plimsoll_alloc::StreamId;

use super::cached::{CachedBytes, Releasing};
use super::origin::Origins;
use super::purpose::{Purposes, ShownCategory};
use super::state::{AllocatorState, AllocatorStates, SegmentState, Use};
use crate::snapshot::{EventIndex, FrameId, LifeIndex, PoolIndex, SegmentType, Snapshot};
use crate::timeline::{Memory, Timeline};

/// The holes of one device at one moment, and what pins them.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragmentation {
    /// The moment; `None` is before the first event, one past the last the snapshot itself.
    pub after: Option<EventIndex>,
    /// All holes together.
    pub all: Holes,
    /// The holes by what can use them, in the order of the pools.
    pub pools: Vec<(PoolOfHoles, Holes)>,
    /// Segments with holes that blocks pin, that of the oldest block first.
    pub pins: Vec<Pin>,
    /// What `torch.cuda.empty_cache` would give back: at least, and at most, if nobody uses the private pools.
    pub empty_cache_bytes: (u64, u64),
}

/// Requests find holes only among those of their own kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolOfHoles {
    /// The pool, where it is told.
    pub pool: Option<PoolIndex>,
    /// Requests of which size.
    pub segment_type: SegmentType,
    /// Of which stream.
    pub stream: StreamId,
}

/// Some holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holes {
    /// The memory that they are in, bytes.
    pub reserved_bytes: u64,
    /// How many.
    pub count: usize,
    /// The largest, bytes.
    pub largest_bytes: u64,
    /// All of them, bytes, by what becomes of them.
    pub cached: CachedBytes,
}

impl Holes {
    /// How fragmented the memory is, from 0 to 1: cached bytes beside blocks ÷ bytes reserved. Nobody has
    /// those bytes, and nothing but a request that fits gets them. 0: everything is in use or could go back.
    pub fn fragmentation(&self) -> f64 {
        if self.reserved_bytes == 0 { 0.0 } else { self.cached.pinned as f64 / self.reserved_bytes as f64 }
    }

    fn add(&mut self, state: &AllocatorState, segment: &SegmentState, cached: CachedBytes) {
        self.reserved_bytes = self.reserved_bytes.saturating_add(segment.memory.bytes);
        self.cached = self.cached.plus(cached);
        for hole in state.pieces_of(segment).iter().filter(|piece| piece.usage == Use::Cached) {
            self.count += 1;
            self.largest_bytes = self.largest_bytes.max(hole.bytes);
        }
    }
}

/// A segment with cached bytes that cannot go back.
#[derive(Debug, Clone, PartialEq)]
pub struct Pin {
    /// The segment.
    pub memory: Memory,
    /// In blocks, held or waiting.
    pub held_bytes: u64,
    /// Cached beside them.
    pub pinned_bytes: u64,
    /// The blocks that hold it, the oldest first.
    pub blocks: Vec<PinningBlock>,
}

/// A block that pins a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PinningBlock {
    /// The block; `None` if it was let go before the recording.
    pub life: Option<LifeIndex>,
    /// Its bytes.
    pub bytes: u64,
    /// Whether it was let go, and waits for a stream.
    pub is_waiting: bool,
    /// The line that asked for it.
    pub line: Option<FrameId>,
    /// What it is for.
    pub category: ShownCategory,
    /// When it was asked for; `None` if it was there before the recording.
    pub born: Option<EventIndex>,
    /// Events since then, or since the recording began.
    pub age_events: usize,
    /// Steps that began since then, or since the recording began.
    pub age_steps: usize,
}

/// What is known of the blocks of a recording.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAnalysis<'a> {
    /// The recording.
    pub snapshot: &'a Snapshot,
    /// One device of it.
    pub timeline: &'a Timeline,
    /// Its lines.
    pub origins: &'a Origins,
    /// What its blocks are for.
    pub purposes: &'a Purposes,
}

impl Fragmentation {
    /// The fragmentation after an event. `steps` are the first events of the steps of training, ascending;
    /// none if they are not known.
    pub fn of(analysis: DeviceAnalysis<'_>, steps: &[EventIndex], after: Option<EventIndex>) -> Self {
        let state =
            AllocatorState::of(analysis.timeline, analysis.snapshot.trace(analysis.timeline.device), after);
        let releasing = Releasing::of(analysis.snapshot);
        let mut all = Holes::default();
        let (mut pools, mut pins) = (BTreeMap::new(), Vec::new());
        for segment in &state.segments {
            let cached = releasing.cached(&state, segment);
            let Memory { pool, segment_type, stream, .. } = segment.memory;
            let of_pool: &mut Holes = pools.entry(PoolOfHoles { pool, segment_type, stream }).or_default();
            of_pool.add(&state, segment, cached);
            all.add(&state, segment, cached);
            if cached.pinned > 0 {
                let pieces = state.pieces_of(segment).iter();
                let mut blocks: Vec<PinningBlock> = pieces
                    .filter_map(|piece| analysis.pinning_block(steps, after, piece.usage, piece.bytes))
                    .collect();
                blocks.sort_by_key(|pinning_block| (pinning_block.born, pinning_block.life));
                let held_bytes = segment.memory.bytes.saturating_sub(segment.bytes.cached);
                pins.push(Pin { memory: segment.memory, held_bytes, pinned_bytes: cached.pinned, blocks });
            }
        }
        pins.sort_by_key(|pin| pin.blocks.first().map(|oldest| (oldest.born, oldest.life)));
        let empty_cache_bytes = releasing.by_empty_cache(&state);
        Self { after, all, pools: pools.into_iter().collect(), pins, empty_cache_bytes }
    }

    /// The holes after some events, each with the event: at most as many moments as asked for, evenly spread
    /// over the recording, its end among them. Costs a walk over the blocks of each moment.
    pub fn over_time(
        snapshot: &Snapshot,
        timeline: &Timeline,
        moments: usize,
    ) -> Vec<(Option<EventIndex>, Holes)> {
        let trace = snapshot.trace(timeline.device);
        let releasing = Releasing::of(snapshot);
        let mut states = AllocatorStates::new(timeline, trace);
        let intervals = moments.saturating_sub(1).min(trace.len());
        let places =
            (0..=intervals).map(|nth| trace.len() - trace.len() * (intervals - nth) / intervals.max(1));
        let mut points = Vec::new();
        for place in places.take(moments) {
            let after = place.checked_sub(1).and_then(EventIndex::new);
            let state = states.at(after);
            let mut holes = Holes::default();
            for segment in &state.segments {
                holes.add(&state, segment, releasing.cached(&state, segment));
            }
            points.push((after, holes));
        }
        points
    }
}

impl DeviceAnalysis<'_> {
    fn pinning_block(
        &self,
        steps: &[EventIndex],
        after: Option<EventIndex>,
        usage: Use,
        bytes: u64,
    ) -> Option<PinningBlock> {
        let index = match usage {
            Use::Live(life) => Some(life),
            Use::Waiting(life) => life,
            Use::Uncut | Use::Cached => return None,
        };
        let life = index.map(|index| &self.timeline.lives[index.index()]);
        let born = life.and_then(|life| life.born);
        let until = |moment: Option<EventIndex>| moment.map_or(0, |event| event.index() + 1);
        let began = |moment| steps.partition_point(|&step| Some(step) <= moment);
        Some(PinningBlock {
            life: index,
            bytes,
            is_waiting: !matches!(usage, Use::Live(_)),
            line: self.origins.get(life.and_then(|life| life.stack)).line,
            category: index.zip(life).map_or(ShownCategory::Purpose(None), |(index, life)| {
                self.purposes.shown(index, life, self.origins).0
            }),
            born,
            age_events: until(after) - until(born).min(until(after)),
            age_steps: began(after) - began(born).min(began(after)),
        })
    }
}
