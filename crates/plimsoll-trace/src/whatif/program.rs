//! A recording as a program for any allocator: [`Program`]. Blocks have reusable slots, so a simulation needs only as
//! many slots as there are live blocks at the same time.

use plimsoll_alloc::{PoolId, StreamId};

use crate::pressure::{Cause, releases};
use crate::snapshot::{Action, Event, EventIndex, LifeIndex, PoolIndex, Snapshot};
use crate::timeline::{Life, Timeline};

/// The slot of a live block.
pub(super) type Place = u32;

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Alloc {
        place: Place,
        pool: Option<PoolIndex>,
        bytes: u64,
        stream: StreamId,
        at: Option<EventIndex>,
    },
    Free(Place),
    /// The block is freed, and waits for a stream.
    FreeLater(Place),
    Complete(Place),
    /// The program released the cache.
    EmptyCache,
    /// A request that failed in the recording. If the simulation serves the request, the block is freed immediately.
    Failed {
        pool: Option<PoolIndex>,
        bytes: u64,
        stream: StreamId,
    },
}

pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// The number of slots.
    pub(super) places: usize,
    /// Every private pool.
    pub(super) pools: Vec<PoolId>,
    /// The most bytes in use at one time, with each request rounded to 512 bytes.
    pub(super) packed_bytes: u64,
    /// How often the recorded allocator seems to have retried a request.
    pub(super) retries: usize,
    /// The number of recorded requests.
    pub(super) requests: usize,
}

struct Writer<'a> {
    timeline: &'a Timeline,
    steps: Vec<Step>,
    /// The slot of each block lifetime that has a slot.
    place_of: Vec<Place>,
    free_places: Vec<Place>,
    places: Place,
    in_use_bytes: u64,
    packed_bytes: u64,
    retries: usize,
    requests: usize,
}

const NOWHERE: Place = Place::MAX;

impl Program {
    pub(super) fn of(snapshot: &Snapshot, timeline: &Timeline) -> Self {
        let trace = snapshot.trace(timeline.device);
        let mut writer = Writer {
            timeline,
            steps: Vec::with_capacity(trace.len()),
            place_of: vec![NOWHERE; timeline.lives.len()],
            free_places: Vec::new(),
            places: 0,
            in_use_bytes: 0,
            packed_bytes: 0,
            retries: 0,
            requests: 0,
        };
        let before = timeline.lives.iter().take_while(|life| life.born.is_none()).count();
        (0..before).filter_map(LifeIndex::new).for_each(|life| writer.alloc(life));
        let mut overtaken = timeline.overtaken.iter().copied().peekable();
        let mut releases = releases(snapshot, timeline).into_iter().peekable();
        for (nth, event) in trace.iter().enumerate().take(timeline.quality.events) {
            let index = EventIndex::new(nth);
            while let Some(lost) = overtaken.next_if(|lost| timeline.lives[lost.index()].completed <= index) {
                writer.free(lost);
            }
            let life = index.and_then(|index| timeline.life_of(index));
            writer.write(nth, event, life);
            if let Some(release) = releases.next_if(|release| release.last == nth) {
                writer.release(release.cause);
            }
        }
        Self {
            steps: writer.steps,
            places: writer.places as usize,
            pools: snapshot.pools.iter().collect(),
            packed_bytes: writer.packed_bytes,
            retries: writer.retries,
            requests: writer.requests,
        }
    }
}

impl Writer<'_> {
    fn write(&mut self, nth: usize, event: &Event, life: Option<LifeIndex>) {
        match (event.action, life) {
            (Action::Alloc, Some(life)) => {
                self.requests += 1;
                self.alloc(life);
            }
            (Action::FreeRequested, Some(life)) => {
                let completed = self.timeline.lives[life.index()].completed;
                if completed == EventIndex::new(nth + 1) {
                    self.free(life);
                } else if self.place_of[life.index()] != NOWHERE {
                    self.steps.push(Step::FreeLater(self.place_of[life.index()]));
                }
            }
            (Action::FreeCompleted, Some(life)) => self.free(life),
            (Action::Oom, _) => {
                let &Event { pool, size: bytes, stream, .. } = event;
                self.retries += 1;
                self.requests += 1;
                self.steps.push(Step::Failed { pool, bytes, stream });
            }
            _ => {}
        }
    }

    /// Repeats a release of the cache, if the program itself caused it. Other releases are not repeated: the simulated
    /// device rejects requests itself, which makes its allocator release memory.
    fn release(&mut self, cause: Cause) {
        match cause {
            Cause::EmptyCache | Cause::Unclear => self.steps.push(Step::EmptyCache),
            Cause::Retry { .. } => self.retries += 1,
            Cause::Oversize { .. } | Cause::GarbageCollection | Cause::Failure => {}
        }
    }

    fn alloc(&mut self, life: LifeIndex) {
        let &Life { requested_bytes, bytes, stream, pool, born: at, .. } = &self.timeline.lives[life.index()];
        let bytes = requested_bytes.get().unwrap_or(bytes);
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.places += 1;
            self.places - 1
        });
        self.place_of[life.index()] = place;
        self.steps.push(Step::Alloc { place, pool, bytes, stream, at });
        self.in_use_bytes = self.in_use_bytes.saturating_add(rounded(bytes));
        self.packed_bytes = self.packed_bytes.max(self.in_use_bytes);
    }

    /// Frees the block of a lifetime. The block is live or waiting.
    fn free(&mut self, life: LifeIndex) {
        let place = std::mem::replace(&mut self.place_of[life.index()], NOWHERE);
        if place == NOWHERE {
            return;
        }
        let it = &self.timeline.lives[life.index()];
        let waits =
            matches!(it.freed.zip(it.completed), Some((freed, done)) if done.index() > freed.index() + 1);
        self.steps.push(if waits { Step::Complete(place) } else { Step::Free(place) });
        self.free_places.push(place);
        let bytes = it.requested_bytes.get().unwrap_or(it.bytes);
        self.in_use_bytes = self.in_use_bytes.saturating_sub(rounded(bytes));
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(512).unwrap_or(u64::MAX)
}
