//! Builds the blocks' lifetimes from the events, in one pass from the first event to the last: a table by address maps
//! an event to its block. A block that is not in the table existed before the recording; the final state of the
//! snapshot supplies everything else.

use hashbrown::HashMap;
use plimsoll_alloc::{Addr, Config};

use super::before::{memory_before, tell_types};
use super::pools::PoolsBySegment;
use super::ring::{self, RanOver};
use super::{EventIndex, Level, Life, LifeIndex, Moment, Quality, Timeline};
use crate::snapshot::{Action, Block, BlockState, Event, HOST_DEVICE, Segment, Snapshot, StackId};

/// The index of a lifetime while lifetimes are being collected. Lifetimes that began before the recording are in a
/// separate list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot(u32);

impl Slot {
    /// No lifetime: the block at this address was freed, or was waiting before the recording.
    const NONE: Self = Self(u32::MAX);
    const BEFORE: u32 = 1 << 31;
}

struct Builder<'a> {
    config: &'a Config,
    /// Whether sizes in the trace are block sizes rather than requested sizes.
    is_host: bool,
    /// The current or latest block at an address.
    at: HashMap<Addr, Slot>,
    before: Vec<Life>,
    born: Vec<Life>,
    waiting: Vec<Life>,
    concerns: Vec<Slot>,
    /// The indices of segment events.
    about_memory: Vec<u32>,
    overtaken: Vec<Slot>,
    /// The number of frees with the stack of their `alloc`, and of frees with another stack.
    frees_as_allocs: usize,
    frees_of_their_own: usize,
    /// Whether blocks from before the first event have stacks. If so, an earlier recording recorded them, and its
    /// events are lost.
    has_earlier: bool,
    quality: Quality,
}

/// Builds the timeline of one device from its segments and its trace.
pub(super) fn build(snapshot: &Snapshot, device: i32, segments: &[&Segment]) -> Timeline {
    let (trace, config) = (snapshot.trace(device), &snapshot.config());
    // Only as many events are used as there are indices, with one index left for the end.
    let trace = &trace[..trace.len().min(Slot::BEFORE as usize - 2)];
    let mut builder = Builder {
        config,
        is_host: device == HOST_DEVICE,
        at: HashMap::new(),
        before: Vec::new(),
        born: Vec::with_capacity(trace.len() / 3 + 1), // most lives have three events
        waiting: Vec::new(),
        concerns: Vec::with_capacity(trace.len()),
        about_memory: Vec::new(),
        overtaken: Vec::new(),
        frees_as_allocs: 0,
        frees_of_their_own: 0,
        has_earlier: false,
        quality: Quality { events: trace.len(), ..Quality::default() },
    };
    for (index, event) in (0..).map(EventIndex::new).zip(trace) {
        let slot = event.addr().map_or(Slot::NONE, |addr| builder.follow(index, event, addr));
        builder.concerns.push(slot);
    }
    let end = EventIndex::new(trace.len());
    builder.look_at(segments, end);
    let pools = PoolsBySegment::of(&snapshot.pools, segments, trace, &builder.about_memory);
    let ran_over = ring::ran_over(snapshot, trace);
    builder.finish(device, segments, trace, pools, ran_over)
}

