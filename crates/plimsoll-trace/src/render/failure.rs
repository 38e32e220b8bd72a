//! A sentence about why memory ran out, and the lines about the request below it.

use super::shapes::shapes;
use super::{phases, words};
use crate::explain::{BackwardBlock, Cause, DeviceExplanation, Failure, Holes, Origins, Rest};
use crate::snapshot::Snapshot;
use crate::whatif::Advice;

/// Lines about the failed request: where it was made, what it may have been for, what was still needed after it, and
/// how many failed before. `size` formats a number of bytes.
pub fn request(
    snapshot: &Snapshot,
    origins: &Origins,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let Some(failure) = device.failure else { return Vec::new() };
    let origin = origins.get(failure.stack);
    let at = match (origin.line, origin.forward.or(device.forward_lines.get(Some(failure.at)))) {
        (Some(frame), _) => format!(" at {}", words::line(snapshot, frame)),
        (None, Some(forward)) => {
            let operator = origin.operator;
            format!(
                " by the {}",
                words::backward(snapshot, BackwardBlock { operator, forward: Some(forward) })
            )
        }
        (None, None) => String::new(),
    };
    let phase = phases::failed_in(device);
    let mut lines = Vec::new();
    if !(at.is_empty() && phase.is_empty()) {
        let comma = if at.is_empty() || phase.is_empty() { "" } else { "," };
        lines.push(format!("requested{at}{comma}{phase}"));
    }
    for (nth, shape) in shapes(snapshot, origins, device, &size).into_iter().enumerate() {
        lines.push(format!("{} {shape}", if nth == 0 { "perhaps" } else { "     or" }));
    }
    lines.extend(still_needed(device, &failure, &size));
    if failure.failures > 1 {
        lines.push(format!("the last of {} failed requests", failure.failures));
    }
    lines
}

/// A line about what the program still needed after the request, and how many bytes are missing for all of this.
fn still_needed(
    device: &DeviceExplanation,
    failure: &Failure,
    size: impl Fn(u64) -> String,
) -> Option<String> {
    let needed = device.still_needed.as_ref()?;
    let of = match needed.rest {
        Rest::OptimizerState { .. } | Rest::OptimizerStep => needed.rest.name().to_owned(),
        Rest::Layers { layer, layers, bytes_each } => {
            format!("the rest of layer {layer} and the layers up to {layers}, {} each", size(bytes_each))
        }
    };
    let short = needed.short_bytes(failure);
    let short =
        short.map_or_else(String::new, |bytes| format!("; short by at least {} in total", size(bytes)));
    Some(format!("still needed: at least {} for {of} ({}){short}", size(needed.bytes), needed.confidence))
}

/// A sentence with the cause of the failure, the main figure, and the change that would have helped. `leak` is the
/// sentence about a leak, if memory leaks. `size` formats a number of bytes.
pub(super) fn sentence(
    device: &DeviceExplanation,
    failure: &Failure,
    leak: Option<String>,
    size: impl Fn(u64) -> String,
) -> String {
    let asked = format!("Tried to allocate {}", size(failure.asked_bytes));
    let (limit, (at_most, at_least)) = (limit(failure, &size), bounds(failure));
    let cause = match failure.cause() {
        Cause::Capacity { short_bytes } => {
            let needed = device.still_needed.as_ref();
            let all = needed.and_then(|needed| Some((needed.short_bytes(failure)?, needed.confidence)));
            let all = all.map_or_else(String::new, |(all, sure)| {
                format!(", and by at least {} including what the program still needed ({sure})", size(all))
            });
            let short = format!("{asked}, short by {at_most}{}{all}", size(short_bytes));
            match (leak, device.held_by_others(), &limit) {
                (Some(leak), _, _) => format!("LEAK, {leak}. {short}"),
                (None, Some(others), _) => format!(
                    "USED BY OTHERS. {short}; {} of the device is used outside this allocator: other processes \
                     (nvidia-smi lists them), NCCL, the CUDA context",
                    size(others)
                ),
                (None, None, Some(_)) => format!("CAPACITY. {short}"),
                (None, None, None) => format!(
                    "CAPACITY. {short}; the program needs more than the device has; allocator settings and empty_cache() cannot help"
                ),
            }
        }
        Cause::Fragmentation { spare_bytes } => format!(
            "FRAGMENTATION. {asked}, which would fit with {at_least}{} to spare if free memory were contiguous{}; {}{}",
            size(spare_bytes),
            holes(device, &size),
            help(device),
            if is_full(failure, spare_bytes) {
                "; but live blocks fill more than 99 % of the capacity: expect a later request to fail"
            } else {
                ""
            },
        ),
        Cause::Limit { short_bytes } => format!(
            "PROCESS LIMIT. {asked}, short by at most {} if free memory were contiguous, and perhaps not \
             short at all; {}",
            size(short_bytes),
            help(device)
        ),
        Cause::Unknown => {
            format!("{asked}; the recording does not include the device's free memory")
        }
    };
    let shared = shared(failure, &size).unwrap_or_default();
    format!("out of memory: {cause}{}{shared}", limit.unwrap_or_default())
}

