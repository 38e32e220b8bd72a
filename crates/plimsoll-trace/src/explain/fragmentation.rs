//! Why cached memory cannot be used: [`Fragmentation`] at one moment, and over time.
//!
//! A hole is a cached piece of a segment. It serves requests of the same pool and stream that fit into it. All other
//! requests need device memory, and a segment (or page) returns to the device only if it is entirely unused.

use std::collections::BTreeMap;

use plimsoll_alloc::StreamId;

use super::cached::{CachedBytes, Releasing};
use super::origin::Origins;
use super::purpose::ShownCategory;
use super::purposes::Purposes;
use super::state::{AllocatorState, AllocatorStates, SegmentState, Use};
use crate::snapshot::{EventIndex, FrameId, LifeIndex, PoolIndex, SegmentType, Snapshot};
use crate::timeline::{Memory, Timeline};

/// The holes of one device at one moment, and the blocks that pin them.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragmentation {
    /// The last event that this state includes. `None` stands for the state before the first event, and the index after
    /// the last event for the snapshot itself.
    pub after: Option<EventIndex>,
    /// The sum of all holes.
    pub all: Holes,
    /// The holes by the requests that can use them, in the order of the pools.
    pub pools: Vec<(PoolOfHoles, Holes)>,
    /// Segments with holes that live blocks pin, sorted by the age of the oldest block, oldest first.
    pub pins: Vec<Pin>,
    /// The bytes that `torch.cuda.empty_cache` would release: the minimum, and the maximum (if no graph uses the
    /// private pools).
    pub empty_cache_bytes: (u64, u64),
}

/// A kind of hole: a request finds only holes of its own kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolOfHoles {
    /// The pool, if known.
    pub pool: Option<PoolIndex>,
    /// Small or large requests.
    pub segment_type: SegmentType,
    /// The stream of the requests.
    pub stream: StreamId,
}

/// A set of holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holes {
    /// The bytes of the segments that contain the holes.
    pub reserved_bytes: u64,
    /// The number of holes.
    pub count: usize,
    /// The size of the largest hole, bytes.
    pub largest_bytes: u64,
    /// The bytes of the holes, by whether they can be released.
    pub cached: CachedBytes,
}

impl Holes {
    /// How fragmented the memory is, from 0 to 1: pinned cached bytes divided by reserved bytes. Pinned bytes serve
    /// only requests that fit into a hole. 0 means that all reserved memory is in use or can be released.
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

/// A segment whose cached bytes cannot be released.
#[derive(Debug, Clone, PartialEq)]
pub struct Pin {
    /// The segment.
    pub memory: Memory,
    /// Bytes in blocks that are live or wait for a stream.
    pub held_bytes: u64,
    /// Cached bytes next to these blocks.
    pub pinned_bytes: u64,
    /// The blocks that pin the segment, the oldest first.
    pub blocks: Vec<PinningBlock>,
}

/// A block that pins a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PinningBlock {
    /// The block; `None` if it was freed before the recording.
    pub life: Option<LifeIndex>,
    /// The bytes of the block.
    pub bytes: u64,
    /// Whether the block was freed, and waits for a stream.
    pub is_waiting: bool,
    /// The line that requested the block.
    pub line: Option<FrameId>,
    /// The category of the block.
    pub category: ShownCategory,
    /// The event that allocated the block; `None` if the block is older than the recording.
    pub born: Option<EventIndex>,
    /// The number of events since the block was allocated, or since the recording began.
    pub age_events: usize,
    /// The number of steps that began since the block was allocated, or since the recording began.
    pub age_steps: usize,
}

/// The input of the analysis of one device: the snapshot, and the findings so far.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAnalysis<'a> {
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// One device's blocks over time.
    pub timeline: &'a Timeline,
    /// The origin of each stack.
    pub origins: &'a Origins,
    /// The purpose of each block.
    pub purposes: &'a Purposes,
}

impl Fragmentation {
    /// The fragmentation after an event. `steps` are the first events of the training steps, in ascending order; empty
    /// if unknown.
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

    /// The holes after some events, each with its event: at most `moments` of them, evenly spread over the recording
    /// and including its end. Costs a walk over the blocks for each moment.
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
