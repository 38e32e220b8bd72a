//! The text report: the verdict, the peaks, the owners of the memory, the effect of other settings.

use std::fmt::Write;

use plimsoll_trace::explain::Cause;

use super::PredictArgs;
use super::answer::{Judged, Outcome, Shortage, Verdict};
use super::gpu::{LEAST_CONTEXT_BYTES, Target};
use super::limits::limits;
use super::reads;
use super::report::{Peaks, Refusal, Report};
use super::without::Without;
use crate::explain::text::tables;
use crate::output::{BOLD, RESET};

/// The whole answer.
pub(super) fn render(outcome: &Outcome, target: &Target, args: &PredictArgs) -> String {
    let size = |bytes: u64| args.shown.size(bytes);
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{BOLD}{}{RESET}", verdict(outcome, target, size));
    if let Some((without, modelled)) = outcome.without_workspaces.as_ref().zip(outcome.modelled()) {
        other_peaks(&mut out, &format!("without {modelled} workspaces"), without, size);
    }
    if let Some(warm) = outcome.with_warm_caches.as_ref().filter(|warm| outcome.differs(warm)) {
        other_peaks(
            &mut out,
            "with a warm compile cache, without requests to compile and to time kernels",
            warm,
            size,
        );
    }
    if let Some(zero) = &outcome.without_assumptions {
        let _ = writeln!(out, "with zero instead of the --assume values: {}", verdict(zero, target, size));
        let peak = |it: &Outcome| it.judged.as_ref().map(|judged| judged.peaks.reserved_bytes);
        if let (Some(one), Some(other)) = (peak(outcome), peak(zero)) {
            let (least, most) = (size(one.min(other)), size(one.max(other)));
            let _ = writeln!(out, "range: {least} to {most} reserved");
        }
    }
    if let Verdict::Failed { hint: Some(hint), .. } = &outcome.verdict {
        let _ = writeln!(out, "{hint}");
    }
    let techniques = outcome.techniques().iter().map(|it| {
        let effect = if it.applied { "applied" } else { "no effect" };
        let detail = if it.detail.is_empty() { String::new() } else { format!(": {}", it.detail) };
        format!("{:<16}  {effect}{detail}", it.name)
    });
    section(&mut out, "Techniques", &techniques.collect::<Vec<_>>());
    processes(&mut out, outcome, size);
    if let Some(judged) = &outcome.judged {
        peaks(&mut out, judged, outcome.is_exact(target), target, size);
        // The owners of memory do not help with a program that failed for another reason.
        let failed = matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_));
        let analysis = judged.analysis.as_ref().filter(|_| !failed);
        if let Some(analysis) = analysis {
            tables(&mut out, &analysis.explained, analysis.device(), args.shown);
        }
    }
    if !matches!(outcome.verdict, Verdict::Failed { .. }) {
        values(&mut out, outcome);
        section(&mut out, "Not run", &reads::unseen(&outcome.reports));
    }
    let kept = reads::kept_files(&outcome.reports);
    let kept: Vec<String> = kept.into_iter().map(|(path, what)| format!("{path}: {what}")).collect();
    section(&mut out, "Files left unchanged, because the values computed here are zeros", &kept);
    let limits = limits(outcome, size);
    if !limits.is_empty() {
        let _ = writeln!(out, "\n{BOLD}Not included{RESET}");
        limits.iter().for_each(|limit| {
            let _ = writeln!(out, "  {limit}");
        });
    }
    out
}

/// The peaks without some of the requests.
fn other_peaks(out: &mut String, what: &str, without: &Without, size: impl Fn(u64) -> String) {
    let _ = writeln!(
        out,
        "{what} ({} requests, of {} at most): {} allocated, {} reserved",
        without.left_out,
        size(without.largest_bytes),
        size(without.allocated_bytes),
        size(without.reserved_bytes)
    );
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

/// The part of the program that the answer covers, unless it is the whole: ` in the first 3 steps`.
fn scope(outcome: &Outcome) -> String {
    let Some(judged) = &outcome.judged else { return String::new() };
    let report = &judged.report;
    match (report.cut, report.went_on) {
        (false, _) => String::new(),
        (true, false) => format!(" in {}", reads::counted(report.steps)),
        (true, true) => format!(" in {} and after the training", reads::counted(report.steps)),
    }
}

/// The verdict in one sentence.
pub(super) fn verdict(outcome: &Outcome, target: &Target, size: impl Fn(u64) -> String) -> String {
    let name = &target.name;
    let who = match &outcome.judged {
        Some(judged) if outcome.rows().len() > 1 => {
            format!(", in {} on its device {}", judged.report.name(), judged.peaks.device)
        }
        _ => String::new(),
    };
    let at_most = || outcome.judged.as_ref().map_or_else(String::new, |judged| at_most(judged, &size) + &who);
    match &outcome.verdict {
        Verdict::Fits { spare_bytes } => {
            format!("fits {name} with {} to spare{}: {}", size(*spare_bytes), scope(outcome), at_most())
        }
        Verdict::RunsOut(Shortage { step, line, asked_bytes, cause, caught, is_saved_by_caches }) => {
            let place = line.as_ref().map_or_else(String::new, |line| format!(" at {line}"));
            let short = match *cause {
                Cause::Capacity { short_bytes } => format!(", short by {}", size(short_bytes)),
                Cause::Fragmentation { .. } => {
                    ", which would fit if the free memory were contiguous".to_owned()
                }
                Cause::Limit { short_bytes } => {
                    format!(
                        ", short by at most {} under a limit that the program set itself",
                        size(short_bytes)
                    )
                }
                Cause::Unknown => String::new(),
            };
            let caught = if *caught { "; the program caught the error and continued" } else { "" };
            let saved = if *is_saved_by_caches {
                "; torch.compile made the request, to compile or to time kernels, and makes none with a warm compile cache"
            } else {
                ""
            };
            let asked = size(*asked_bytes);
            let who = who.replacen(',', "", 1);
            format!(
                "runs OUT of memory on {name} in step {step}{place}: requested {asked}{who}{short}{caught}{saved}"
            )
        }
        Verdict::Refused(Refusal { technique, reason }) => {
            format!("{technique} cannot be applied to this program: {reason}; leave it out of --with")
        }
        Verdict::Failed { how, .. } => format!("the program FAILED, but not because of memory: {how}"),
        Verdict::Unknown(why) => {
            let seen = at_most();
            let seen = if seen.is_empty() { seen } else { format!("; up to then {seen}") };
            format!("no answer: {why}{seen}")
        }
    }
}

/// The peaks and their steps.
fn at_most(judged: &Judged, size: impl Fn(u64) -> String) -> String {
    let Judged { report, peaks, .. } = judged;
    let (allocated, reserved) = (size(peaks.allocated_bytes), size(peaks.reserved_bytes));
    let [first, second] = [peaks.allocated_step, peaks.reserved_step].map(|step| when(step, report));
    if first == second {
        format!("at most {allocated} allocated, {reserved} reserved{first}")
    } else {
        format!("at most {allocated} allocated{first}, {reserved} reserved{second}")
    }
}

/// The step of a peak, to end a sentence; empty for a program without steps.
fn when(step: u64, report: &Report) -> String {
    match report.steps {
        0 => String::new(),
        steps if step > steps && step != report.failed_step => format!(" after step {steps}"),
        _ => format!(" in step {step}"),
    }
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
