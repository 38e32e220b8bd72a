//! A finished or failed job in words: the verdict, then where every byte went.

use std::fmt::Write;

use plimsoll::memory::{self, Report};
use plimsoll::{Bytes, Category, OutOfMemory};

use super::job::{Job, Outcome};
use super::progress::percent;
use super::smallest::{GRAIN_BYTES, Smallest};
use crate::output::{BOLD, RESET};

/// Owners that a report lists by name; the rest is one row.
const LISTED: usize = 10;

/// The result of a finished job.
pub(crate) fn text(job: &Job, outcome: &Outcome) -> String {
    let memory = &outcome.memory;
    let mut out = format!("{BOLD}{}{RESET}\n\n", verdict(job, outcome));
    categories(&mut out, memory);
    reserved(&mut out, outcome);
    owners(&mut out, memory);
    beyond(&mut out, outcome);
    out
}

/// The first line.
pub(crate) fn verdict(job: &Job, outcome: &Outcome) -> String {
    let memory = &outcome.memory;
    let bound = if memory.limit_bytes.is_some() { "the limit of" } else { "this device's" };
    let fits = format!(
        "fits with {} to spare: at most {} reserved of {bound} {}",
        Bytes(memory.spare_bytes()),
        Bytes(memory.peak_reserved_bytes),
        Bytes(memory.bound_bytes())
    );
    match outcome.correct.last() {
        Some(&right) => {
            let of = job.data.split.test.len();
            format!("{fits}; accuracy {} ({right} of {of} test images)", percent(right, of))
        }
        None => format!("{fits} (memory only: {} computes no values)", memory.device),
    }
}

fn share(bytes: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * bytes as f64 / of as f64 }
}

// Writing to a `String` cannot fail; the results below are dropped for that reason.

fn row(out: &mut String, name: &str, bytes: u64, of: u64, note: &str) {
    let line = format!("  {name:<28} {:>12} {:>8.2} %  {note}", Bytes(bytes).to_string(), share(bytes, of));
    let _ = writeln!(out, "{}", line.trim_end());
}

fn categories(out: &mut String, memory: &Report) {
    let peak = memory.peak_allocated_bytes;
    let _ = writeln!(out, "{BOLD}Peak of allocated bytes, by category{RESET}");
    for share in memory.by_category.iter().filter(|share| share.bytes > 0) {
        row(out, share.category.plural(), share.bytes, peak, memory::why(share.category));
    }
    row(out, "allocated at the peak", peak, peak, "");
}

fn reserved(out: &mut String, outcome: &Outcome) {
    let memory = &outcome.memory;
    let (peak, reserved) = (memory.peak_allocated_bytes, memory.peak_reserved_bytes);
    let _ = writeln!(out, "\n{BOLD}Allocated against reserved{RESET}");
    row(out, "allocated at the peak", peak, reserved, "max_memory_allocated");
    row(
        out,
        "cached, beyond that",
        reserved.saturating_sub(peak),
        reserved,
        "free blocks and the rest of segments",
    );
    row(out, "reserved at the peak", reserved, reserved, "max_memory_reserved: what the limit bounds");
    let Some(outside) = memory.outside_bytes else {
        let _ = writeln!(out, "  outside the allocator        unknown: this system has no /proc/self/status");
        return;
    };
    let rows = [
        (
            "outside the allocator",
            outside,
            "resident beside the above, at most: program, threads, packing buffers, …",
        ),
        ("  of it the data set", outcome.data_set_bytes, ""),
        ("  of it batches, at most", outcome.batches_bytes, "being prepared by the loader"),
    ];
    for (name, bytes, note) in rows.into_iter().filter(|&(_, bytes, _)| bytes > 0) {
        let line = format!("  {name:<28} {:>12}             {note}", Bytes(bytes).to_string());
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn owners(out: &mut String, memory: &Report) {
    let peak = memory.peak_allocated_bytes;
    let _ = writeln!(out, "\n{BOLD}Largest owners at the peak{RESET}");
    let (listed, rest) = memory.owners.split_at(memory.owners.len().min(LISTED));
    for owner in listed {
        row(out, &owner_name(&owner.label, owner.category), owner.bytes, peak, "");
    }
    if !rest.is_empty() {
        row(out, &format!("{} more", rest.len()), rest.iter().map(|owner| owner.bytes).sum(), peak, "");
    }
}

/// `conv2.weight`, `conv2.weight gradient`, `fc1 activation`: the category where the name does not say it.
pub(crate) fn owner_name(label: &str, category: Category) -> String {
    let label = if label.is_empty() { "unnamed" } else { label };
    match category {
        Category::Parameter | Category::Buffer | Category::OptimizerState => label.to_owned(),
        _ => format!("{label} {}", category.name()),
    }
}

fn beyond(out: &mut String, outcome: &Outcome) {
    let (memory, weights) = (&outcome.memory, outcome.parameters);
    let peak = memory.peak_allocated_bytes;
    let _ = writeln!(
        out,
        "\n{BOLD}Beyond the weights{RESET}: {} of weights, {} more to train them ({:.1} times)",
        Bytes(weights),
        Bytes(peak.saturating_sub(weights)),
        share(peak.saturating_sub(weights), weights) / 100.0
    );
    for (share, why) in memory.beyond_parameters() {
        let _ = writeln!(out, "  {:>12}  {}: {why}", Bytes(share.bytes).to_string(), share.category.plural());
    }
}

/// Why a job ran out, who asked, and what would have been enough.
pub(crate) fn out_of_memory(report: &OutOfMemory, smallest: Option<&Smallest>) -> String {
    let Some(&Smallest { limit_bytes, fits_device, tried }) = smallest else {
        return format!(
            "{report}\nno limit was found under which this job passes; try a smaller --batch-size"
        );
    };
    let advice = if report.is_system_refusal() {
        "the system refused although the device has room: look at the limits of the process (ulimit -v) and at \
         what others hold"
            .to_owned()
    } else if fits_device {
        format!("try: --memory-limit {}MiB, or a smaller --batch-size", limit_bytes >> 20)
    } else {
        "this device has less than that; try a smaller --batch-size".to_owned()
    };
    format!(
        "{report}\nthe smallest limit that this job passes with is {} ({limit_bytes} bytes); with {} less it fails \
         (found by {tried} runs on the simulated device)\n{advice}",
        Bytes(limit_bytes),
        Bytes(GRAIN_BYTES)
    )
}
