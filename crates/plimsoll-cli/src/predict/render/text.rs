//! The text report: the verdict, the peaks, the owners of the memory, the effect of other settings.

use std::fmt::Write;

use plimsoll_trace::explain::Cause;

use super::graphs;
use super::limits::limits;
use super::lines::{WIDTH, line, wrapped};
use super::reads;
use super::sentences::{verdict, when};
use super::traces;
use super::{brief, warnings};
use crate::explain::text::tables;
use crate::output::{BOLD, RESET};
use crate::page::quoted;
use crate::predict::analysis::growth::{Each, Growth};
use crate::predict::analysis::judged::Judged;
use crate::predict::analysis::shortage::Shortage;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::analysis::without::Without;
use crate::predict::answer::Outcome;
use crate::predict::args::PredictArgs;
use crate::predict::gpu::{LEAST_CONTEXT_BYTES, Target};
use crate::protocol::Peaks;

/// The whole answer: one screen, or everything with `--full`.
pub(crate) fn render(outcome: &Outcome, target: &Target, args: &PredictArgs) -> String {
    let size = |bytes: u64| args.shown.size(bytes);
    let verdict = verdict(outcome, target, size);
    if args.verdict_only {
        return wrapped(&verdict, usize::MAX);
    }
    let verdict = if args.full { verdict } else { wrapped(&verdict, WIDTH) };
    let mut out = format!("{BOLD}{verdict}{RESET}\n");
    head(&mut out, outcome, target, args);
    if args.full {
        whole(&mut out, outcome, target, args);
    } else {
        out += &brief::render(outcome, target, args);
    }
    out
}

/// The lines below the verdict: the next command, the peaks under other conditions, warnings.
fn head(out: &mut String, outcome: &Outcome, target: &Target, args: &PredictArgs) {
    let size = |bytes: u64| args.shown.size(bytes);
    graphs::sentences(outcome, size).iter().for_each(|sentence| line(out, sentence));
    // Writing to a `String` cannot fail.
    if let Some(next) = next(outcome, target, args) {
        let _ = writeln!(out, "Next: {next}");
    }
    if let Some((without, modelled)) = outcome.without_workspaces.as_ref().zip(outcome.modelled()) {
        other_peaks(out, &format!("without {modelled} workspaces"), without, size);
    }
    if let Some(warm) = outcome.with_warm_caches.as_ref().filter(|warm| outcome.differs(warm)) {
        other_peaks(
            out,
            "with a warm compile cache, without requests to compile and to time kernels",
            warm,
            size,
        );
    }
    if let Some(zero) = &outcome.without_assumptions {
        line(out, &format!("with zero instead of the --assume values: {}", verdict(zero, target, size)));
        let peak = |it: &Outcome| it.judged.as_ref().map(|judged| judged.peaks.reserved_bytes);
        if let (Some(one), Some(other)) = (peak(outcome), peak(zero)) {
            let (least, most) = (size(one.min(other)), size(one.max(other)));
            let _ = writeln!(out, "range: {least} to {most} reserved");
        }
    }
    if let Verdict::Failed { hint: Some(hint), .. } = &outcome.verdict {
        line(out, hint);
    }
    for problem in reads::problems(&outcome.reports) {
        line(out, &format!("warning: {problem}"));
    }
    for warning in warnings::lines(outcome, target.capacity_bytes(), size) {
        line(out, &format!("warning: {warning}"));
    }
}

/// The tables, and all limits.
fn whole(out: &mut String, outcome: &Outcome, target: &Target, args: &PredictArgs) {
    let size = |bytes: u64| args.shown.size(bytes);
    let techniques = outcome.techniques().iter().map(|it| {
        let effect = if it.applied { "applied" } else { "no effect" };
        let detail = if it.detail.is_empty() { String::new() } else { format!(": {}", it.detail) };
        format!("{:<16}  {effect}{detail}", it.name)
    });
    section(out, "Techniques", &techniques.collect::<Vec<_>>());
    processes(out, outcome, size);
    if let Some(judged) = &outcome.judged {
        peaks(out, judged, outcome.is_exact(target), target, size);
        // The owners of memory do not help with a program that failed for another reason.
        let failed = matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_));
        let analysis = judged.analysis.as_ref().filter(|_| !failed);
        if let Some(analysis) = analysis {
            tables(out, &analysis.explained, analysis.device(), args.shown);
        }
    }
    if !matches!(outcome.verdict, Verdict::Failed { .. }) {
        values(out, outcome);
        section(out, "Not run", &reads::unseen(&outcome.reports));
    }
    section(out, "Would have been written", &traces::lines(&outcome.traces, size));
    section(out, "New files kept in caches", &traces::kept(&outcome.traces));
    section(out, "Hosts contacted", &outcome.traces.hosts);
    section(out, "Not included", &limits(outcome, size));
}

