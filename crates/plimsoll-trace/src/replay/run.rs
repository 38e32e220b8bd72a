//! One replay: applies every event in order and compares each request.

use std::collections::BTreeMap;

use plimsoll_alloc::{
    Addr, Adoption, Allocation, BlockState, CacheLookup, Config, Piece, PieceState, PoolId, Request, TieOrder,
};

use super::state::ReplayState;
use super::{Divergence, Replay};
use crate::conformance::{Answer, Choice};
use crate::snapshot::{self, Action, Event, EventIndex, LifeIndex, MaybeU64, PoolIndex, Pools, Snapshot};
use crate::timeline::{Life, Timeline};

/// The owner of a block from before the recording.
#[derive(Debug, Clone, Copy)]
pub(super) enum Held {
    Life(LifeIndex),
    /// A block that waits for a stream, by its index in [`Timeline::waiting_before`].
    Waiting(usize),
}

pub(super) struct Run<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) trace: &'a [Event],
    pub(super) config: Config,
    pub(super) pools: &'a Pools,
    pub(super) state: ReplayState,
    /// For each [`Life`], its current allocation in our allocator.
    pub(super) held: Vec<Option<Allocation>>,
    /// Freed blocks that wait for a stream, by their [`Life`].
    waiting: BTreeMap<LifeIndex, plimsoll_alloc::Waiting>,
    pub(super) waiting_before: Vec<Option<plimsoll_alloc::Waiting>>,
    /// For each free gap, by the address at which it seems to begin: the address of the first block that was placed in
    /// the gap. The block below the gap ends at that address.
    pub(super) first_in_gap: BTreeMap<Addr, Addr>,
    pub(super) placed_before: usize,
    /// The request for which device memory was last allocated. The request is served from that memory, regardless of
    /// the rules for cached blocks.
    served_from_new: Option<usize>,
    /// The range of events that was last searched for the request that follows an event.
    looked_behind: (usize, usize),
    /// The last request for which it was checked whether it is a retry, and the result.
    known_retry: Option<(usize, bool)>,
    /// The request of the last conflict.
    last_conflict: Option<usize>,
    /// The size of the block of each [`Life`].
    pub(super) bytes: Vec<u64>,
    /// The sizes of blocks that were waiting before the recording.
    pub(super) waiting_bytes: Vec<u64>,
    pub(super) replay: Replay,
}

/// The result of a replay, with the sizes of the blocks.
pub(super) struct Outcome {
    pub(super) replay: Replay,
    pub(super) bytes: Vec<u64>,
    pub(super) waiting_bytes: Vec<u64>,
}

/// Replays the first `events` events.
pub(super) fn run(snapshot: &Snapshot, timeline: &Timeline, tie_order: TieOrder, events: usize) -> Outcome {
    let config = snapshot.config();
    let trace = snapshot.trace(timeline.device);
    let mut run = Run {
        timeline,
        trace: &trace[..timeline.quality.events.min(events).min(trace.len())],
        pools: &snapshot.pools,
        state: ReplayState::new(snapshot, config.clone(), tie_order),
        config,
        held: (0..timeline.lives.len()).map(|_| None).collect(),
        waiting: BTreeMap::new(),
        waiting_before: timeline.waiting_before.iter().map(|_| None).collect(),
        first_in_gap: first_in_gaps(timeline),
        placed_before: 0,
        served_from_new: Some(0), // the recording may begin between a device allocation and its request
        looked_behind: (0, 0),
        known_retry: None,
        last_conflict: None,
        bytes: timeline.lives.iter().map(|life| life.bytes).collect(),
        waiting_bytes: timeline.waiting_before.iter().map(|life| life.bytes).collect(),
        replay: Replay::nothing(tie_order),
    };
    run.begin();
    run.follow();
    run.replay.stray_segments = run.state.stray_segments;
    run.replay.ends_as_shown = run.ends_as(snapshot);
    Outcome { replay: run.replay, bytes: run.bytes, waiting_bytes: run.waiting_bytes }
}