impl Builder<'_> {
    /// Applies one event. Returns the lifetime to which the event belongs.
    fn follow(&mut self, index: Option<EventIndex>, event: &Event, addr: Addr) -> Slot {
        match event.action {
            Action::Alloc => {
                let slot = Slot(self.born.len() as u32);
                self.born.push(Life { born: index, ..self.life(event, addr) });
                if let Some(last) = self.at.insert(addr, slot) {
                    self.overtake(last, index);
                }
                slot
            }
            Action::FreeRequested => self.free(index, event, addr),
            Action::FreeCompleted => self.complete(index, event, addr),
            Action::Annotate => {
                let slot = self.at.get(&addr).copied().unwrap_or(Slot::NONE);
                if let Some(life) = self.get_mut(slot) {
                    life.user_metadata = event.user_metadata;
                }
                slot
            }
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                self.about_memory.push(self.concerns.len() as u32);
                Slot::NONE
            }
            Action::Snapshot | Action::Oom => Slot::NONE,
        }
    }

    fn life(&self, event: &Event, addr: Addr) -> Life {
        Life {
            addr,
            bytes: if self.is_host { event.size } else { self.config.block_bytes(event.size) },
            requested_bytes: event.size.into(),
            stream: event.stream,
            born: None,
            freed: None,
            completed: None,
            stack: event.stack,
            compile_context: event.compile_context,
            user_metadata: event.user_metadata,
            pool: event.pool,
            category: event.category,
        }
    }

    fn get_mut(&mut self, slot: Slot) -> Option<&mut Life> {
        match slot {
            Slot::NONE => None,
            Slot(nth) if nth >= Slot::BEFORE => self.before.get_mut((nth - Slot::BEFORE) as usize),
            Slot(nth) => self.born.get_mut(nth as usize),
        }
    }

    fn add_before(&mut self, life: Life) -> Slot {
        let slot = Slot(Slot::BEFORE + self.before.len() as u32);
        self.before.push(life);
        slot
    }

    fn free(&mut self, index: Option<EventIndex>, event: &Event, addr: Addr) -> Slot {
        let Some(&slot) = self.at.get(&addr) else {
            let slot = self.add_before(Life { freed: index, ..self.life(event, addr) });
            self.at.insert(addr, slot);
            return slot;
        };
        let Some(life) = self.get_mut(slot).filter(|life| life.freed.is_none()) else {
            self.quality.stray_frees += 1;
            return Slot::NONE;
        };
        life.freed = index;
        if life.stack == event.stack {
            self.frees_as_allocs += usize::from(event.stack.is_some_and(|stack| stack != StackId::EMPTY));
        } else {
            self.frees_of_their_own += 1;
        }
        slot
    }

    fn complete(&mut self, index: Option<EventIndex>, event: &Event, addr: Addr) -> Slot {
        let last = self.concerns.last().copied().unwrap_or(Slot::NONE);
        let is_next = self.get_mut(last).is_some_and(|life| life.addr == addr);
        let slot = if is_next { Some(last) } else { self.at.get(&addr).copied() };
        let Some(slot) = slot else {
            self.waiting.push(Life { completed: index, ..self.life(event, addr) });
            self.at.insert(addr, Slot::NONE);
            return Slot::NONE;
        };
        let Some(life) = self.get_mut(slot).filter(|life| life.completed.is_none()) else {
            self.quality.stray_frees += 1;
            return Slot::NONE;
        };
        life.freed = life.freed.or(index);
        life.completed = index;
        slot
    }

    /// Ends a lifetime whose end was not recorded, because another block is now at the address.
    fn overtake(&mut self, slot: Slot, index: Option<EventIndex>) {
        if self.end(slot, index) {
            self.overtaken.push(slot);
        }
    }

    /// Ends a lifetime, unless it has already ended.
    fn end(&mut self, slot: Slot, index: Option<EventIndex>) -> bool {
        let Some(life) = self.get_mut(slot).filter(|life| life.completed.is_none()) else { return false };
        life.freed = life.freed.or(index);
        life.completed = index;
        self.quality.lost_frees += 1;
        true
    }

    /// Compares the lifetimes with the final state of the snapshot. The final state also shows the sizes of blocks, and
    /// the blocks that were live throughout the recording.
    fn look_at(&mut self, segments: &[&Segment], end: Option<EventIndex>) {
        for segment in segments {
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                self.look_at_block(segment, block, end);
            }
        }
        let rest: Vec<Slot> = std::mem::take(&mut self.at).into_values().collect();
        for slot in rest {
            self.end(slot, end);
        }
    }

    fn look_at_block(&mut self, segment: &Segment, block: &Block, end: Option<EventIndex>) {
        let is_held = block.state == BlockState::ActiveAllocated;
        let shown = Life {
            addr: block.address,
            bytes: block.size,
            requested_bytes: block.requested_size,
            stream: segment.stream,
            born: None,
            freed: None,
            completed: None,
            stack: block.stack,
            compile_context: None,
            user_metadata: None,
            pool: segment.pool,
            category: None,
        };
        let Some(slot) = self.at.remove(&block.address) else {
            self.has_earlier |= block.stack.is_some_and(|stack| stack != StackId::EMPTY);
            if is_held {
                self.add_before(shown);
            } else {
                self.waiting.push(shown);
            }
            return;
        };
        let is_it = |life: &&mut Life| {
            let asked = life.requested_bytes.get().zip(block.requested_size.get());
            life.completed.is_none() && life.freed.is_none() == is_held && asked.is_none_or(|(a, b)| a == b)
        };
        if let Some(life) = self.get_mut(slot).filter(is_it) {
            life.bytes = block.size;
            // With `context="state"`, blocks have stacks and events have none.
            life.stack = life.stack.or(block.stack);
        } else {
            self.end(slot, end);
            self.quality.lost_allocs += 1;
            if is_held {
                self.born.push(Life { born: end, ..shown });
            }
        }
    }

    fn finish(
        mut self,
        device: i32,
        segments: &[&Segment],
        trace: &[Event],
        pools: PoolsBySegment,
        ran_over: RanOver,
    ) -> Timeline {
        self.quality.held_before = self.before.len();
        self.tell_stacks_of_frees();
        self.quality.is_cut = ran_over == RanOver::Said || self.has_earlier && ran_over == RanOver::Shown;
        self.quality.is_restarted = self.has_earlier && !self.quality.is_cut;
        let frees_have_stacks = self.frees_of_their_own > 0;
        for life in self.born.iter_mut().chain(&mut self.before) {
            let seen = life.born.or(life.freed).map_or(trace.len(), EventIndex::index);
            life.pool = pools.at(life.pool, life.addr, seen);
        }
        let (mut memory_before, stray_segments) = memory_before(segments, trace, &self.about_memory, &pools);
        self.quality.stray_segments = stray_segments;
        let reserved_bytes =
            memory_before.iter().fold(0, |sum: u64, memory| sum.saturating_add(memory.bytes));

        let mut order: Vec<u32> = (0..self.before.len() as u32).collect();
        order.sort_by_key(|&nth| self.before[nth as usize].addr);
        let mut place = vec![0; order.len()];
        for (at, &nth) in order.iter().enumerate() {
            place[nth as usize] = at as u32;
        }
        let index = |slot: Slot| match slot {
            Slot::NONE => None,
            Slot(nth) if nth >= Slot::BEFORE => LifeIndex::new(place[(nth - Slot::BEFORE) as usize] as usize),
            Slot(nth) => LifeIndex::new(place.len() + nth as usize),
        };
        let concerns = self.concerns.iter().map(|&slot| index(slot)).collect();
        let overtaken = self.overtaken.iter().filter_map(|&slot| index(slot)).collect();
        self.before.sort_by_key(|life| life.addr);
        let lives = if self.before.is_empty() {
            self.born
        } else {
            self.before.append(&mut self.born);
            self.before
        };
        self.waiting.sort_by_key(|life| life.addr);
        tell_types(&mut memory_before, segments, &lives, self.config.large_segment_bytes());

        let mut timeline = Timeline {
            device,
            lives,
            waiting_before: self.waiting,
            memory_before,
            start: Level { reserved_bytes, ..Level::default() },
            peak_allocated: Moment::default(),
            peak_reserved: Moment::default(),
            quality: self.quality,
            frees_have_stacks,
            concerns,
            strays: Vec::new(),
            pools,
            overtaken,
        };
        timeline.sum_up(trace);
        timeline
    }

    /// A free has either the stack of its `alloc` or its own, depending on the recording's setting. Only in the first
    /// case does the stack of a free describe a block from before the recording; then it also shows that the block's
    /// `alloc` had been recorded.
    fn tell_stacks_of_frees(&mut self) {
        let is_of_alloc = self.frees_as_allocs > 0 && self.frees_of_their_own == 0;
        for life in self.before.iter_mut().filter(|life| life.freed.is_some()) {
            if is_of_alloc {
                self.has_earlier |= life.stack.is_some_and(|stack| stack != StackId::EMPTY);
            } else {
                life.stack = None;
            }
        }
    }
}
