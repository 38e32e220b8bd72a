//! Byte counts over time: [`Level`]s, the [`Moment`]s of the peaks, and the curve.

use super::{EventIndex, MemoryMap, Timeline};
use crate::snapshot::{Action, Event};

/// Bytes at one moment. Files may contain numbers of any size, so sums saturate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// Bytes in live blocks. In PyTorch: `memory_allocated`.
    pub allocated_bytes: u64,
    /// Bytes in live blocks and in freed blocks that wait for a stream.
    pub active_bytes: u64,
    /// Memory reserved from the device. In PyTorch: `memory_reserved`.
    pub reserved_bytes: u64,
}

/// The level after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// The event; `None` is the moment before the first event.
    pub after: Option<EventIndex>,
    /// The bytes after the event.
    pub level: Level,
}

impl Timeline {
    /// The bytes after each event, in order. `trace` is the timeline's trace.
    pub fn curve<'a>(&'a self, trace: &'a [Event]) -> impl Iterator<Item = Moment> + 'a {
        let mut level = self.start;
        let mut overtaken = self.overtaken.iter().map(|life| self.lives[life.index()]).peekable();
        (0..).map(EventIndex::new).zip(trace.iter().zip(&self.concerns)).map(
            move |(after, (event, &life))| {
                while let Some(lost) = overtaken.next_if(|lost| lost.completed <= after) {
                    if lost.freed == after {
                        sub(&mut level.allocated_bytes, lost.bytes);
                    }
                    sub(&mut level.active_bytes, lost.bytes);
                }
                let life = life.map(|life| &self.lives[life.index()]);
                match (event.action, life) {
                    (Action::Alloc, Some(life)) => {
                        add(&mut level.allocated_bytes, life.bytes);
                        add(&mut level.active_bytes, life.bytes);
                    }
                    (Action::FreeRequested, Some(life)) => sub(&mut level.allocated_bytes, life.bytes),
                    (Action::FreeCompleted, Some(life)) => {
                        sub(&mut level.active_bytes, life.bytes);
                        if life.freed == after {
                            sub(&mut level.allocated_bytes, life.bytes);
                        }
                    }
                    (Action::FreeCompleted, None) => {
                        sub(&mut level.active_bytes, self.waiting_bytes(event, after));
                    }
                    (Action::SegmentAlloc | Action::SegmentMap, _) if !self.is_stray(after) => {
                        add(&mut level.reserved_bytes, event.size);
                    }
                    (Action::SegmentFree | Action::SegmentUnmap, _) if !self.is_stray(after) => {
                        sub(&mut level.reserved_bytes, event.size);
                    }
                    _ => {}
                }
                Moment { after, level }
            },
        )
    }

    fn is_stray(&self, event: Option<EventIndex>) -> bool {
        event.is_some_and(|event| self.strays.binary_search(&event.index()).is_ok())
    }

    /// The segment events that are inconsistent with the memory before them.
    fn stray_segments(&self, trace: &[Event]) -> Vec<usize> {
        let mut memory = MemoryMap::new(&self.memory_before);
        let strays = trace.iter().enumerate().filter(|(nth, event)| !memory.follow(event, *nth, self));
        strays.map(|(nth, _)| nth).collect()
    }

    /// If a block from before the recording stops waiting at this event: its bytes. Otherwise 0.
    fn waiting_bytes(&self, event: &Event, after: Option<EventIndex>) -> u64 {
        let place = self.waiting_before.partition_point(|life| Some(life.addr) < event.addr());
        let waited = self.waiting_before.get(place).filter(|life| life.completed == after);
        waited.map_or(0, |life| life.bytes)
    }

    /// Computes the level at the start and finds the peaks, from the lives and the memory reserved at the start.
    pub(crate) fn sum_up(&mut self, trace: &[Event]) {
        self.strays = self.stray_segments(trace);
        let held = self.lives.iter().filter(|life| life.born.is_none());
        self.start.allocated_bytes = held.fold(0, |sum: u64, life| sum.saturating_add(life.bytes));
        let waiting = self.waiting_before.iter();
        self.start.active_bytes =
            waiting.fold(self.start.allocated_bytes, |sum, life| sum.saturating_add(life.bytes));
        let start = Moment { after: None, level: self.start };
        let (mut allocated, mut reserved) = (start, start);
        for moment in self.curve(trace) {
            if moment.level.allocated_bytes > allocated.level.allocated_bytes {
                allocated = moment;
            }
            if moment.level.reserved_bytes > reserved.level.reserved_bytes {
                reserved = moment;
            }
        }
        (self.peak_allocated, self.peak_reserved) = (allocated, reserved);
    }
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

fn sub(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_sub(bytes);
}
