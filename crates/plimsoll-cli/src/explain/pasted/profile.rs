//! A trace of torch.profiler with memory events: the peaks of each GPU, and the requests that failed.

use plimsoll_trace::message::{Profile, ProfiledDevice};
use plimsoll_trace::render::words::counted;
use serde_json::json;

use super::next;
use super::said::Said;
use crate::exit::{Exit, Failure};
use crate::shown::Shown;

/// # Errors
/// If the trace has no memory events of a GPU.
pub(super) fn said(file: &str, profile: &Profile, shown: Shown) -> Result<Said, Failure> {
    let devices: Vec<(&u32, &ProfiledDevice)> =
        profile.devices.iter().filter(|(_, it)| it.events > 0).collect();
    let worst = devices.iter().max_by_key(|(_, it)| (it.failed.is_some(), it.peak_allocated_bytes));
    let Some((number, worst)) = worst else {
        let message = format!(
            "{file} has no memory events of a GPU: profile again with torch.profiler.profile(profile_memory=True)"
        );
        return Err(Failure::new(Exit::Unreadable, message));
    };
    let size = |bytes| shown.size(bytes);
    let what = match worst.failed {
        Some((bytes, _)) => format!("out of memory: tried to allocate {}", size(bytes)),
        None => "nothing failed".to_owned(),
    };
    let rows = devices.iter().map(|(number, it)| {
        let failed = it.failed.map_or_else(String::new, |(_, count)| format!(", {} failed", counted(count, "request")));
        let of = it.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
        format!(
            "  GPU {number}{of}: peak {} allocated, {} reserved; {} allocated at the end; the largest block {}; {}{failed}",
            size(it.peak_allocated_bytes),
            size(it.peak_reserved_bytes),
            size(it.last_allocated_bytes),
            size(it.largest_bytes),
            counted(it.events, "memory event")
        )
    });
    let steps = match profile.steps {
        0 => "  steps: none marked".to_owned(),
        steps => format!("  steps: {steps}"),
    };
    let figures = devices.iter().map(|(number, it)| {
        json!({
            "device": number,
            "name": it.name,
            "device_bytes": it.capacity_bytes,
            "peak_allocated_bytes": it.peak_allocated_bytes,
            "peak_reserved_bytes": it.peak_reserved_bytes,
            "last_allocated_bytes": it.last_allocated_bytes,
            "largest_bytes": it.largest_bytes,
            "events": it.events,
            "out_of_memory": it.failed.map_or(0, |(_, count)| count),
            "asked_bytes": it.failed.map(|(bytes, _)| bytes),
        })
    });
    let program = "python FILE";
    Ok(Said {
        kind: "profile",
        verdict: format!(
            "GPU {number}: {what}; peak {} allocated, {} reserved while the profiler ran",
            size(worst.peak_allocated_bytes),
            size(worst.peak_reserved_bytes)
        ),
        lines: rows.chain([steps]).collect(),
        unknown: vec![
            "which lines and tensors use the memory: the events have addresses and sizes only",
            "peaks before and after the profiled steps",
            "memory outside PyTorch's allocator",
        ],
        help: Vec::new(),
        next: match worst.failed {
            Some(_) => vec![next::plan(worst.capacity_bytes, program), next::run(program)],
            None => vec![next::run(program)],
        },
        figures: json!({ "steps": profile.steps, "devices": figures.collect::<Vec<_>>() }),
    })
}
