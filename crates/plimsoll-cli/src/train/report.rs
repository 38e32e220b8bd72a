//! A finished or failed job as text: the verdict, then the memory of each category and owner.

use std::fmt::Write;

use plimsoll::memory::{self, Report};
use plimsoll::parallel::Shard;
use plimsoll::{Bytes, Category, OutOfMemory};
use plimsoll_trace::render::words::counted;

use super::job::{Job, Outcome, Together};
use super::progress::{self, percent};
use super::saves::Saves;
use super::savings::Saving;
use super::smallest::{GRAIN_BYTES, Smallest};
use super::stop::Signal;
use super::task::{Metric, Sampled};
use crate::output::{BOLD, RESET};

/// The maximum number of owners that a report lists by name; all others share one row.
const LISTED: usize = 10;

/// The result of a job that finished.
pub(crate) fn text(job: &Job, outcome: &Outcome, savings: &[Saving], saves: Option<&Saves>) -> String {
    let memory = &outcome.memory;
    let mut out = format!("{BOLD}{}{RESET}\n", verdict(job, outcome, saves));
    if let Some(rate) = outcome.units_per_second {
        let (seconds, rate) = (outcome.elapsed.as_secs_f64(), progress::rate(rate, job.task.unit()));
        let _ = writeln!(out, "{} steps done in {seconds:.1} s: {rate}", outcome.steps);
    }
    if let Some(step) = outcome.estimated_step {
        let unit = job.task.unit();
        let rate =
            progress::rate((job.batch_size * unit.per_sample as usize) as f64 / step.as_secs_f64(), unit);
        let ms = step.as_secs_f64() * 1e3;
        let _ = writeln!(
            out,
            "a step takes about {ms:.1} ms, {rate}: estimated, for a host that keeps up with the GPU"
        );
    }
    if let Some(Sampled { prompt, text }) = &outcome.sample {
        let _ = writeln!(out, "\n{BOLD}Sample after {prompt:?}{RESET}\n{text}");
    }
    out.push('\n');
    categories(&mut out, memory);
    reserved(&mut out, outcome);
    owners(&mut out, memory);
    techniques(&mut out, savings);
    ranks(&mut out, outcome);
    beyond(&mut out, outcome);
    out
}

/// The first line.
pub(crate) fn verdict(job: &Job, outcome: &Outcome, saves: Option<&Saves>) -> String {
    let memory = &outcome.memory;
    let bound = if memory.limit_bytes.is_some() { "the limit of" } else { "this device's" };
    let fits = format!(
        "fits with {} to spare: at most {} reserved of {bound} {}",
        Bytes(memory.spare_bytes()),
        Bytes(memory.peak_reserved_bytes),
        Bytes(memory.bound_bytes())
    );
    if let Some(signal) = outcome.signal {
        return format!("{}; {fits}", stopped(signal, outcome, saves));
    }
    match outcome.scores.last() {
        Some(&score) => format!("{fits}; {}", measured(job.task.metric(), score, outcome.tested)),
        None => format!("{fits} (memory only: {} computes no values)", memory.device),
    }
}

/// How a signal ended the run, and how to continue.
fn stopped(signal: Signal, outcome: &Outcome, saves: Option<&Saves>) -> String {
    let Outcome { steps, planned_steps, .. } = outcome;
    let at = format!("stopped by {} after step {steps} of {planned_steps}", signal.name());
    match saves {
        Some(saves) if saves.failure().is_none() => {
            format!("{at}: continue with --resume {}", saves.folder().display())
        }
        Some(_) => format!("{at}, not saved"),
        None => format!("{at}, not saved: there is no --save"),
    }
}

/// The result of the last test.
fn measured(metric: Metric, score: f64, of: usize) -> String {
    match metric {
        Metric::Accuracy => {
            let right = score as usize;
            format!("accuracy {} ({right} of {of} test images)", percent(right, of))
        }
        Metric::Loss => {
            let loss = score / of.max(1) as f64;
            format!("validation loss {loss:.4} ({:.3} bits per token)", loss / std::f64::consts::LN_2)
        }
    }
}

fn share(bytes: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * bytes as f64 / of as f64 }
}

