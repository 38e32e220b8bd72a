//! What happened, kept for later: [`History`], a ring of the latest entries.
//!
//! It listens to events as the statistics do, and is off until [`History::record`]: then an event costs it
//! one comparison. Time comes from a clock that is passed in. The actions are those of PyTorch's traces, and
//! two of ours: retags and step marks.
//!
//! As PyTorch: `_record_memory_history`, `TraceEntry`, `RingBuffer`.

use std::fmt;

use crate::event::{DeviceRange, Event, LiveBlock, Observer};
use crate::request::{Addr, PoolId, StackId, StreamId, Tag};

/// One thing that happened, and when.
///
/// ```
/// use plimsoll_alloc::{Action, Allocator, Config, History, HistoryOptions, Request, SimDriver};
///
/// let mut ticks = 0;
/// let clock = Box::new(move || { ticks += 1; ticks });
/// let mut history = History::default();
/// history.record(HistoryOptions::default(), clock);
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), history);
/// let x = allocator.malloc(Request::of(1000))?;
/// let entries: Vec<_> = allocator.observer().entries().collect();
/// assert_eq!((entries[0].action, entries[0].bytes, entries[0].time_us), (Action::SegmentAlloc, 2 << 20, 1));
/// assert_eq!((entries[1].action, entries[1].bytes, entries[1].addr), (Action::Alloc, 1000, x.addr()));
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// When, in microseconds, as the clock says.
    pub time_us: u64,
    /// What.
    pub action: Action,
    /// Where: the block or the memory; 0 where there is no such place.
    pub addr: Addr,
    /// How much: of a block what was asked for, of the device's memory its size, of a request that failed
    /// what it was rounded to, of a snapshot all that is not in the cache.
    pub bytes: u64,
    /// The stream of the block, the memory or the request.
    pub stream: StreamId,
    /// Its pool.
    pub pool: PoolId,
    /// What it is for; of the device's memory, nothing in particular.
    pub tag: Tag,
    /// Who asked for it.
    pub stack: Option<StackId>,
}

/// What an [`Entry`] says happened.
///
/// ```
/// # use plimsoll_alloc::Action;
/// assert_eq!(Action::Oom { device_free_bytes: 0 }.to_string(), "oom");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A block was given to a caller.
    Alloc,
    /// A caller gave a block back.
    FreeRequested,
    /// The block can be used again.
    FreeCompleted,
    /// The device gave a segment.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// The device put memory behind pages of an expandable segment.
    SegmentMap,
    /// The device took it back.
    SegmentUnmap,
    /// A picture of the state was taken.
    Snapshot,
    /// A request failed for want of memory.
    Oom {
        /// What the device had free, bytes.
        device_free_bytes: u64,
    },
    /// A block is now for something else. PyTorch has no such entry.
    Retag {
        /// What it was for.
        from: Tag,
    },
    /// The program says that a step begins. PyTorch has no such entry.
    StepMark {
        /// The step's number.
        number: u64,
    },
}

impl Action {
    /// PyTorch's name for it, and ours where PyTorch has none.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom { .. } => "oom",
            Self::Retag { .. } => "retag",
            Self::StepMark { .. } => "step_mark",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a history keeps.
///
/// ```
/// # use plimsoll_alloc::HistoryOptions;
/// let latest = HistoryOptions { max_entries: 1000, ..HistoryOptions::default() };
/// assert!(latest.skip.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryOptions {
    /// How many entries; at least one. When there are more, the oldest go.
    pub max_entries: usize,
    /// The [names](Action::name) of actions that are not kept.
    pub skip: Vec<&'static str>,
}

impl Default for HistoryOptions {
    /// Everything, without an end, as PyTorch's default.
    fn default() -> Self {
        Self { max_entries: usize::MAX, skip: Vec::new() }
    }
}

/// Microseconds, from whatever moment it likes.
///
/// ```
/// # use plimsoll_alloc::Clock;
/// let start = std::time::Instant::now();
/// let clock: Clock = Box::new(move || start.elapsed().as_micros() as u64);
/// # drop(clock);
/// ```
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// The latest events, or none while it is off; see [`Entry`] for an example.
#[derive(Default)]
pub struct History {
    recorder: Option<Recorder>,
}

struct Recorder {
    options: HistoryOptions,
    clock: Clock,
    ring: Vec<Entry>,
    /// Where the oldest entry is, once the ring is full.
    oldest: usize,
    lost: u64,
    /// When a block was given back that is not yet known to be in the cache.
    freed_us: Option<u64>,
}

impl History {
    /// Keeps events from now on, from none. Reserves nothing ahead: the ring grows to its size.
    pub fn record(&mut self, options: HistoryOptions, clock: Clock) {
        self.recorder =
            Some(Recorder { options, clock, ring: Vec::new(), oldest: 0, lost: 0, freed_us: None });
    }

