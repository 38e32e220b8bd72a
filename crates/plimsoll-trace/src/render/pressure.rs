//! Sentences about requests that the device rejected at first: [`lines`].

use super::words;
use crate::explain::{DeviceExplanation, Origins};
use crate::pressure::{Pressure, Retry};
use crate::snapshot::Snapshot;

/// Sentences about the number of retries, the first retry, and the capacity that the retries show; empty if there was
/// no retry. `size` formats a number of bytes.
pub fn lines(
    snapshot: &Snapshot,
    origins: &Origins,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let Pressure { retries, capacity, .. } = &device.pressure;
    let Some((first, limit)) = retries.first().zip(*capacity) else { return Vec::new() };
    let were = words::plural(retries.len() as u64, "request was", "requests were");
    let which = if retries.len() > 1 { "the first requested" } else { "it requested" };
    vec![
        format!(
            "{} {were} retried after releasing cached memory, which synchronizes the device: \
             {which} {}{} with {} reserved, of which {} was released",
            retries.len(),
            size(first.segment_bytes),
            at(snapshot, origins, first),
            size(first.reserved_bytes),
            size(first.released_bytes),
        ),
        format!(
            "so the capacity was at least {} and less than {}",
            size(limit.at_least_bytes),
            size(limit.below_bytes)
        ),
    ]
}

/// The line of the program that made the request, as the end of a sentence.
fn at(snapshot: &Snapshot, origins: &Origins, retry: &Retry) -> String {
    let line = origins.get(retry.stack).line;
    line.map_or_else(String::new, |frame| format!(" at {}", words::line(snapshot, frame)))
}