// Writing to a `String` cannot fail, so the results below are ignored.

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
    let _ = writeln!(out, "\n{BOLD}Allocated and reserved{RESET}");
    row(out, "allocated at the peak", peak, reserved, "max_memory_allocated");
    row(out, "cached", reserved.saturating_sub(peak), reserved, "free blocks and unused parts of segments");
    row(out, "reserved at the peak", reserved, reserved, "max_memory_reserved, to which the limit applies");
    let Some(outside) = memory.outside_bytes else {
        let _ = writeln!(out, "  outside the allocator        unknown: this system has no /proc/self/status");
        return;
    };
    let what = match memory.workspace_bytes {
        None => "the rest of peak resident memory: program, threads, packing buffers, …",
        Some(_) => "the rest of the GPU's memory: context, kernels, workspaces, other processes",
    };
    let (data, batches) = match memory.workspace_bytes {
        None => ("  of which the data set", "  of which batches, at most"),
        Some(_) => ("data set on the host", "batches on the host, at most"),
    };
    let rows = [
        ("outside the allocator", outside, what),
        (
            "  of which workspaces",
            memory.workspace_bytes.unwrap_or(0),
            "of cuBLASLt and cuDNN, 32 MiB per stream",
        ),
        (data, outcome.data_set_bytes, ""),
        (batches, outcome.batches_bytes, "prepared ahead by the loader"),
    ];
    for (name, bytes, note) in rows.into_iter().filter(|&(_, bytes, _)| bytes > 0) {
        let line = format!("  {name:<28} {:>12}             {note}", Bytes(bytes).to_string());
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// What each technique saved, by runs without it.
fn techniques(out: &mut String, savings: &[Saving]) {
    if savings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Techniques{RESET} (compared with simulated steps without each)");
    for saving in savings {
        let saved = Bytes(saving.saved_bytes().unsigned_abs()).to_string();
        let word = if saving.saved_bytes() < 0 { "costs" } else { "saves" };
        let longer = 100.0 * (saving.times_as_long - 1.0);
        let numbers = saving.numbers.name();
        let _ = writeln!(
            out,
            "  {:<28} {word} {saved}, step time about {longer:+.1} %, numbers {numbers}",
            saving.option
        );
        let _ = writeln!(out, "  {:<28} in Rust: {}", "", saving.in_rust);
    }
}

/// The shared results of the ranks.
fn ranks(out: &mut String, outcome: &Outcome) {
    let Some(together) = &outcome.together else { return };
    let Together { shard, replicate, tensor, buckets, units, slot_bytes, sent_bytes_per_step, peaks } =
        together;
    let _ = writeln!(out, "\n{BOLD}Ranks{RESET} (the figures above are rank 0's)");
    let mut line = |name: &str, bytes: u64, note: String| {
        let _ = writeln!(out, "  {name:<28} {:>12}             {note}", Bytes(bytes).to_string());
    };
    if *tensor > 1 {
        let note = format!("of {} that share each layer", counted(*tensor as u64, "rank"));
        line("one rank's parameters", outcome.parameters, note);
    }
    if *tensor > 1 && buckets.is_empty() {
        // Its gradients are not exchanged.
    } else if *shard == Shard::Nothing {
        let total = buckets.iter().map(|bucket| bucket.bytes).sum();
        let note = format!("in {}, exchanged as they fill", counted(buckets.len() as u64, "bucket"));
        line("buckets of gradients", total, note);
    } else {
        let (total, ranks) = (units.iter().map(|unit| unit.bytes).sum::<u64>(), peaks.len() as u64);
        let note = format!("in {}, padded", counted(units.len() as u64, "unit"));
        line("whole parameters", total, note);
        let copies =
            if *replicate > 1 { format!("; {replicate} ranks have the same") } else { String::new() };
        let part = total / (ranks / *replicate as u64).max(1);
        line("one rank's part of them", part, format!("{}{copies}", words(*shard)));
        if *slot_bytes > 0 {
            line("buffers to gather them", *slot_bytes, "for two blocks and the rest".to_owned());
        }
    }
    line(
        "sent by a rank per step",
        *sent_bytes_per_step,
        format!("to {}", counted(peaks.len() as u64 - 1, "other")),
    );
    let reserved = || peaks.iter().map(|(_, reserved)| *reserved);
    let (least, most) = (reserved().min().unwrap_or(0), reserved().max().unwrap_or(0));
    if least == most {
        line("reserved at the peak", most, format!("on each of {} ranks", peaks.len()));
    } else {
        line("reserved at the peak, most", most, format!("of {} ranks", peaks.len()));
        line("reserved at the peak, least", least, String::new());
    }
}

/// The sharded tensors, in words.
fn words(shard: Shard) -> &'static str {
    match shard {
        Shard::Nothing => "nothing is sharded",
        Shard::OptimizerState => "with the same part of the optimizer's state",
        Shard::Gradients => "with the same part of gradients and the optimizer's state",
        Shard::Parameters => "with the same part of gradients and the optimizer's state",
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

/// `conv2.weight`, `conv2.weight gradient`, `fc1 activation`: the category is added if the name does not
/// imply it.
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
        "\n{BOLD}Beyond the weights{RESET}: {1}, which is {2:.1} times the {0} of weights",
        Bytes(weights),
        Bytes(peak.saturating_sub(weights)),
        share(peak.saturating_sub(weights), weights) / 100.0
    );
    for (share, why) in memory.beyond_parameters() {
        let _ = writeln!(out, "  {:>12}  {}: {why}", Bytes(share.bytes).to_string(), share.category.plural());
    }
}

/// Why a job ran out of memory, which request failed, and how much would have been enough.
pub(crate) fn out_of_memory(job: &Job, report: &OutOfMemory, smallest: Option<&Smallest>) -> String {
    let fit = if job.fitted.is_none() { ", or --fit SIZE in place of a limit" } else { "" };
    let smaller = format!("{}{fit}", job.task.smaller());
    if job.group.rank() > 0 {
        return report.to_string(); // the first rank looks for the limit
    }
    let Some(&Smallest { limit_bytes, fits_device, tried }) = smallest else {
        return format!("{report}\nfound no limit that works for this job; try {smaller}");
    };
    let advice = if let Some(others) = report.held_by_others_bytes() {
        format!(
            "others hold {} of this device: its context, and other processes (on a GPU, `nvidia-smi` names them); end these processes, or use another device",
            Bytes(others)
        )
    } else if report.is_system_refusal() {
        "the system refused the memory although the device has room: check the limits of the process (ulimit -v) and \
         the memory of other processes"
            .to_owned()
    } else if fits_device {
        format!("try: --memory-limit {}MiB, or {smaller}", limit_bytes >> 20)
    } else {
        format!("this device has less than that; try {smaller}")
    };
    format!(
        "{report}\nthe smallest limit that works for this job is {} ({limit_bytes} bytes); with {} less it fails \
         (found by {tried} runs on the simulated device)\n{advice}",
        Bytes(limit_bytes),
        Bytes(GRAIN_BYTES)
    )
}
