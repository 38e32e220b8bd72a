//! The device's memory over time ([`MemoryMap`]). The state before the recording is the snapshot's segments with every
//! segment event undone.

use std::collections::BTreeMap;

use plimsoll_alloc::{Addr, StreamId};

use super::pools::PoolsBySegment;
use super::{Life, Timeline};
use crate::snapshot::{Action, Event, PoolIndex, Segment, SegmentType};

/// Device memory that the allocator has reserved: a segment, or a mapped range of an expandable segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The address of the memory.
    pub addr: Addr,
    /// The size in bytes.
    pub bytes: u64,
    /// The stream that uses the memory.
    pub stream: StreamId,
    /// Whether the memory serves small or large requests; inferred from the size if the segment is freed before the end
    /// of the recording.
    pub segment_type: SegmentType,
    /// The pool to which the memory belongs.
    pub pool: Option<PoolIndex>,
    /// Whether the memory belongs to an expandable segment.
    pub is_expandable: bool,
}

/// The size of a small pool's segments and pages, bytes. Large segments are larger: 20 MiB, or as large as the request.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The largest block of a small pool.
const MOST_SMALL_BYTES: u64 = 1 << 20;

impl Memory {
    fn of(segment: &Segment) -> Self {
        Self {
            addr: segment.address,
            bytes: segment.total_size,
            stream: segment.stream,
            segment_type: segment.segment_type,
            pool: segment.pool,
            is_expandable: segment.is_expandable == Some(true),
        }
    }

    /// The memory that an event allocates or frees.
    fn of_event(event: &Event, addr: Addr, pool: Option<PoolIndex>, is_expandable: bool) -> Self {
        let is_small = event.size == SMALL_SEGMENT_BYTES;
        let segment_type = if is_small { SegmentType::Small } else { SegmentType::Large };
        let (bytes, stream) = (event.size, event.stream);
        Self { addr, bytes, stream, segment_type, pool, is_expandable }
    }

    /// The address at which the memory ends.
    pub fn end(&self) -> Addr {
        Addr(self.addr.0.saturating_add(self.bytes))
    }
}

/// The memory before the first event, in address order, and the number of events that contradict this memory. `events`
/// are the segment events, by index in the trace.
pub(super) fn memory_before(
    segments: &[&Segment],
    trace: &[Event],
    events: &[u32],
    pools: &PoolsBySegment,
) -> (Vec<Memory>, usize) {
    let known = segments.iter().map(|segment| (segment.address, Memory::of(segment)));
    let mut map = MemoryMap { by_addr: known.collect(), strays: 0 };
    for nth in events.iter().rev().map(|&nth| nth as usize).filter(|&nth| nth < trace.len()) {
        map.change(&trace[nth], nth, pools, true);
    }
    (map.by_addr.into_values().collect(), map.strays)
}

/// Decides which unmapped pages were small and which were large. The size of the range does not always show this,
/// because many small pages may be as large as one large page. The blocks in the pages do.
pub(super) fn tell_types(
    memory: &mut [Memory],
    segments: &[&Segment],
    lives: &[Life],
    large_page_bytes: u64,
) {
    let is_shown =
        |it: &Memory| segments.iter().any(|segment| segment.address <= it.addr && it.addr < segment.end());
    let mut unsure: Vec<usize> = (0..memory.len()).collect();
    unsure.retain(|&nth| memory[nth].is_expandable && !is_shown(&memory[nth]));
    if unsure.is_empty() {
        return;
    }
    let mut known = vec![false; memory.len()];
    for &nth in &unsure {
        if !memory[nth].bytes.is_multiple_of(large_page_bytes) {
            (memory[nth].segment_type, known[nth]) = (SegmentType::Small, true);
        }
    }
    for life in lives {
        let below = memory.partition_point(|it| it.addr <= life.addr);
        if let Some(nth) = below.checked_sub(1).filter(|&nth| life.addr < memory[nth].end()) {
            let is_small = life.bytes <= MOST_SMALL_BYTES;
            if !known[nth] && unsure.binary_search(&nth).is_ok() {
                memory[nth].segment_type = if is_small { SegmentType::Small } else { SegmentType::Large };
                known[nth] = true;
            }
        }
    }
}

/// The device's memory at one moment; it can apply events forwards and backwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryMap {
    by_addr: BTreeMap<Addr, Memory>,
    strays: usize,
}

impl MemoryMap {
    pub(crate) fn new(memory: &[Memory]) -> Self {
        Self { by_addr: memory.iter().map(|memory| (memory.addr, *memory)).collect(), strays: 0 }
    }

