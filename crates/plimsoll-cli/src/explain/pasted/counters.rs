//! The allocator's counters: the peaks, the cached memory, and the facts that the counters do not show.

use plimsoll_trace::message::{Counter, Counters};
use plimsoll_trace::render::words::counted;
use serde_json::{Value, json};

use super::next;
use super::said::Said;
use crate::shown::Shown;

pub(super) fn said(counters: &Counters, shown: Shown) -> Said {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| shown.size(bytes));
    let (allocated, reserved) = (counters.allocated, counters.reserved);
    let failed = match counters.failures {
        Some(0) => "nothing ran out of memory".to_owned(),
        Some(count) => format!("out of memory {}", counted(count, "time")),
        None => "whether memory ran out is unknown".to_owned(),
    };
    let row = |name: &str, counter: Counter| {
        let (now, peak) = (size(counter.current_bytes), size(counter.peak_bytes));
        format!("  {now:>14}  {peak:>14}  {name}")
    };
    let mut lines = vec![format!("  {:>14}  {:>14}", "now", "at the peak")];
    lines.push(row("allocated", allocated));
    lines.push(row("active: allocated, or waiting for a stream", counters.active));
    lines.push(row("reserved", reserved));
    lines.push(row("cached, pinned by live blocks (0 for expandable segments)", counters.inactive_split));
    if let Some(retries) = counters.retries {
        lines.push(format!("  {} served only after releasing the cache", counted(retries, "request")));
    }
    let device = counters.device.map_or_else(String::new, |device| format!("GPU {device}: "));
    Said {
        kind: "counters",
        verdict: format!(
            "{device}{failed}; peak {} allocated, {} reserved",
            size(allocated.peak_bytes),
            size(reserved.peak_bytes)
        ),
        lines,
        unknown: vec![
            "whether memory was short or fragmented: the error message says more",
            "which tensors use the memory",
            "the GPU's memory, and what other processes use",
        ],
        help: pinned(counters, shown).into_iter().collect(),
        next: vec![next::run("python FILE"), next::plan(None, "python FILE")],
        figures: figures(counters),
    }
}

/// Advice about cached memory that cannot be released, if it is a large part of the memory.
fn pinned(counters: &Counters, shown: Shown) -> Option<String> {
    let (pinned, reserved) = (counters.inactive_split.current_bytes?, counters.reserved.current_bytes?);
    (pinned > reserved / 10).then(|| {
        format!(
            "{} of the reserved memory is free, but in segments that hold other blocks: PYTORCH_CUDA_ALLOC_CONF=\
             expandable_segments:True avoids this",
            shown.size(pinned)
        )
    })
}

fn figures(counters: &Counters) -> Value {
    let counter = |it: Counter| json!({ "current_bytes": it.current_bytes, "peak_bytes": it.peak_bytes });
    json!({
        "device": counters.device,
        "allocated": counter(counters.allocated),
        "active": counter(counters.active),
        "reserved": counter(counters.reserved),
        "inactive_split": counter(counters.inactive_split),
        "out_of_memory": counters.failures,
        "alloc_retries": counters.retries,
    })
}