/// A phrase with the number and size of the holes.
fn holes(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    let Holes { count, largest_bytes, cached, .. } = device.fragmentation.all;
    match count {
        0 => String::new(),
        1 => format!(" (one hole of {})", size(cached.sum())),
        _ => format!(" ({} in {count} holes, the largest {})", size(cached.sum()), size(largest_bytes)),
    }
}

/// The words before the number of missing bytes and before the number of spare bytes: if a limit is not exact, these
/// numbers are bounds.
fn bounds(failure: &Failure) -> (&'static str, &'static str) {
    match failure.limit {
        Some(limit) if !limit.is_exact() => ("at most ", "at least "),
        _ => ("", ""),
    }
}

/// Whether almost no memory would be left over if free memory were contiguous.
fn is_full(failure: &Failure, spare_bytes: u64) -> bool {
    failure.capacity_bytes().is_some_and(|capacity| spare_bytes < capacity / 100)
}

/// The clause about the process's limit, if the limit rejected the request.
fn limit(failure: &Failure, size: impl Fn(u64) -> String) -> Option<String> {
    let (limit, free) = failure.limit.zip(failure.device_free_bytes)?;
    let of = if limit.is_exact() {
        format!("the memory limit of {}", size(limit.at_least_bytes))
    } else {
        let (least, below) = (size(limit.at_least_bytes), size(limit.below_bytes));
        format!("the process limit (set_per_process_memory_fraction), between {least} and {below}")
    };
    Some(format!("; the device had {} free: the request was refused by {of}", size(free)))
}

/// The clause about other processes, if less memory was available than any device has.
fn shared(failure: &Failure, size: impl Fn(u64) -> String) -> Option<String> {
    let capacity = failure.capacity_bytes().filter(|_| failure.is_shared)?;
    Some(format!(
        "; only {} was available in total, less than any GPU has: other processes use the rest (likely; nvidia-smi lists them)",
        size(capacity)
    ))
}

/// A phrase about the setting that would have helped.
fn help(device: &DeviceExplanation) -> String {
    let Some(what_if) = &device.what_if else { return "no setting was tried".to_owned() };
    match what_if.advice() {
        Advice::NotReproduced => {
            "it succeeds in the replay of the recorded settings too, so settings cannot be compared"
                .to_owned()
        }
        Advice::Serves(row) if row.outcome.serves_rest.is_some() => {
            format!("{} would have served it and what was still needed (replayed)", row.name())
        }
        Advice::Serves(row) => format!("{} would have served it (replayed)", row.name()),
        Advice::ServesOneRequest(row) => format!(
            "{} would have served it, but no replayed setting serves what the program still needed after it",
            row.name()
        ),
        Advice::NothingRecorded => "no setting was tried".to_owned(),
        Advice::NoneServes | Advice::FewerRetries(_) | Advice::Saves(_) | Advice::NothingBetter => {
            let is_open = device.failure.and_then(|failure| failure.limit).is_some_and(|it| !it.is_exact());
            let within = if is_open { " at the lowest possible limit" } else { "" };
            format!("none of the replayed settings would have served it{within}")
        }
    }
}