    /// All memory ranges, in address order, without overlaps.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.by_addr.values()
    }

    /// Applies an event, given its index in the trace; most are not segment events. Returns whether the event is
    /// consistent: added memory did not exist before, and removed memory did.
    pub(crate) fn follow(&mut self, event: &Event, nth: usize, timeline: &Timeline) -> bool {
        let strays = self.strays;
        self.change(event, nth, &timeline.pools, false);
        self.strays == strays
    }

    fn change(&mut self, event: &Event, nth: usize, pools: &PoolsBySegment, backwards: bool) {
        let (adds, is_pages) = match event.action {
            Action::SegmentAlloc => (true, false),
            Action::SegmentFree => (false, false),
            Action::SegmentMap => (true, true),
            Action::SegmentUnmap => (false, true),
            _ => return,
        };
        let Some(addr) = event.addr() else { return };
        let memory = || Memory::of_event(event, addr, pools.at(event.pool, addr, nth), is_pages);
        let fits = match (adds != backwards, is_pages) {
            (true, false) => self.put(memory()),
            (true, true) => self.put_pages(memory()),
            (false, false) => self.take(event, addr),
            (false, true) => self.take_pages(event, addr),
        };
        self.strays += usize::from(!fits);
    }

    /// Removes a complete segment.
    fn take(&mut self, event: &Event, addr: Addr) -> bool {
        let fits = self.by_addr.get(&addr).is_some_and(|memory| memory.bytes == event.size);
        if fits {
            self.by_addr.remove(&addr);
        }
        fits
    }

    /// Adds memory, unless there already is memory at this address.
    fn put(&mut self, memory: Memory) -> bool {
        let below = self.by_addr.range(..memory.end()).next_back();
        let is_range = memory.bytes > 0 && memory.addr.0.checked_add(memory.bytes).is_some();
        let fits = is_range && below.is_none_or(|(_, below)| below.end() <= memory.addr);
        if fits {
            self.by_addr.insert(memory.addr, memory);
        }
        fits
    }

    /// Removes pages from the range that contains them.
    fn take_pages(&mut self, event: &Event, addr: Addr) -> bool {
        let end = Addr(addr.0.saturating_add(event.size));
        let around = self.by_addr.range(..=addr).next_back().map(|(_, memory)| *memory);
        let Some(around) = around.filter(|around| around.is_expandable && end <= around.end()) else {
            return false;
        };
        self.by_addr.remove(&around.addr);
        for (from, to) in [(around.addr, addr), (end, around.end())] {
            if from < to {
                self.by_addr.insert(from, Memory { addr: from, bytes: to.0 - from.0, ..around });
            }
        }
        true
    }

    /// Adds pages, merged with adjacent ranges of the same stream and pool; those ranges show which requests the pages
    /// serve. Events from before PyTorch 2.12 have no pool; for these, any pool matches.
    fn put_pages(&mut self, mut pages: Memory) -> bool {
        if !self.put(pages) {
            return false;
        }
        let is_same = |a: &Memory, b: &Memory| {
            let pools = a.pool.zip(b.pool);
            a.is_expandable && b.is_expandable && a.stream == b.stream && pools.is_none_or(|(a, b)| a == b)
        };
        let below = self.by_addr.range(..pages.addr).next_back().map(|(_, below)| *below);
        let above = self.by_addr.get(&pages.end()).copied();
        for neighbour in [below, above].into_iter().flatten() {
            let touches = neighbour.end() == pages.addr || neighbour.addr == pages.end();
            if touches && is_same(&neighbour, &pages) {
                self.by_addr.remove(&neighbour.addr);
                self.by_addr.remove(&pages.addr);
                let (addr, bytes) =
                    (pages.addr.min(neighbour.addr), pages.bytes.saturating_add(neighbour.bytes));
                let pool = neighbour.pool.or(pages.pool);
                pages = Memory { addr, bytes, pool, ..neighbour };
                self.by_addr.insert(addr, pages);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 20 << 20;

    #[test]
    fn pages_that_were_mapped_and_unmapped_are_as_they_were() {
        let event = |action, page: u64, pages| {
            Event::new(action, Addr((100 + page) * PAGE), pages * PAGE, StreamId(0))
        };
        let segment = Segment {
            device: None,
            address: Addr(100 * PAGE),
            total_size: 5 * PAGE,
            allocated_size: None.into(),
            active_size: None.into(),
            requested_size: None.into(),
            stream: StreamId(0),
            segment_type: SegmentType::Large,
            pool: None,
            is_expandable: Some(true),
            stack: None,
            blocks: Vec::new(),
        };
        let check = |trace: &[Event], expected: &[(u64, u64)], strays| {
            let (before, found_strays) =
                memory_before(&[&segment], trace, &[0, 1][..trace.len()], &PoolsBySegment::default());
            let found = before.iter().map(|memory| (memory.addr.0 / PAGE - 100, memory.bytes / PAGE));
            assert_eq!((found.collect::<Vec<_>>().as_slice(), found_strays), (expected, strays));
        };
        check(&[], &[(0, 5)], 0);
        check(&[event(Action::SegmentMap, 2, 1)], &[(0, 2), (3, 2)], 0);
        check(&[event(Action::SegmentUnmap, 5, 2), event(Action::SegmentMap, 0, 5)], &[(5, 2)], 0);
        check(&[event(Action::SegmentUnmap, 2, 1), event(Action::SegmentMap, 2, 1)], &[(0, 5)], 0);
        check(&[event(Action::SegmentMap, 4, 2)], &[(0, 5)], 1);
        check(&[event(Action::SegmentUnmap, 1, 1)], &[(0, 5)], 1);
        check(&[event(Action::SegmentAlloc, 0, 4)], &[(0, 5)], 1);
    }
}
