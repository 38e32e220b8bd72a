//! A longer run made from a short one: [`lengthen`].
//!
//! A trace records the changes from the state before it to the segments at its end. Before it is repeated,
//! its changes are undone: blocks and segments that it allocated are freed, and those that it freed are
//! allocated again. So the result is a trace that a longer run could have left, and it ends in the
//! snapshot's own state. Events that map or unmap parts of an expandable segment are repeated unchanged.

use std::collections::BTreeMap;

use plimsoll_alloc::Addr;
use plimsoll_trace::snapshot::{Action, Annotation, BlockState, Event, Segment, Snapshot};

/// Microseconds between two repetitions.
const PAUSE_US: u64 = 1000;

/// Makes every trace `times` as long, including its annotations.
pub(crate) fn lengthen(snapshot: &mut Snapshot, times: u32) {
    let clocks = snapshot.traces.iter().flatten().filter_map(|event| event.time_us.get());
    let clocks = clocks.chain(snapshot.annotations.iter().filter_map(|annotation| annotation.time_us.get()));
    let (first, last) = clocks.fold((u64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    let period_us = last.saturating_sub(first) + PAUSE_US;
    for (device, trace) in (0..).zip(&mut snapshot.traces) {
        let segments = snapshot.segments.iter().filter(|segment| segment.device() == device);
        let back = way_back(trace, segments);
        let once = std::mem::take(trace);
        trace.reserve_exact((once.len() + back.len()) * times as usize);
        for run in 0..u64::from(times) {
            let shift_us = run * period_us;
            let between = back.iter().map(|event| at(*event, Some(last + shift_us)));
            trace.extend(once.iter().map(|event| at(*event, event.time_us.get().map(|us| us + shift_us))));
            if run + 1 < u64::from(times) {
                trace.extend(between);
            }
        }
    }
    let once = std::mem::take(&mut snapshot.annotations);
    for run in 0..u64::from(times) {
        snapshot.annotations.extend(once.iter().map(|annotation| {
            let time_us = annotation.time_us.get().map(|us| us + run * period_us).into();
            Annotation { time_us, ..*annotation }
        }));
    }
}

/// The event with this time, if it had a time.
fn at(mut event: Event, time_us: Option<u64>) -> Event {
    if event.time_us.get().is_some() {
        event.time_us = time_us.into();
    }
    event
}

/// The live blocks and segments: the event that made each, by address.
#[derive(Clone, Default)]
struct Alive {
    blocks: BTreeMap<Addr, Event>,
    segments: BTreeMap<Addr, Event>,
}

/// The events that undo a trace: from the state after it to the state before it.
fn way_back<'a>(trace: &[Event], segments: impl Iterator<Item = &'a Segment>) -> Vec<Event> {
    let Some(model) = trace.last() else { return Vec::new() };
    let (end, pending) = state(segments, model);
    let mut start = end.clone();
    for event in trace.iter().rev() {
        let Some(addr) = event.addr() else { continue };
        match event.action {
            Action::Alloc => drop(start.blocks.remove(&addr)),
            Action::FreeCompleted => drop(start.blocks.insert(addr, *event)),
            Action::SegmentAlloc | Action::SegmentMap => drop(start.segments.remove(&addr)),
            Action::SegmentFree | Action::SegmentUnmap => drop(start.segments.insert(addr, *event)),
            Action::FreeRequested | Action::Snapshot | Action::Oom | Action::Annotate => {}
        }
    }
    let mut back = Vec::new();
    for (addr, &block) in &end.blocks {
        let waits = pending.contains(addr);
        if waits || start.blocks.get(addr).is_none_or(|other| other.size != block.size) {
            if !waits {
                back.push(acting(block, Action::FreeRequested));
            }
            back.push(acting(block, Action::FreeCompleted));
        }
    }
    let lacks = |addr, mine: &Event, theirs: &BTreeMap<Addr, Event>| {
        theirs.get(addr).is_none_or(|other| other.size != mine.size)
    };
    let (freed, made) = if trace.iter().any(|event| event.action == Action::SegmentMap) {
        (Action::SegmentUnmap, Action::SegmentMap)
    } else {
        (Action::SegmentFree, Action::SegmentAlloc)
    };
    let gone = end.segments.iter().filter(|(addr, it)| lacks(addr, it, &start.segments));
    back.extend(gone.map(|(_, &it)| acting(it, freed)));
    let again = start.segments.iter().filter(|(addr, it)| lacks(addr, it, &end.segments));
    back.extend(again.map(|(_, &it)| acting(it, made)));
    let again =
        start.blocks.iter().filter(|(addr, it)| pending.contains(addr) || lacks(addr, it, &end.blocks));
    back.extend(again.map(|(_, &it)| acting(it, Action::Alloc)));
    back
}

fn acting(mut event: Event, action: Action) -> Event {
    event.action = action;
    event
}

/// The content of the segments, as events like `model`, and the blocks whose free is pending.
fn state<'a>(segments: impl Iterator<Item = &'a Segment>, model: &Event) -> (Alive, Vec<Addr>) {
    let (mut alive, mut pending) = (Alive::default(), Vec::new());
    let as_model = |addr, size, segment: &Segment, stack| {
        let mut event = Event::new(Action::Alloc, addr, size, segment.stream);
        event.time_us = model.time_us;
        (event.compile_context, event.user_metadata) = (model.compile_context, model.user_metadata);
        (event.pool, event.stack) = (model.pool.and(segment.pool), model.stack.and(stack));
        event
    };
    for segment in segments {
        let whole = as_model(segment.address, segment.total_size, segment, segment.stack);
        alive.segments.insert(segment.address, whole);
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            let asked = block.requested_size.get().unwrap_or(block.size);
            alive.blocks.insert(block.address, as_model(block.address, asked, segment, block.stack));
            if block.state == BlockState::ActivePendingFree {
                pending.push(block.address);
            }
        }
    }
    (alive, pending)
}
