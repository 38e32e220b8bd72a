//! The device's memory over time: each range of memory, with the moments when it begins and ends ([`json`]).

use std::cmp::Reverse;

use hashbrown::HashMap;
use plimsoll_alloc::Addr;
use serde_json::{Value, json};

use super::buckets::number;
use super::numbers::{GRAIN_BYTES, floats, grains, octets, words};
use crate::explain::DeviceExplanation;
use crate::snapshot::{Action, Event, EventIndex, SegmentType};
use crate::timeline::{Memory, MemoryMap};

/// The number of changes that are drawn, evenly sampled; the last change before the explained moment is always
/// included.
const CHANGES: usize = 1500;
/// The maximum number of ranges that are drawn; the largest ranges are.
const STRETCHES: usize = 4000;
/// The end of a range that still exists when the recording ends.
const NEVER: u32 = u32::MAX;

/// A range of memory, for as long as it does not change.
struct Stretch {
    memory: Memory,
    from: u32,
    to: u32,
}

/// The ranges in address order, and the bytes of one cell of the map.
pub(super) fn json(device: &DeviceExplanation, trace: &[Event], most_cells: u64) -> Value {
    let reserved_bytes = device.timeline.peak_reserved.level.reserved_bytes;
    let cell_bytes = reserved_bytes.div_ceil(most_cells.max(1)).checked_next_power_of_two();
    let cell_bytes = cell_bytes.unwrap_or(1 << 63).max(GRAIN_BYTES);
    let (mut stretches, is_every_change) = stretches(device, trace);
    let all = stretches.len();
    // Too large ranges are left out, because a forged file may claim segments of any size.
    stretches.retain(|it| it.memory.bytes.div_ceil(cell_bytes) <= 4 * most_cells);
    stretches.sort_by_key(|it| (Reverse(it.memory.bytes), it.memory.addr, it.from));
    stretches.truncate(STRETCHES);
    stretches.sort_by_key(|it| (it.memory.addr, it.from));
    let what = |memory: &Memory| {
        u8::from(memory.segment_type == SegmentType::Large) + 2 * u8::from(memory.is_expandable)
    };
    json!({
        "cellBytes": cell_bytes,
        "addr": floats(stretches.iter().map(|it| it.memory.addr.0 as f64)),
        "bytes": words(stretches.iter().map(|it| grains(it.memory.bytes))),
        "what": octets(stretches.iter().map(|it| what(&it.memory))),
        "from": words(stretches.iter().map(|it| it.from)),
        "to": words(stretches.iter().map(|it| it.to)),
        "leftOut": all - stretches.len(),
        "isWhole": is_every_change && all == stretches.len(),
    })
}

/// The ranges of memory over time, and whether every change is drawn.
fn stretches(device: &DeviceExplanation, trace: &[Event]) -> (Vec<Stretch>, bool) {
    let is_change = |event: &Event| {
        matches!(
            event.action,
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap
        )
    };
    let changes: Vec<usize> =
        trace.iter().enumerate().filter(|(_, event)| is_change(event)).map(|(place, _)| place).collect();
    let apart = changes.len().div_ceil(CHANGES).max(1);
    let explained = device.moment().map_or(0, |event| event.index() + 1);
    let before_explained = changes.partition_point(|&place| place < explained);
    let mut map = MemoryMap::new(&device.timeline.memory_before);
    let mut open = Open::default();
    open.follow(&map, 0);
    for (nth, &place) in (1..).zip(&changes) {
        map.follow(&trace[place], place, &device.timeline);
        if nth % apart == 0 || nth == changes.len() || nth == before_explained {
            open.follow(&map, number(EventIndex::new(place)));
        }
    }
    (open.stretches, apart == 1)
}

/// The ranges that were found so far, and which of them exist at the current moment.
#[derive(Default)]
struct Open {
    stretches: Vec<Stretch>,
    there: HashMap<Addr, usize>,
}

impl Open {
    fn follow(&mut self, map: &MemoryMap, moment: u32) {
        let mut there = HashMap::new();
        for memory in map.iter() {
            let known = self.there.remove(&memory.addr);
            let place = match known.filter(|&place| self.stretches[place].memory == *memory) {
                Some(place) => place,
                None => {
                    self.end(known, moment);
                    self.stretches.push(Stretch { memory: *memory, from: moment, to: NEVER });
                    self.stretches.len() - 1
                }
            };
            there.insert(memory.addr, place);
        }
        // The order in which ranges end does not matter.
        for (_, place) in std::mem::replace(&mut self.there, there) {
            self.end(Some(place), moment);
        }
    }

    fn end(&mut self, stretch: Option<usize>, moment: u32) {
        if let Some(stretch) = stretch.and_then(|place| self.stretches.get_mut(place)) {
            stretch.to = moment;
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::StreamId;

    use super::super::tests::explained;
    use super::*;
    use crate::snapshot::Snapshot;

    #[test]
    fn memory_is_there_from_the_event_that_brings_it_to_the_one_that_takes_it() {
        let event = |action, addr| Event::new(action, Addr(addr), 4 << 20, StreamId(0));
        let trace = vec![
            event(Action::SegmentAlloc, 1 << 30),
            event(Action::SegmentAlloc, 2 << 30),
            event(Action::Alloc, 2 << 30),
            event(Action::SegmentFree, 1 << 30),
            event(Action::SegmentAlloc, 1 << 30),
        ];
        let snapshot = Snapshot { traces: vec![trace.clone()], ..Snapshot::default() };
        let (_, device) = explained(&snapshot);
        let (stretches, is_every_change) = stretches(&device, &trace);
        let drawn: Vec<_> = stretches.iter().map(|it| (it.memory.addr.0 >> 30, it.from, it.to)).collect();
        assert_eq!(drawn, [(1, 1, 4), (2, 2, NEVER), (1, 5, NEVER)]);
        assert!(is_every_change);
    }
}