/// For each block over 1 MiB that was allocated before the recording and freed in it: the first block placed at most 1
/// MiB above its end while it was live. The key is the end of the older block. So the space between the two blocks
/// belongs to the lower block.
fn first_in_gaps(timeline: &Timeline) -> BTreeMap<Addr, Addr> {
    const MOST_BYTES: u64 = 1 << 20;
    let before = &timeline.lives[..timeline.lives.partition_point(|life| life.born.is_none())];
    let is_inexact = |life: &&Life| life.freed.is_some() && life.bytes > MOST_BYTES;
    let end = |life: &Life| Addr(life.addr.0.saturating_add(life.bytes));
    let gaps: Vec<(Addr, Option<EventIndex>)> =
        before.iter().filter(is_inexact).map(|life| (end(life), life.freed)).collect();
    let Some(last) = gaps.iter().map(|&(_, freed)| freed).max() else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for life in timeline.lives[before.len()..].iter().take_while(|life| life.born < last) {
        let below = gaps.partition_point(|&(begins, _)| begins <= life.addr);
        if let Some(&(begins, freed)) = gaps[..below].last()
            && life.addr.0 - begins.0 <= MOST_BYTES
            && life.born < freed
        {
            found.entry(begins).or_insert(life.addr);
        }
    }
    found
}

