//! The text report: the verdict, the peaks, the owners of the memory, the effect of other settings.

use std::fmt::Write;

use plimsoll_trace::explain::Cause;

use super::PredictArgs;
use super::answer::{Judged, Outcome, Shortage, Verdict};
use super::gpu::{LEAST_CONTEXT_BYTES, Target};
use super::grows::{Each, Growth};
use super::limits::limits;
use super::reads;
use super::report::{Peaks, Refusal, Report};
use super::traces;
use super::without::Without;
use super::{brief, warnings};
use crate::bytes;
use crate::explain::text::tables;
use crate::output::{BOLD, RESET};
use crate::page::quoted;

/// The whole answer: one screen, or everything with `--full`.
pub(super) fn render(outcome: &Outcome, target: &Target, args: &PredictArgs) -> String {
    let size = |bytes: u64| args.shown.size(bytes);
    let verdict = verdict(outcome, target, size);
    if args.verdict_only {
        return brief::wrapped(&verdict, usize::MAX);
    }
    let verdict = if args.full { verdict } else { brief::wrapped(&verdict, 100) };
    let mut out = format!("{BOLD}{verdict}{RESET}\n");
    head(&mut out, outcome, target, args);
    if args.full {
        whole(&mut out, outcome, target, args);
    } else {
        out += &brief::render(outcome, target, args);
    }
    out
}

/// What comes right after the verdict: the next command, the peaks under other conditions, warnings.
fn head(out: &mut String, outcome: &Outcome, target: &Target, args: &PredictArgs) {
    let size = |bytes: u64| args.shown.size(bytes);
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
        brief::line(
            out,
            &format!("with zero instead of the --assume values: {}", verdict(zero, target, size)),
        );
        let peak = |it: &Outcome| it.judged.as_ref().map(|judged| judged.peaks.reserved_bytes);
        if let (Some(one), Some(other)) = (peak(outcome), peak(zero)) {
            let (least, most) = (size(one.min(other)), size(one.max(other)));
            let _ = writeln!(out, "range: {least} to {most} reserved");
        }
    }
    if let Verdict::Failed { hint: Some(hint), .. } = &outcome.verdict {
        brief::line(out, hint);
    }
    for problem in reads::problems(&outcome.reports) {
        brief::line(out, &format!("warning: {problem}"));
    }
    for warning in warnings::lines(outcome, size) {
        brief::line(out, &format!("warning: {warning}"));
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
    section(out, "Hosts contacted", &outcome.traces.hosts);
    section(out, "Not included", &limits(outcome, size));
}

