//! Events for programs: `plimsoll.events/1`. Stacks are complete, innermost frame first.

use plimsoll_trace::explain::BackwardBlock;
use plimsoll_trace::snapshot::EventIndex;
use plimsoll_trace::timeline::Level;
use serde_json::{Value, json};

use super::{Row, Window};
use crate::explain::values::backward;
use crate::explained::Explained;

/// The complete answer.
pub(super) fn render(explained: &Explained, windows: &[Window<'_>]) -> String {
    let devices: Vec<Value> = windows.iter().map(|window| device(explained, window)).collect();
    let value = json!({ "schema": "plimsoll.events/1", "file": explained.file, "devices": devices });
    format!("{value:#}")
}

fn device(explained: &Explained, window: &Window<'_>) -> Value {
    json!({
        "device": window.device.timeline.device,
        "moment": window.moment,
        "at_event": window.at.map(EventIndex::index),
        "recorded_events": window.device.timeline.quality.events,
        "events": window.events.iter().map(|row| event(explained, window, row)).collect::<Vec<_>>(),
    })
}

fn event(explained: &Explained, window: &Window<'_>, row: &Row<'_>) -> Value {
    let Row { index, event, levels: [_, after] } = *row;
    let origin = explained.origins.get(event.stack);
    let block = match origin.line {
        Some(_) => BackwardBlock::default(),
        None => BackwardBlock {
            operator: origin.operator,
            forward: origin.forward.or(window.forward_lines.get(Some(index))),
        },
    };
    let stack = event.stack.map(|stack| explained.snapshot.stacks.frame_ids(stack));
    json!({
        "event": index.index(),
        "time_us": event.time_us.get(),
        "since_first_us": window.since_first(event),
        "action": event.action.name(),
        "addr": event.addr().map(|addr| addr.0),
        "bytes": event.size,
        "stream": event.stream.0,
        "device_free_bytes": event.device_free(),
        "level": level(after),
        "pass": window.pass(index),
        "line": origin.line.map(|frame| explained.line(frame)),
        "package_line": origin.package_line.map(|frame| explained.line(frame)),
        "operator": origin.operator.map(|name| name.of(&explained.snapshot)),
        "backward": backward(explained, block),
        "block": block_of(explained, window, index),
        "frames": stack.map(|frames| frames.map(|frame| explained.line(frame)).collect::<Vec<_>>()),
    })
}

/// The block that an event is about; `null` for events about segments.
fn block_of(explained: &Explained, window: &Window<'_>, event: EventIndex) -> Value {
    let timeline = &window.device.timeline;
    let Some(index) = timeline.life_of(event) else { return Value::Null };
    let life = &timeline.lives[index.index()];
    let (category, why) = window.device.purposes.shown(index, life, &explained.origins);
    json!({
        "bytes": life.bytes,
        "requested_bytes": life.requested_bytes.get(),
        "category": category.name(&explained.snapshot),
        "confidence": why.confidence(),
        "evidence": why.evidence(),
        // `null` if the block was allocated before the recording.
        "asked_for_by_event": life.born.map(EventIndex::index),
        // `null` if the block is still live at the end.
        "freed_by_event": life.freed.map(EventIndex::index),
        "held_us": life.born.zip(life.freed).and_then(|(born, freed)| window.between(explained, born, freed)),
    })
}

fn level(level: Level) -> Value {
    json!({
        "allocated_bytes": level.allocated_bytes,
        "active_bytes": level.active_bytes,
        "reserved_bytes": level.reserved_bytes,
    })
}