impl Run<'_> {
    fn follow(&mut self) {
        let mut overtaken = self.timeline.overtaken.iter().copied().peekable();
        for nth in 0..self.trace.len() {
            let (event, index) = (&self.trace[nth], EventIndex::new(nth));
            while let Some(life) =
                overtaken.next_if(|life| self.timeline.lives[life.index()].completed <= index)
            {
                self.complete(life);
            }
            let life = index.and_then(|index| self.timeline.life_of(index));
            match (event.action, event.addr(), life) {
                (Action::Alloc, Some(addr), Some(life)) => self.alloc(nth, addr, life),
                (Action::FreeRequested, _, Some(life)) => self.free(nth, life),
                (Action::FreeCompleted, _, Some(life)) => self.complete(life),
                (Action::FreeCompleted, Some(addr), None) => self.complete_before(addr, index),
                (Action::SegmentAlloc, Some(_), _) => self.segment(nth),
                (Action::SegmentFree, Some(addr), _) => self.state.free_segment(addr, event.size),
                (Action::SegmentMap, Some(addr), _) => {
                    self.compare_need(nth);
                    self.state.map(addr, event.size);
                }
                (Action::SegmentUnmap, Some(addr), _) => self.state.unmap(addr, event.size),
                _ => {}
            }
        }
    }

    fn request(&self, nth: usize, addr: Addr) -> Request {
        let event = &self.trace[nth];
        Request { stream: event.stream, pool: self.pool_at(nth, addr), ..Request::of(event.size) }
    }

    /// The pool of an event.
    pub(super) fn pool_at(&self, nth: usize, addr: Addr) -> PoolId {
        self.pool(self.timeline.pools.at(self.trace[nth].pool, addr, nth))
    }

    pub(super) fn pool(&self, pool: Option<PoolIndex>) -> PoolId {
        pool.map_or(PoolId::DEFAULT, |pool| self.pools.get(pool))
    }

    #[inline]
    fn alloc(&mut self, nth: usize, addr: Addr, life: LifeIndex) {
        let request = self.request(nth, addr);
        self.replay.requests += 1;
        match self.state.allocator.start(request) {
            Ok(CacheLookup::Hit(ours)) if ours.addr() == addr => self.hold(life, ours),
            Ok(CacheLookup::Hit(ours)) => {
                let elsewhere = ours.addr();
                self.state.allocator.free(ours);
                if self.served_from_new == Some(nth) && self.is_retry(nth) {
                    self.put(request, addr, life);
                } else {
                    self.force(nth, request, addr, Some(elsewhere), life);
                }
            }
            Ok(CacheLookup::Miss(_)) if self.served_from_new == Some(nth) => {
                self.put(request, addr, life);
            }
            Ok(CacheLookup::Miss(_)) => self.force(nth, request, addr, None, life),
            Err(_) => self.replay.unplaced += 1,
        }
    }

    #[inline]
    fn hold(&mut self, life: LifeIndex, allocation: Allocation) {
        self.bytes[life.index()] = allocation.bytes();
        self.held[life.index()] = Some(allocation);
    }

    /// Counts a conflict, and puts our block at the recorded address.
    #[cold]
    fn force(&mut self, nth: usize, request: Request, addr: Addr, ours: Option<Addr>, life: LifeIndex) {
        self.conflict(nth, request, Answer::At(addr.0), Answer::of(ours.map(|addr| addr.0)));
        self.put(request, addr, life);
    }

    /// Places the block of a request at the recorded address.
    #[cold]
    fn put(&mut self, request: Request, addr: Addr, life: LifeIndex) {
        match self.state.allocator.malloc_with_address(request, addr) {
            Ok(allocation) => self.hold(life, allocation),
            Err(_) => self.replay.unplaced += 1,
        }
    }

    #[cold]
    fn conflict(&mut self, nth: usize, request: Request, theirs: Answer, ours: Answer) {
        if self.last_conflict.replace(nth) == Some(nth) {
            return; // already counted, when device memory was allocated for this request
        }
        self.replay.conflicts += 1;
        if let (None, Some(event)) = (&self.replay.first, EventIndex::new(nth)) {
            let explanation = self.state.allocator.explain(request).ok();
            let choice = explanation.map(|explanation| Choice { explanation, theirs, ours });
            let Request { bytes, stream, .. } = request;
            self.replay.first = Some(Divergence { event, bytes, stream, choice });
        }
    }

    #[inline]
    fn free(&mut self, nth: usize, life: LifeIndex) {
        let Some(allocation) = self.held[life.index()].take() else { return };
        let completes_next = EventIndex::new(nth + 1) == self.timeline.lives[life.index()].completed;
        if completes_next {
            self.state.allocator.free(allocation);
        } else if let Some(waiting) = self.state.allocator.free_later(allocation) {
            self.waiting.insert(life, waiting);
        }
    }

    #[inline]
    fn complete(&mut self, life: LifeIndex) {
        if let Some(allocation) = self.held[life.index()].take() {
            self.state.allocator.free(allocation);
        } else if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.remove(&life)
        {
            self.state.allocator.complete(waiting);
        }
    }

    /// Completes the free of a block that was waiting before the recording.
    fn complete_before(&mut self, addr: Addr, index: Option<EventIndex>) {
        let before = &self.timeline.waiting_before;
        let place = before.partition_point(|life| life.addr < addr);
        let is_it = before.get(place).is_some_and(|life| life.addr == addr && life.completed == index);
        if let Some(waiting) = self.waiting_before.get_mut(place).filter(|_| is_it).and_then(Option::take) {
            self.state.allocator.complete(waiting);
        }
    }

    /// The request for which device memory was allocated: the next `alloc`, if there are only other allocations of
    /// device memory before it.
    fn request_behind(&mut self, nth: usize) -> Option<(usize, Event)> {
        let (from, to) = self.looked_behind;
        if !(from <= nth && nth < to) {
            let maps =
                self.trace[nth + 1..].iter().take_while(|event| event.action == Action::SegmentMap).count();
            self.looked_behind = (nth, nth + 1 + maps);
        }
        let behind = self.looked_behind.1;
        let event = self.trace.get(behind).filter(|event| event.action == Action::Alloc)?;
        Some((behind, *event))
    }

    /// Checks that our allocator also needs device memory for the request after an event.
    fn compare_need(&mut self, nth: usize) -> Option<(usize, Request)> {
        let (behind, event) = self.request_behind(nth)?;
        self.served_from_new = Some(behind);
        let addr = event.addr()?;
        let request = self.request(behind, addr);
        if let Ok(CacheLookup::Hit(ours)) = self.state.allocator.start(request) {
            let found = ours.addr();
            self.state.allocator.free(ours);
            if self.is_retry(behind) {
                return None;
            }
            self.conflict(behind, request, Answer::At(addr.0), Answer::At(found.0));
        }
        Some((behind, request))
    }

    /// Whether the cache was released for a request, after the allocator had waited for blocks, which then became free.
    /// The allocator does not search these blocks: Note [No search after the release]. For the first event, this is
    /// unknown and assumed.
    fn is_retry(&mut self, nth: usize) -> bool {
        match self.known_retry {
            Some((known, is_retry)) if known == nth => is_retry,
            _ => {
                let is_retry = self.follows_release(nth);
                self.known_retry = Some((nth, is_retry));
                is_retry
            }
        }
    }

    fn follows_release(&self, nth: usize) -> bool {
        if nth == 0 {
            return true;
        }
        let (mut waited, mut released) = (false, false);
        for (nth, event) in self.trace[..nth].iter().enumerate().rev() {
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => {}
                Action::SegmentFree | Action::SegmentUnmap => released = true,
                Action::FreeCompleted if !self.completes_at_once(nth) => waited = true,
                _ => break,
            }
        }
        waited && released
    }

    fn completes_at_once(&self, nth: usize) -> bool {
        let life = EventIndex::new(nth).and_then(|index| self.timeline.life_of(index));
        let freed = life.and_then(|life| self.timeline.lives[life.index()].freed);
        nth > 0 && freed == EventIndex::new(nth - 1)
    }

    /// Applies the allocation of a segment.
    fn segment(&mut self, nth: usize) {
        let event = &self.trace[nth];
        if let Some((behind, request)) = self.compare_need(nth) {
            let needed_bytes = self.config.segment_bytes(self.config.block_bytes(request.bytes));
            if needed_bytes != event.size {
                self.conflict(behind, request, Answer::Untold, Answer::Untold);
            }
        }
        let memory = self.range_of(nth).filter(|&memory| self.state.claim(memory));
        let Some(memory) = memory else {
            self.state.stray_segments += 1;
            return;
        };
        let pieces = [Piece { bytes: memory.bytes, state: PieceState::Cached }];
        let adoption = Adoption { memory, page_bytes: None, pieces: &pieces };
        if self.state.allocator.adopt(&adoption).is_err() {
            self.state.memory.remove(&memory.addr);
            self.state.stray_segments += 1;
        }
    }

    /// Whether our blocks equal the blocks in the snapshot.
    fn ends_as(&self, snapshot: &Snapshot) -> bool {
        let here = snapshot.segments.iter().filter(|segment| segment.device() == self.timeline.device);
        let blocks = here.flat_map(|segment| &segment.blocks);
        let mut shown: Vec<_> =
            blocks.map(|block| (block.address, block.size, block.state, asked(block))).collect();
        shown.sort_unstable();
        let ours = self.state.allocator.segments();
        let ours: Vec<_> = ours.iter().flat_map(|segment| &segment.blocks).collect();
        let is_same =
            |(&(addr, bytes, state, asked), ours): (&(_, _, _, MaybeU64), &&plimsoll_alloc::SegmentBlock)| {
                let ours_state = match ours.state {
                    BlockState::Active => snapshot::BlockState::ActiveAllocated,
                    BlockState::Pending => snapshot::BlockState::ActivePendingFree,
                    BlockState::Cached => snapshot::BlockState::Inactive,
                };
                let asked = asked.get().is_none_or(|asked| asked == ours.requested_bytes);
                (addr, bytes, state) == (ours.addr, ours.bytes, ours_state) && asked
            };
        shown.len() == ours.len() && shown.iter().zip(&ours).all(is_same)
    }
}

/// The requested bytes of a live block. For a free block, the size has no meaning.
fn asked(block: &snapshot::Block) -> MaybeU64 {
    if block.state == snapshot::BlockState::Inactive { MaybeU64::ABSENT } else { block.requested_size }
}