/// The next command, where the verdict asks for one.
pub(super) fn next(outcome: &Outcome, target: &Target, args: &PredictArgs) -> Option<String> {
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
    brief::line(out, &text);
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
        Verdict::Fits { spare_bytes, caught } => {
            let caught = match caught {
                0 => String::new(),
                1 => "; the program caught 1 error of running out of memory".to_owned(),
                count => format!("; the program caught {count} errors of running out of memory"),
            };
            match &outcome.growth {
                Some(growth) => format!("{}{who}{caught}", ends_well(growth, target, &size)),
                None => {
                    let scope = scope(outcome);
                    format!("fits {name} with {} to spare{scope}: {}{caught}", size(*spare_bytes), at_most())
                }
            }
        }
        Verdict::RunsOut(shortage) => runs_out(outcome, shortage, target, &who, &size),
        Verdict::Grows(growth) => grows(growth, target, &size) + &who,
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

/// The sentence for a program that ran out.
fn runs_out(
    outcome: &Outcome,
    shortage: &Shortage,
    target: &Target,
    who: &str,
    size: &impl Fn(u64) -> String,
) -> String {
    let Shortage { step, line, asked_bytes, cause, caught, is_saved_by_caches } = shortage;
    let name = &target.name;
    let when = match &outcome.judged {
        Some(judged) if judged.report.went_on && *step > judged.report.steps => {
            format!("after step {}", judged.report.steps)
        }
        _ => format!("in step {step}"),
    };
    let caught = if *caught { "; the program caught the error and gave up" } else { "" };
    let saved = if *is_saved_by_caches {
        "; torch.compile made the request, to compile or to time kernels, and makes none with a warm compile cache"
    } else {
        ""
    };
    if let Some(need) = &outcome.need {
        let place = line.as_ref().map_or_else(String::new, |line| format!(" at {}", without_function(line)));
        let least = if need.is_least { "at least " } else { "" };
        let computed = match &need.growth {
            Some(growth) => computed(growth),
            None => need.cut.first().map_or_else(String::new, |cut| format!(" ({cut})")),
        };
        let about = if computed.is_empty() { "" } else { "about " };
        let (all, more) = (size(need.bytes), size(need.more_bytes));
        let gaps = if need.judged.peaks.allocated_bytes <= target.capacity_bytes() && need.growth.is_none() {
            format!(
                "; {} are allocated, so gaps between blocks decide",
                size(need.judged.peaks.allocated_bytes)
            )
        } else {
            String::new()
        };
        let who = who.replacen(", in ", " of ", 1);
        return format!(
            "runs OUT of memory: needs {least}{about}{all}{computed}, {more} more than {name} offers; first fails{place} \
             {when}{who}{gaps}{caught}{saved}"
        );
    }
    let place = line.as_ref().map_or_else(String::new, |line| format!(" at {line}"));
    let short = match *cause {
        Cause::Capacity { short_bytes } => format!(", short by {}", size(short_bytes)),
        Cause::Fragmentation { .. } => ", which would fit if the free memory were contiguous".to_owned(),
        Cause::Limit { short_bytes } => {
            format!(", short by at most {} under a limit that the program set itself", size(short_bytes))
        }
        Cause::Unknown => String::new(),
    };
    let (asked, who) = (size(*asked_bytes), who.replacen(',', "", 1));
    format!(
        "runs OUT of memory on {name} in step {step}{place}: requested {asked}{who}{short}{caught}{saved}"
    )
}

/// The file's name and the line of `folder/train.py:7 <module>`.
fn without_function(line: &str) -> &str {
    let line = line.split_once(' ').map_or(line, |(place, _)| place);
    line.rsplit(['/', '\\']).next().unwrap_or(line)
}

/// The sentence for memory that grows until it is out.
fn grows(growth: &Growth, target: &Target, size: &impl Fn(u64) -> String) -> String {
    let Growth { each, bytes, seen, total, line, end_bytes, out_at, .. } = growth;
    let bytes = size(*bytes);
    let place = line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    match (each, end_bytes, out_at) {
        (Each::Step, _, Some(out_at)) => {
            let of = total.map_or_else(String::new, |total| format!(" of {}", thousands(total)));
            format!("grows by {bytes} a step: out of memory in about step {}{of}{place}", thousands(*out_at))
        }
        (Each::Batch, Some(end), _) => format!(
            "runs OUT of memory: needs about {}{}, {} more than {} offers; grows by {bytes} a batch{place}",
            size(*end),
            computed(growth),
            size(end.saturating_sub(target.capacity_bytes())),
            target.name
        ),
        (Each::Batch, None, Some(out_at)) => format!(
            "grows by {bytes} a batch: out of memory in about batch {} of a loader without a length, seen over {seen}{place}",
            thousands(*out_at)
        ),
        _ => format!("grows by {bytes} a step{place}"),
    }
}

/// The sentence for memory that grows and still suffices.
fn ends_well(growth: &Growth, target: &Target, size: &impl Fn(u64) -> String) -> String {
    let Growth { each, bytes, total, line, end_bytes, spare_bytes, .. } = growth;
    let place = line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    let (bytes, end, spare) = (size(*bytes), size(end_bytes.unwrap_or(0)), size(*spare_bytes));
    let total = thousands(total.unwrap_or(0));
    match each {
        Each::Step => format!(
            "grows by {bytes} a step{place}: needs about {end} at the end of its {total} steps, {spare} less than {} offers",
            target.name
        ),
        Each::Batch => format!(
            "grows by {bytes} a batch{place}: needs about {end}{}, {spare} less than {} offers",
            computed(growth),
            target.name
        ),
    }
}

/// Growth from step to step, and what it comes to; `None` if that is unknown.
pub(super) fn growth(growth: &Growth) -> Option<String> {
    let Growth { each: Each::Step, bytes, total: Some(total), line, end_bytes: Some(end), .. } = growth
    else {
        return None;
    };
    let size = |bytes| bytes::shown(bytes, false);
    let place = line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    let (bytes, end, total) = (size(*bytes), size(*end), thousands(*total));
    Some(format!("grows by {bytes} a step{place}, to {end} at the end of its {total} steps"))
}

/// From what the need was computed.
fn computed(growth: &Growth) -> String {
    match (growth.each, growth.total) {
        (Each::Batch, Some(total)) => {
            format!(", computed from {} of {} batches", thousands(growth.seen), thousands(total))
        }
        (Each::Step, Some(total)) => format!(" at the end of its {} steps", thousands(total)),
        _ => String::new(),
    }
}

/// `1,390`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
pub(super) fn when(step: u64, report: &Report) -> String {
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
