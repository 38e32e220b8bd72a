//! Values of the report for programs, with the keys of `plimsoll.explain/1`.

use plimsoll_trace::explain::{BackwardBlock, DeviceExplanation, Failure, Ledger, Limit, Part, Share};
use plimsoll_trace::pressure::Retry;
use plimsoll_trace::timeline::Moment;
use serde_json::{Value, json};

use crate::explained::Explained;

/// The owners of memory at the explained moment.
pub(super) fn held(explained: &Explained, device: &DeviceExplanation) -> Value {
    let owners = &device.owners;
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
        "after_event": owners.after.map(|event| event.index()),
        "bytes": owners.bytes,
        "by_category": by_category.collect::<Vec<_>>(),
        "by_line": by_line.collect::<Vec<_>>(),
        "by_operator": by_operator.collect::<Vec<_>>(),
    })
}

/// The request that failed.
pub(super) fn failure(explained: &Explained, device: &DeviceExplanation) -> Option<Value> {
    device.failure.map(|failure| {
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
            "limit": failure.limit.map(limit),
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
    })
}

/// The graph that no backward pass uses.
pub(super) fn unused_graph(explained: &Explained, device: &DeviceExplanation) -> Option<Value> {
    let graph = device.unused_graph?;
    let line = graph.line.map(|frame| explained.line(frame));
    Some(
        json!({ "bytes": graph.bytes, "blocks": graph.blocks, "line": line, "confidence": graph.confidence }),
    )
}

/// Requests that were retried after cached memory was released.
pub(super) fn retries(explained: &Explained, device: &DeviceExplanation) -> Value {
    let retry = |retry: &Retry| {
        json!({
            "event": retry.at.index(),
            "segment_bytes": retry.segment_bytes,
            "reserved_bytes": retry.reserved_bytes,
            "released_bytes": retry.released_bytes,
            "line": explained.origins.get(retry.stack).line.map(|frame| explained.line(frame)),
        })
    };
    device.pressure.retries.iter().map(retry).collect()
}

/// Whether our allocator returns the same addresses as the recorded allocator.
pub(super) fn replay(device: &DeviceExplanation) -> Value {
    json!({
        "identical": device.replay.is_identical(),
        "requests": device.replay.requests,
        "conflicts": device.replay.conflicts,
        "unplaced": device.replay.unplaced,
        "inexact_bytes": device.replay.inexact_bytes,
    })
}

/// The limit on the memory that the process may reserve.
pub(super) fn limit(limit: Limit) -> Value {
    json!({ "at_least_bytes": limit.at_least_bytes, "below_bytes": limit.below_bytes })
}

/// The facts about a request that failed in the backward pass, in the form of [`backward`].
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

/// The facts about blocks that no line of Python requested; `null` if there is a line, or nothing is known.
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

/// The rows of the ledger by name, each with the name of the row that includes it. Unknown bytes are `null`.
pub(super) fn ledger(ledger: &Ledger) -> Value {
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

pub(super) fn moment(moment: Moment) -> Value {
    json!({
        "after_event": moment.after.map(|event| event.index()),
        "allocated_bytes": moment.level.allocated_bytes,
        "active_bytes": moment.level.active_bytes,
        "reserved_bytes": moment.level.reserved_bytes,
    })
}

/// The key of a row, with the row's figures added.
fn row<K>(share: &Share<K>, mut key: Value) -> Value {
    key["bytes"] = share.bytes.into();
    key["blocks"] = share.blocks.into();
    key["largest_bytes"] = share.largest_bytes.into();
    key
}
