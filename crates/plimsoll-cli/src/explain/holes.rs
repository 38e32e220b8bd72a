//! The holes of one device as JSON: at the explained moment, and over the recording.

use plimsoll_trace::explain::{DeviceExplanation, Fragmentation, Holes, Pin, PinningBlock};
use serde_json::{Value, json};

use crate::explained::Explained;

/// The maximum number of moments whose holes are listed.
const MOMENTS: usize = 32;

/// Everything about holes; the segment with the oldest pinning block comes first.
pub(super) fn as_json(explained: &Explained, device: &DeviceExplanation) -> Value {
    let Fragmentation { all, pins, empty_cache_bytes: (least, most), .. } = &device.fragmentation;
    let over_time = Fragmentation::over_time(&explained.snapshot, &device.timeline, MOMENTS);
    let over_time = over_time.into_iter().map(|(after, holes)| {
        let mut value = figures(&holes);
        value["after_event"] = after.map(|event| event.index()).into();
        value
    });
    let mut value = figures(all);
    value["empty_cache_bytes"] = json!({ "least": least, "most": most });
    value["pins"] = pins.iter().map(|it| pin(explained, it)).collect();
    value["over_time"] = over_time.collect();
    value
}

fn figures(holes: &Holes) -> Value {
    json!({
        "holes": holes.count,
        "largest_bytes": holes.largest_bytes,
        "reserved_bytes": holes.reserved_bytes,
        "reusable_bytes": holes.cached.reusable,
        "private_bytes": holes.cached.private,
        "pinned_bytes": holes.cached.pinned,
        "fragmentation": holes.fragmentation(),
    })
}

fn pin(explained: &Explained, pin: &Pin) -> Value {
    json!({
        "segment": pin.memory.addr.0,
        "segment_bytes": pin.memory.bytes,
        "held_bytes": pin.held_bytes,
        "pinned_bytes": pin.pinned_bytes,
        "blocks": pin.blocks.len(),
        "oldest": pin.blocks.first().map(|oldest| pinning_block(explained, oldest)),
    })
}

fn pinning_block(explained: &Explained, pinning_block: &PinningBlock) -> Value {
    json!({
        "bytes": pinning_block.bytes,
        "waiting": pinning_block.is_waiting,
        "line": pinning_block.line.map(|frame| explained.line(frame)),
        "category": pinning_block.category.name(&explained.snapshot),
        "born_event": pinning_block.born.map(|event| event.index()),
        "age_events": pinning_block.age_events,
        "age_steps": pinning_block.age_steps,
    })
}
