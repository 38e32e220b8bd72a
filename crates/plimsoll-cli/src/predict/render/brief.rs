//! The report on one screen: at most 40 lines of 100 columns. `--full` has the rest.

use std::fmt::Write;

use plimsoll_trace::render::words;

use super::limits::limits;
use super::lines::{cut, line};
use super::{reads, sentences, traces};
use crate::output::{BOLD, RESET};
use crate::predict::analysis::judged::{Analysis, Judged};
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::args::PredictArgs;
use crate::predict::gpu::{LEAST_CONTEXT_BYTES, Target};

/// Rows of each table of owners.
const ROWS: usize = 6;

/// Rows of processes.
const PROCESSES: usize = 8;

/// What follows the verdict, the next command and the warnings.
pub(super) fn render(outcome: &Outcome, target: &Target, args: &PredictArgs) -> String {
    let size = |bytes: u64| args.shown.size(bytes);
    let mut out = String::new();
    let failed = matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_));
    let techniques = outcome.techniques().iter().map(|it| {
        let effect = if it.applied { "applied" } else { "no effect" };
        format!("{} {effect}", it.name)
    });
    let techniques: Vec<String> = techniques.collect();
    if !techniques.is_empty() {
        line(&mut out, &format!("techniques: {}", techniques.join(", ")));
    }
    let judged = outcome.need.as_ref().map(|need| &need.judged).or(outcome.judged.as_ref());
    if let Some(judged) = judged {
        account(&mut out, outcome, judged, target, size);
    }
    processes(&mut out, outcome, size);
    if let Some(analysis) = judged.and_then(|judged| judged.analysis.as_ref()).filter(|_| !failed) {
        owners(&mut out, analysis, size);
    }
    let rest = rest(outcome, target, size);
    if !rest.is_empty() {
        out.push('\n');
    }
    rest.iter().for_each(|sentence| line(&mut out, sentence));
    out
}

/// The GPU's memory, as a sum.
fn account(
    out: &mut String,
    outcome: &Outcome,
    judged: &Judged,
    target: &Target,
    size: impl Fn(u64) -> String,
) {
    let growth = outcome.need.as_ref().map_or(outcome.growth.as_ref(), |need| need.growth.as_ref());
    let end_bytes = growth.and_then(|growth| growth.end_bytes);
    let measured_bytes = judged.peaks.reserved_bytes;
    let reserved_bytes = measured_bytes.max(end_bytes.unwrap_or(0));
    let allocated = size(judged.peaks.allocated_bytes);
    let when = sentences::when(judged.peaks.reserved_step, &judged.report);
    // Where the allocated bytes alone exceed the GPU's memory, they are the need, as in the verdict.
    let needed_bytes = outcome.need.as_ref().map(|need| need.bytes);
    let is_allocated =
        needed_bytes.is_some_and(|it| it < reserved_bytes && it == judged.peaks.allocated_bytes);
    let counted_bytes = if is_allocated { judged.peaks.allocated_bytes } else { reserved_bytes };
    let measured = if is_allocated {
        format!(
            "allocated by PyTorch at its peak{when}; {} reserved where there is room",
            size(reserved_bytes)
        )
    } else if reserved_bytes > measured_bytes {
        format!("reserved by PyTorch at the end, computed; {} measured", size(measured_bytes))
    } else {
        format!("reserved by PyTorch at its peak{when}; {allocated} allocated")
    };
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "\n{BOLD}Memory of {}{RESET} (PyTorch {})", target.name, judged.report.torch);
    let least = LEAST_CONTEXT_BYTES.min(target.context_bytes);
    let mut row = |bytes: u64, what: &str| line(out, &format!("  {:>12}  {what}", size(bytes)));
    row(counted_bytes, &measured);
    row(
        target.context_bytes,
        &format!("outside of it, at most: CUDA context and libraries (at least {})", size(least)),
    );
    row(target.total_bytes, "the GPU");
    let taken = counted_bytes + target.context_bytes;
    match &outcome.verdict {
        Verdict::Fits { spare_bytes, .. } => {
            let taken = outcome.largest_bytes().map_or_else(String::new, |_| {
                format!(", of which unknown values may take {}", size(outcome.stake_bytes()))
            });
            row(*spare_bytes, &format!("to spare{taken}"));
        }
        Verdict::RunsOut(_) | Verdict::Grows(_) if taken > target.total_bytes => {
            row(taken - target.total_bytes, "too little");
        }
        _ => {}
    }
}

