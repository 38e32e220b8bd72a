//! What would help, in a line or two, and the next command.

use std::fmt::Write;

use plimsoll_trace::explain::leaks::Verdict;
use plimsoll_trace::explain::{Cause, DeviceExplanation};
use plimsoll_trace::render::words;

use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::page::quoted;

/// What would help, the most effective first. Empty if nothing failed and nothing leaks.
pub(crate) fn lines(
    explained: &Explained,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let mut lines = Vec::new();
    if device.leaks.whole.verdict == Verdict::Leaking {
        let file = quoted(explained.file.as_ref());
        lines
            .push(format!("memory that stays from step to step: free it first. Next: plimsoll leaks {file}"));
    }
    let Some(failure) = device.failure else { return lines };
    if let Some(others) = device.held_by_others() {
        lines.push(format!(
            "{} of the device is used outside this allocator: end those processes (nvidia-smi lists them)",
            size(others)
        ));
    }
    match failure.cause() {
        Cause::Capacity { short_bytes } => {
            let needed = device.still_needed.as_ref().and_then(|needed| needed.short_bytes(&failure));
            let least = size(needed.unwrap_or(short_bytes).max(short_bytes));
            let gpu = gpu(device);
            lines.push(format!(
                "the program needs at least {least} more than there is: settings and empty_cache() cannot help. Next: plimsoll \
                 plan --gpu {gpu} -- COMMAND"
            ));
        }
        Cause::Fragmentation { .. } | Cause::Limit { .. } => {
            let best = device.what_if.as_ref().map(|what_if| words::best_setting(what_if, &size));
            lines.push(best.unwrap_or_else(|| {
                "free memory is in pieces: try PYTORCH_ALLOC_CONF=expandable_segments:True".to_owned()
            }));
        }
        Cause::Unknown => {}
    }
    lines
}

/// The GPU as an option: its size, where the recording has it.
fn gpu(device: &DeviceExplanation) -> String {
    device.ledger.device.total.map_or_else(|| "NAME".to_owned(), |bytes| format!("{}MiB", bytes >> 20))
}

/// The lines below the verdict.
pub(super) fn section(
    out: &mut String,
    explained: &Explained,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) {
    let lines = lines(explained, device, size);
    if lines.is_empty() {
        return;
    }
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "\n{BOLD}What would help{RESET}");
    for line in lines {
        let _ = writeln!(out, "  {line}");
    }
}
