//! The history of allocator events: [`History`], a ring buffer of the latest entries.
//!
//! It observes events in the same way as the statistics. It is off until [`History::record`]; while off, an event costs
//! one comparison. The caller passes the clock. The actions are those of PyTorch's traces, and two of ours: retags and
//! step marks.
//!
//! In PyTorch: `_record_memory_history`, `TraceEntry`, `RingBuffer`.

use std::fmt;

use crate::event::{DeviceRange, Event, LiveBlock, Observer};
use crate::request::{Addr, PoolId, StackId, StreamId, Tag};

/// One entry: an action, its time and its block.
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
    /// The clock's time, in microseconds.
    pub time_us: u64,
    /// The action.
    pub action: Action,
    /// The address of the block or memory; 0 if there is none.
    pub addr: Addr,
    /// The size in bytes: the requested size of a block, the size of device memory, the rounded size of a
    /// request that failed, or the active bytes of a snapshot.
    pub bytes: u64,
    /// The stream of the block or memory.
    pub stream: StreamId,
    /// The pool of the block or memory.
    pub pool: PoolId,
    /// The tag; the default for device memory.
    pub tag: Tag,
    /// The stack of the request.
    pub stack: Option<StackId>,
}

/// The action of an [`Entry`].
///
/// ```
/// # use plimsoll_alloc::Action;
/// assert_eq!(Action::Oom { device_free_bytes: 0 }.to_string(), "oom");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A block was allocated.
    Alloc,
    /// A block was freed by its caller.
    FreeRequested,
    /// The free completed: the block can be reused.
    FreeCompleted,
    /// A segment was allocated on the device.
    SegmentAlloc,
    /// A segment was freed on the device.
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap,
    /// A snapshot of the state was taken.
    Snapshot,
    /// A request failed: out of memory.
    Oom {
        /// Free memory of the device, bytes.
        device_free_bytes: u64,
    },
    /// The tag of a block changed. PyTorch has no such entry.
    Retag {
        /// The old tag.
        from: Tag,
    },
    /// A step of the program begins. PyTorch has no such entry.
    StepMark {
        /// The step's number.
        number: u64,
    },
}

impl Action {
    /// PyTorch's name, or ours where PyTorch has none.
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

/// Which events a history records.
///
/// ```
/// # use plimsoll_alloc::HistoryOptions;
/// let latest = HistoryOptions { max_entries: 1000, ..HistoryOptions::default() };
/// assert!(latest.skip.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryOptions {
    /// The maximum number of entries, at least one. Older entries are dropped.
    pub max_entries: usize,
    /// The [names](Action::name) of actions that are not recorded.
    pub skip: Vec<&'static str>,
}

impl Default for HistoryOptions {
    /// Records everything, without a maximum, as PyTorch does by default.
    fn default() -> Self {
        Self { max_entries: usize::MAX, skip: Vec::new() }
    }
}

/// Returns the time in microseconds, from any starting point.
///
/// ```
/// # use plimsoll_alloc::Clock;
/// let start = std::time::Instant::now();
/// let clock: Clock = Box::new(move || start.elapsed().as_micros() as u64);
/// # drop(clock);
/// ```
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// A ring buffer of the latest events, empty while it is off; see [`Entry`] for an example.
#[derive(Default)]
pub struct History {
    recorder: Option<Recorder>,
}

struct Recorder {
    options: HistoryOptions,
    clock: Clock,
    ring: Vec<Entry>,
    /// The index of the oldest entry, once the ring is full.
    oldest: usize,
    lost: u64,
    /// The time of the last free, until it completes.
    freed_us: Option<u64>,
}

impl History {
    /// Starts recording, with an empty ring. The ring grows as needed, up to its maximum.
    pub fn record(&mut self, options: HistoryOptions, clock: Clock) {
        self.recorder =
            Some(Recorder { options, clock, ring: Vec::new(), oldest: 0, lost: 0, freed_us: None });
    }

    /// Stops recording, and drops all entries.
    pub fn stop(&mut self) {
        self.recorder = None;
    }

    /// Whether events are recorded.
    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.recorder.iter().flat_map(|recorder| {
            let (newer, older) = recorder.ring.split_at(recorder.oldest);
            older.iter().chain(newer)
        })
    }

    /// Removes and returns the entries, oldest first, and the number of entries that were dropped. Afterwards the ring
    /// is empty, and the count starts at 0. For writers that stream entries to a file.
    pub fn take(&mut self) -> (Vec<Entry>, u64) {
        let Some(recorder) = &mut self.recorder else { return (Vec::new(), 0) };
        let mut entries = std::mem::take(&mut recorder.ring);
        entries.rotate_left(recorder.oldest);
        recorder.oldest = 0;
        (entries, std::mem::take(&mut recorder.lost))
    }

    /// The number of entries that were dropped for newer ones.
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

    /// The current time. A free that completes immediately gets the time of the free request, because reading the clock
    /// costs more than the rest of an event.
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
    #[inline(always)] // usually off: avoids building the entry
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

/// The entry of an event, without its time.
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
