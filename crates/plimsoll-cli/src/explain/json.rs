//! An explanation as JSON: `plimsoll.explain/1`.

use plimsoll_trace::explain::{BackwardBlock, DeviceExplanation, Failure, Ledger, Part, Share};
use plimsoll_trace::render::verdict;
use plimsoll_trace::timeline::Moment;
use serde_json::{Value, json};

use super::{advice, devices, holes, peaks, remaining};
use crate::explained::Explained;
use crate::{bytes, doctor, leaks, whatif};

/// The whole answer.
pub(crate) fn render(explained: &Explained) -> String {
    let of_each: Vec<Value> = explained.devices.iter().map(|one| device(explained, one)).collect();
    let value = json!({
        "schema": "plimsoll.explain/1",
        "file": explained.file,
        "written_by": explained.snapshot.written_by(),
        "verdict": devices::verdict_as_json(explained),
        "lines_of_several_devices": devices::parts_as_json(explained),
        "devices": of_each,
    });
    format!("{value:#}")
}

/// One device.
pub(crate) fn device(explained: &Explained, device: &DeviceExplanation) -> Value {
    let (timeline, owners) = (&device.timeline, &device.owners);
    let by_category = owners.by_category.iter().map(|share| {
        let why = share.key.why;
        row(
            share,
            json!({
                "category": share.key.category.name(&explained.snapshot),
                "confidence": why.confidence(),
                "evidence": why.evidence(),
            }),
        )
    });
    let by_line = owners.by_line.iter().map(|share| {
        row(
            share,
            json!({
                "line": share.key.frame.map(|frame| explained.line(frame)),
                "package_line": share.key.package_line.map(|frame| explained.line(frame)),
                "backward": backward(explained, share.key.backward),
                "category": share.key.category.name(&explained.snapshot),
            }),
        )
    });
    let by_operator = owners
        .by_operator
        .iter()
        .map(|share| row(share, json!({ "operator": share.key.map(|name| name.of(&explained.snapshot)) })));
    json!({
        "device": timeline.device,
        "verdict": verdict::sentence(device, |bytes| bytes::shown(bytes, false)),
        "what_would_help": advice::lines(explained, device, |bytes| bytes::shown(bytes, false)),
        "failure": device.failure.map(|failure| {
            let others = device.held_by_others();
            let cause = failure.cause();
            json!({
                "cause": if others.is_some() { "held by others" } else { cause.name() },
                "asked_bytes": failure.asked_bytes,
                "short_bytes": cause.short_bytes(),
                "held_by_others_bytes": others,
                "spare_bytes": cause.spare_bytes(),
                "allocated_bytes": failure.level.allocated_bytes,
                "active_bytes": failure.level.active_bytes,
                "reserved_bytes": failure.level.reserved_bytes,
                "device_free_bytes": failure.device_free_bytes,
                "limit": failure.limit.map(|limit| json!({
                    "at_least_bytes": limit.at_least_bytes,
                    "below_bytes": limit.below_bytes,
                })),
                "event": failure.at.index(),
                "line": explained.origins.get(failure.stack).line.map(|frame| explained.line(frame)),
                "backward": failed_backward(explained, device, failure),
                "shapes": device.shapes.iter().map(|guess| json!({
                    "dims": guess.dims,
                    "element_bytes": guess.element_bytes,
                    "confidence": "a guess",
                })).collect::<Vec<_>>(),
                "still_needed": device.still_needed.as_ref().map(|needed| json!({
                    "bytes": needed.bytes,
                    "of": needed.rest.name(),
                    "short_bytes_in_all": needed.short_bytes(&failure),
                    "confidence": needed.confidence,
                })),
                "failures": failure.failures,
            })
        }),
        "peak_allocated": moment(timeline.peak_allocated),
        "peak_reserved": moment(timeline.peak_reserved),
        "ledger": ledger(&device.ledger),
        "held": {
            "after_event": owners.after.map(|event| event.index()),
            "bytes": owners.bytes,
            "by_category": by_category.collect::<Vec<_>>(),
            "by_line": by_line.collect::<Vec<_>>(),
            "by_operator": by_operator.collect::<Vec<_>>(),
        },
        "held_at_end": remaining::as_json(explained, device),
        "fragmentation": holes::as_json(explained, device),
        "peaks": peaks::as_json(explained, device),
        "leaks": leaks::as_json(explained, device),
        "retries": device.pressure.retries.iter().map(|retry| json!({
            "event": retry.at.index(),
            "segment_bytes": retry.segment_bytes,
            "reserved_bytes": retry.reserved_bytes,
            "released_bytes": retry.released_bytes,
            "line": explained.origins.get(retry.stack).line.map(|frame| explained.line(frame)),
        })).collect::<Vec<_>>(),
        "capacity": device.pressure.capacity.map(|limit| json!({
            "at_least_bytes": limit.at_least_bytes,
            "below_bytes": limit.below_bytes,
        })),
        "what_if": device.what_if.as_ref().map(whatif::as_json),
        "data_quality": doctor::as_json(explained, device),
        "events": timeline.quality.events,
        "conflicts": timeline.quality.conflicts(),
        "ring_overflowed": timeline.quality.is_cut,
        "replay": {
            "identical": device.replay.is_identical(),
            "requests": device.replay.requests,
            "conflicts": device.replay.conflicts,
            "unplaced": device.replay.unplaced,
            "inexact_bytes": device.replay.inexact_bytes,
        },
    })
}

/// The same for the request that failed.
fn failed_backward(explained: &Explained, device: &DeviceExplanation, failure: Failure) -> Value {
    let origin = explained.origins.get(failure.stack);
    let block = match origin.line {
        Some(_) => BackwardBlock::default(),
        None => BackwardBlock {
            operator: origin.operator,
            forward: origin.forward.or(device.forward_lines.get(Some(failure.at))),
        },
    };
    backward(explained, block)
}

/// What is known about blocks that no line of Python requested; `null` if there is a line, or nothing is known.
pub(super) fn backward(explained: &Explained, block: BackwardBlock) -> Value {
    if block == BackwardBlock::default() {
        return Value::Null;
    }
    json!({
        "operator": block.operator.map(|name| name.of(&explained.snapshot)),
        "forward": block.forward.map(|forward| json!({
            "line": explained.line(forward.frame),
            "package_line": forward.package_line.map(|frame| explained.line(frame)),
            "confidence": forward.by.confidence(),
        })),
    })
}

/// Rows by name, each with the row that it is a part of; `null` means that a figure cannot be known.
fn ledger(ledger: &Ledger) -> Value {
    let rows = ledger.rows().into_iter().map(|row| {
        json!({
            "name": row.part.name(),
            "pytorch": row.part.pytorch(),
            "part_of": row.part.within().map(Part::name),
            "bytes": row.bytes,
        })
    });
    rows.collect()
}

fn moment(moment: Moment) -> Value {
    json!({
        "after_event": moment.after.map(|event| event.index()),
        "allocated_bytes": moment.level.allocated_bytes,
        "active_bytes": moment.level.active_bytes,
        "reserved_bytes": moment.level.reserved_bytes,
    })
}

/// A row's key with its figures.
fn row<K>(share: &Share<K>, mut key: Value) -> Value {
    key["bytes"] = share.bytes.into();
    key["blocks"] = share.blocks.into();
    key["largest_bytes"] = share.largest_bytes.into();
    key
}