/// A row for each process and device, if there are several.
fn processes(out: &mut String, outcome: &Outcome, size: impl Fn(u64) -> String) {
    let rows = outcome.rows();
    if rows.len() < 2 {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Processes{RESET}");
    for (report, peaks) in rows.iter().take(PROCESSES) {
        let ran_out = if report.failures > 0 { "  ran OUT" } else { "" };
        let (allocated, reserved) = (size(peaks.allocated_bytes), size(peaks.reserved_bytes));
        let (name, device) = (report.name(), peaks.device);
        line(
            out,
            &format!(
                "  {name:<14} device {device:<3} {allocated:>12} allocated  {reserved:>12} reserved{ran_out}"
            ),
        );
    }
    if rows.len() > PROCESSES {
        line(out, &format!("  {} more", rows.len() - PROCESSES));
    }
}

/// The largest owners, by category and by line.
fn owners(out: &mut String, analysis: &Analysis, size: impl Fn(u64) -> String) {
    let (device, snapshot) = (analysis.device(), &analysis.explained.snapshot);
    let owners = &device.owners;
    let mut table = |heading: &str, rows: Vec<(u64, String)>| {
        let _ = writeln!(out, "\n{BOLD}{heading}{RESET}");
        let mut row = |bytes: u64, what: &str| {
            let percent = if owners.bytes == 0 { 0.0 } else { 100.0 * bytes as f64 / owners.bytes as f64 };
            let text = format!("  {:>12} {percent:>6.1} %  {what}", size(bytes));
            let _ = writeln!(out, "{}", cut(&text));
        };
        rows.iter().take(ROWS).for_each(|(bytes, what)| row(*bytes, what));
        let rest: u64 = rows.iter().skip(ROWS).map(|(bytes, _)| bytes).sum();
        if rest > 0 {
            row(rest, &format!("{} more", rows.len() - ROWS));
        }
    };
    let mut categories: Vec<(u64, String)> = Vec::new();
    for share in &owners.by_category {
        let name = words::category(snapshot, share.key.category).into_owned();
        match categories.iter_mut().find(|(_, known)| *known == name) {
            Some((bytes, _)) => *bytes += share.bytes,
            None => categories.push((share.bytes, name)),
        }
    }
    categories.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let lines = owners.by_line.iter().map(|share| {
        let (place, purpose) =
            (words::asker(snapshot, share.key), words::purpose(snapshot, share.key.category));
        (share.bytes, format!("{purpose:<15}  {place}"))
    });
    table(&format!("Live memory {}, by category", words::when(device)), categories);
    table("By line", lines.collect());
}

/// One line each about code that did not run, files, and what the figures leave out.
fn rest(outcome: &Outcome, target: &Target, size: impl Fn(u64) -> String) -> Vec<String> {
    let mut lines = Vec::new();
    if !matches!(outcome.verdict, Verdict::Failed { .. }) {
        let unseen = reads::unseen(&outcome.reports);
        let more = if unseen.len() > 1 { format!(" ({} more)", unseen.len() - 1) } else { String::new() };
        lines.extend(unseen.first().map(|first| format!("Not run: {first}{more}")));
    }
    lines.extend(traces::line(&outcome.traces, &size));
    let limits = limits(outcome, size);
    let exact = if outcome.is_exact(target) { "" } else { ", and why the figures are not exact" };
    let all = match limits.len() {
        0 => "--full: all tables, and other allocator settings".to_owned(),
        1 => format!("--full: all tables, other allocator settings, what is not included{exact}"),
        count => format!(
            "--full: all tables, other allocator settings, {count} things that are not included{exact}"
        ),
    };
    lines.push(all);
    lines
}