/// The next command, if the verdict calls for one.
pub(crate) fn next(outcome: &Outcome, target: &Target, args: &PredictArgs) -> Option<String> {
    let words: Vec<String> = args.command.iter().map(|word| quoted(word.as_ref())).collect();
    let devices = if args.devices > 1 { format!(" --devices {}", args.devices) } else { String::new() };
    let (options, command) = (format!("{}{devices}", target.options), words.join(" "));
    let is_unplanned = args.rank.is_some() || args.find.is_some();
    match &outcome.verdict {
        // No technique changes a limit that the program set itself, and `plan` runs whole jobs.
        Verdict::RunsOut(Shortage { cause: Cause::Limit { .. }, .. }) => None,
        Verdict::RunsOut(_) | Verdict::Grows(Growth { each: Each::Batch, total: Some(_), .. })
            if !is_unplanned =>
        {
            Some(format!("plimsoll plan {options} -- {command}"))
        }
        Verdict::Grows(Growth { each: Each::Step, .. }) if !is_unplanned => Some(format!(
            "plimsoll predict {options} --steps 8 --snapshot grows.pickle -- {command} && plimsoll leaks grows.pickle"
        )),
        Verdict::Grows(_) => Some(format!("plimsoll predict {options} --whole -- {command}")),
        _ => None,
    }
}

/// The peaks without some of the requests.
fn other_peaks(out: &mut String, what: &str, without: &Without, size: impl Fn(u64) -> String) {
    let text = format!(
        "{what} ({} requests, of {} at most): {} allocated, {} reserved",
        without.left_out,
        size(without.largest_bytes),
        size(without.allocated_bytes),
        size(without.reserved_bytes)
    );
    line(out, &text);
}

/// A heading and its lines; nothing if there are no lines.
fn section(out: &mut String, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}{heading}{RESET}");
    for line in lines {
        let _ = writeln!(out, "  {line}");
    }
}

/// The reads of device values that decide a size or a branch.
fn values(out: &mut String, outcome: &Outcome) {
    let lines: Vec<String> = reads::rows(&outcome.reports).iter().map(reads::line).collect();
    section(out, reads::HEADING, &lines);
}

/// The peaks, and the process around them.
fn peaks(out: &mut String, judged: &Judged, exact: bool, target: &Target, size: impl Fn(u64) -> String) {
    let Judged { report, peaks, .. } = judged;
    let Peaks { allocated_bytes, allocated_step, reserved_bytes, reserved_step, .. } = *peaks;
    let _ = writeln!(out, "\n{BOLD}The peaks{RESET} (PyTorch {}, {})", report.torch, target.name);
    let rows = [
        (
            "allocated",
            allocated_bytes,
            format!(
                "max_memory_allocated(){}; up to 1 % different on a GPU, where the first addresses differ from run to run",
                when(allocated_step, report)
            ),
        ),
        (
            "reserved",
            reserved_bytes,
            format!(
                "max_memory_reserved(){}{}",
                when(reserved_step, report),
                if exact { "" } else { "; not exact: the reasons are below" }
            ),
        ),
    ];
    for (name, bytes, note) in rows {
        let _ = writeln!(out, "  {:>12}  {name:<22}  {note}", size(bytes));
    }
    let (least, most) = (LEAST_CONTEXT_BYTES.min(target.context_bytes), target.context_bytes);
    let _ = writeln!(
        out,
        "  {:>12}  the process, at most    at least {}: context and libraries take {} to {}",
        size(reserved_bytes + most),
        size(reserved_bytes + least),
        size(least),
        size(most)
    );
    let _ = writeln!(out, "  {:>12}  the device", size(target.total_bytes));
}

/// A row per process and device, if there are several.
fn processes(out: &mut String, outcome: &Outcome, size: impl Fn(u64) -> String) {
    let rows = outcome.rows();
    if rows.len() < 2 {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Processes{RESET}");
    for (report, peaks) in rows {
        let ran_out = if report.failures > 0 { "  ran OUT" } else { "" };
        let _ = writeln!(
            out,
            "  {:<14} device {:<3} {:>12} allocated  {:>12} reserved  {:>4} steps{ran_out}",
            report.name(),
            peaks.device,
            size(peaks.allocated_bytes),
            size(peaks.reserved_bytes),
            report.steps
        );
    }
}