    /// Keeps no more events, and forgets those it has.
    pub fn stop(&mut self) {
        self.recorder = None;
    }

    /// Whether events are kept.
    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// The entries, the oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.recorder.iter().flat_map(|recorder| {
            let (newer, older) = recorder.ring.split_at(recorder.oldest);
            older.iter().chain(newer)
        })
    }

    /// The entries, the oldest first, and how many made room for later ones; none are kept here any more, and
    /// counting starts over. For who writes them down as they come.
    pub fn take(&mut self) -> (Vec<Entry>, u64) {
        let Some(recorder) = &mut self.recorder else { return (Vec::new(), 0) };
        let mut entries = std::mem::take(&mut recorder.ring);
        entries.rotate_left(recorder.oldest);
        recorder.oldest = 0;
        (entries, std::mem::take(&mut recorder.lost))
    }

    /// How many entries made room for later ones.
    pub fn lost(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |recorder| recorder.lost)
    }
}

impl Recorder {
    #[inline(never)]
    fn see(&mut self, event: Event) {
        let Some(mut entry) = entry(&event) else { return };
        if self.options.skip.contains(&entry.action.name()) {
            return;
        }
        entry.time_us = self.time_us(&event);
        if self.ring.len() < self.options.max_entries.max(1) {
            self.ring.push(entry);
            return;
        }
        self.ring[self.oldest] = entry;
        self.oldest = if self.oldest + 1 == self.ring.len() { 0 } else { self.oldest + 1 };
        self.lost += 1;
    }

    /// Now; but a block that goes into the cache as it is given back does so at that time: asking the clock
    /// costs more than all the rest.
    fn time_us(&mut self, event: &Event) -> u64 {
        let freed_us = self.freed_us.take();
        match event {
            Event::FreeCompleted { at_once: true, .. } => freed_us.unwrap_or_else(|| (self.clock)()),
            Event::Free { .. } => *self.freed_us.insert((self.clock)()),
            _ => (self.clock)(),
        }
    }
}

impl Observer for History {
    #[inline(always)] // it is off mostly: then nothing needs to be laid out for it
    fn on(&mut self, event: &Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.see(*event);
        }
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.recorder.as_ref().map(|recorder| recorder.ring.len());
        f.debug_struct("History").field("entries", &entries).finish_non_exhaustive()
    }
}

/// What is kept of an event, before the clock is asked.
fn entry(event: &Event) -> Option<Entry> {
    Some(match *event {
        Event::Alloc { block, .. } => of_block(Action::Alloc, block),
        Event::Free { block, .. } => of_block(Action::FreeRequested, block),
        Event::FreeCompleted { block, .. } => of_block(Action::FreeCompleted, block),
        Event::Retag { block, from } => of_block(Action::Retag { from }, block),
        Event::SegmentAlloc { memory, stack, .. } => of_memory(Action::SegmentAlloc, memory, stack),
        Event::SegmentFree { memory, .. } => of_memory(Action::SegmentFree, memory, None),
        Event::SegmentMap { memory, stack } => of_memory(Action::SegmentMap, memory, stack),
        Event::SegmentUnmap { memory } => of_memory(Action::SegmentUnmap, memory, None),
        Event::OutOfMemory { rounded_bytes, stream, pool_id, tag, stack, device_free_bytes, .. } => Entry {
            bytes: rounded_bytes,
            stream,
            pool: pool_id,
            tag,
            stack,
            ..nowhere(Action::Oom { device_free_bytes })
        },
        Event::Snapshot { active_bytes } => Entry { bytes: active_bytes, ..nowhere(Action::Snapshot) },
        Event::StepMark { number } => nowhere(Action::StepMark { number }),
        Event::SyncAllStreams | Event::Retry { .. } | Event::Rejected { .. } => return None,
    })
}

fn nowhere(action: Action) -> Entry {
    let (addr, stream, pool, tag) = Default::default();
    Entry { time_us: 0, action, addr, bytes: 0, stream, pool, tag, stack: None }
}

fn of_block(action: Action, block: LiveBlock) -> Entry {
    let LiveBlock { addr, requested_bytes: bytes, stream, pool_id: pool, tag, stack, .. } = block;
    Entry { addr, bytes, stream, pool, tag, stack, ..nowhere(action) }
}

fn of_memory(action: Action, memory: DeviceRange, stack: Option<StackId>) -> Entry {
    let DeviceRange { addr, bytes, stream, pool_id: pool, .. } = memory;
    Entry { addr, bytes, stream, pool, stack, ..nowhere(action) }
}
