//! The sentences of the answer: the verdict, and growth.

use plimsoll_trace::explain::Cause;

use super::{host, reads};
use crate::bytes;
use crate::bytes::thousands;
use crate::predict::analysis::growth::{Each, Growth};
use crate::predict::analysis::judged::Judged;
use crate::predict::analysis::shortage::Shortage;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::gpu::Target;
use crate::predict::recording::read::place;
use crate::protocol::{Refusal, Report, Varying};

/// The part of the program that the answer covers, unless it covers everything: ` in the first 3 steps`.
fn scope(outcome: &Outcome) -> String {
    let Some(judged) = &outcome.judged else { return String::new() };
    let report = &judged.report;
    let (steps, unrun) = (reads::counted(report.steps), unrun(report));
    match (report.cut, report.went_on) {
        (false, _) => broken(report),
        (true, false) if unrun.is_empty() => format!(" in {steps}{}", late(report)),
        (true, false) => format!(" in {steps}{unrun}"),
        (true, true) if unrun.is_empty() => format!(" in {steps} and after the training{}", late(report)),
        (true, true) => format!(" in {steps} and part of the code after them{unrun}"),
    }
}

/// A phrase for a training loop that an unknown value ended early. Empty if none did.
fn broken(report: &Report) -> String {
    let Some(it) = report.breaks.as_ref().filter(|it| it.is_early) else { return String::new() };
    let steps = reads::counted(report.steps);
    format!(" in {steps}, after which an unknown value ended the loop ({})", place(&it.file, it.line))
}

/// The code after the last step that may need memory and did not run, in parentheses. Empty if there is none.
fn unrun(report: &Report) -> String {
    let Some(first) = report.after.first().filter(|_| report.cut) else { return String::new() };
    let more = match report.after.len() - 1 {
        0 => String::new(),
        1 => " and 1 more line".to_owned(),
        more => format!(" and {more} more lines"),
    };
    let were = if more.is_empty() { "was" } else { "were" };
    format!(" ({}{more} after the loop {were} not run: --whole)", place(&first.file, first.line))
}

/// The line of the next size that changes after the last step, and the step in which it changes.
pub(crate) fn changes(report: &Report) -> Option<(String, u64)> {
    let first = report.late.iter().find(|late| late.changes)?;
    Some((place(&first.file, first.line), first.steps?))
}

/// The code of the training loop that may need memory and did not run, in parentheses. Empty if there is none.
fn late(report: &Report) -> String {
    let mut lines = report.late.iter().filter(|late| !late.first);
    let Some(first) = lines.next() else { return String::new() };
    let at = place(&first.file, first.line);
    if let Some(step) = first.steps.filter(|_| first.changes) {
        let more = match lines.count() {
            0 => String::new(),
            1 => ", and 1 more line was not run".to_owned(),
            more => format!(", and {more} more lines were not run"),
        };
        return format!(" ({at} changes in step {}{more}: --whole)", thousands(step));
    }
    let more = match lines.count() {
        0 => " was".to_owned(),
        1 => " and 1 more line were".to_owned(),
        more => format!(" and {more} more lines were"),
    };
    format!(" ({at}{more} not run: --whole)")
}

/// A clause about reserved bytes that were still growing when the run was cut short, because steps differ in size.
/// Empty if the reserved bytes had settled.
fn unsettled(outcome: &Outcome, size: impl Fn(u64) -> String) -> String {
    let judged = outcome.judged.as_ref().filter(|judged| judged.report.cut);
    let found = judged.and_then(|judged| {
        judged.report.varying.iter().find(|it| it.device == judged.peaks.device && it.bytes > 0)
    });
    let grew = found.and_then(|it| Some((it, it.more_bytes()?)));
    grew.map_or_else(String::new, |(Varying { bytes, steps, left, .. }, more)| {
        format!(
            ", which still grew, by {} in the last {steps} steps, because batches differ in size: at this rate, by {} in the {} steps \
             that are left (--whole runs them)",
            size(*bytes),
            size(more),
            thousands(left.unwrap_or(0))
        )
    })
}

/// The verdict in one sentence.
pub(crate) fn verdict(outcome: &Outcome, target: &Target, size: impl Fn(u64) -> String) -> String {
    let gpus = gpus_verdict(outcome, target, &size);
    let lacks = outcome.host.as_ref().and_then(|node| host::shortage(node, &size));
    match (lacks, &outcome.verdict) {
        (None, _) | (_, Verdict::Failed { .. } | Verdict::Refused(_)) => gpus,
        (Some(lacks), Verdict::Fits { .. }) => {
            format!("runs OUT of memory on the host: {lacks}; the GPU is large enough: {gpus}")
        }
        (Some(lacks), _) => format!("{gpus}; it also {lacks}"),
    }
}

/// The verdict for the GPU alone, without the host.
pub(crate) fn gpus_verdict(outcome: &Outcome, target: &Target, size: &impl Fn(u64) -> String) -> String {
    let name = &target.name;
    let who = match &outcome.judged {
        Some(judged) if outcome.rows().len() > 1 => {
            format!(", in {} on its device {}", judged.report.name(), judged.peaks.device)
        }
        _ => String::new(),
    };
    let at_most = || outcome.judged.as_ref().map_or_else(String::new, |judged| at_most(judged, size) + &who);
    match &outcome.verdict {
        Verdict::Fits { spare_bytes, caught } => {
            let caught = match caught {
                0 => String::new(),
                1 => "; the program caught 1 out-of-memory error".to_owned(),
                count => format!("; the program caught {count} out-of-memory errors"),
            };
            match &outcome.growth {
                Some(growth) => {
                    let unrun =
                        outcome.judged.as_ref().map_or_else(String::new, |judged| unrun(&judged.report));
                    format!("{}{who}{unrun}{caught}", ends_well(growth, target, size))
                }
                None => {
                    let (scope, caught) = (scope(outcome), unsettled(outcome, size) + &caught);
                    if outcome.may_not_fit() {
                        return format!(
                            "may NOT fit {name}: {} to spare{scope}, but unknown values may take up to {} more (warning below): {}{caught}",
                            size(*spare_bytes),
                            size(outcome.stake_bytes()),
                            at_most()
                        );
                    }
                    if let Some((largest, zero)) = outcome.largest_bytes().zip(outcome.reserved_bytes()) {
                        return format!(
                            "fits {name} with {} to spare{scope}: {} to {} reserved, depending on unknown values (warning below){who}{caught}",
                            size(spare_bytes - (largest - zero)),
                            size(zero),
                            size(largest)
                        );
                    }
                    format!("fits {name} with {} to spare{scope}: {}{caught}", size(*spare_bytes), at_most())
                }
            }
        }
        Verdict::RunsOut(shortage) => runs_out(outcome, shortage, target, &who, size),
        Verdict::Grows(growth) => grows(growth, target, size) + &who,
        Verdict::Refused(Refusal { technique, reason }) => {
            format!("{technique} cannot be applied to this program: {reason}; leave it out of --with")
        }
        Verdict::Failed { how, .. } => format!("the program itself FAILED, not for lack of memory: {how}"),
        Verdict::Unknown(why) => {
            let seen = at_most();
            let seen = if seen.is_empty() { seen } else { format!("; up to then {seen}") };
            format!("no answer: {why}{seen}")
        }
    }
}

/// The sentence for a program that ran out of memory.
fn runs_out(
    outcome: &Outcome,
    shortage: &Shortage,
    target: &Target,
    who: &str,
    size: &impl Fn(u64) -> String,
) -> String {
    let Shortage { step, line, asked_bytes, owner, cause, caught, is_saved_by_caches } = shortage;
    let name = &target.name;
    let when = match &outcome.judged {
        Some(judged) if judged.report.went_on && *step > judged.report.steps => after(&judged.report),
        _ => format!("in step {step}"),
    };
    let caught = if *caught { "; the program caught the error and gave up" } else { "" };
    let saved = if *is_saved_by_caches {
        "; torch.compile made the request while compiling or timing kernels; with a warm compile cache it makes none"
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
                "; only {} is allocated: gaps between blocks take the rest",
                size(need.judged.peaks.allocated_bytes)
            )
        } else {
            String::new()
        };
        let who = who.replacen(", in ", " of ", 1);
        let owner = owner.as_ref().map_or_else(String::new, |owner| format!(", for {owner}"));
        return format!(
            "runs OUT of memory: needs {least}{about}{all}{computed}, {more} more than {name} offers; first fails{place} \
             {when}{who}{owner}{gaps}{caught}{saved}"
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
    let asked = owner.as_ref().map_or_else(|| asked.clone(), |owner| format!("{asked} for {owner}"));
    format!(
        "runs OUT of memory on {name} in step {step}{place}: requested {asked}{who}{short}{caught}{saved}"
    )
}

/// Shortens `folder/train.py:7 <module>` to `train.py:7`.
fn without_function(line: &str) -> &str {
    let line = line.split_once(' ').map_or(line, |(place, _)| place);
    line.rsplit(['/', '\\']).next().unwrap_or(line)
}

/// The sentence for memory that grows until it runs out.
fn grows(growth: &Growth, target: &Target, size: &impl Fn(u64) -> String) -> String {
    let Growth { each, bytes, every, seen, total, line, end_bytes, out_at, is_peak, breaks, .. } = growth;
    let (bytes, often) = (size(*bytes), one_in(*each, *every));
    let place = line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    match (each, end_bytes, out_at) {
        (Each::Step | Each::Epoch | Each::Round, _, Some(out_at)) => {
            let of = total.map_or_else(String::new, |total| format!(" of {}", thousands(total)));
            let unless = breaks
                .as_ref()
                .map_or_else(String::new, |line| format!(", unless {line} ends the loop before"));
            let out_at = thousands(*out_at);
            if *is_peak {
                let seen = thousands(*seen);
                return format!(
                    "the peak grows by {bytes} {often}: if it goes on as in the first {seen} steps, out of memory at about step {out_at}{of}"
                );
            }
            let each = each.name();
            format!("grows by {bytes} {often}: out of memory at about {each} {out_at}{of}{place}{unless}")
        }
        (Each::Batch, Some(end), _) => format!(
            "runs OUT of memory: needs about {}{}, {} more than {} offers; grows by {bytes} a batch{place}",
            size(*end),
            computed(growth),
            size(end.saturating_sub(target.capacity_bytes())),
            target.name
        ),
        (Each::Batch, None, Some(out_at)) => format!(
            "grows by {bytes} a batch: out of memory at about batch {} of a loader without a length, seen over {seen}{place}",
            thousands(*out_at)
        ),
        _ => format!("grows by {bytes} {often}{place}"),
    }
}

/// The sentence for memory that grows but does not run out.
fn ends_well(growth: &Growth, target: &Target, size: &impl Fn(u64) -> String) -> String {
    let Growth { each, bytes, every, line, end_bytes, spare_bytes, is_peak, .. } = growth;
    let (what, often) = (if *is_peak { "the peak grows" } else { "grows" }, one_in(*each, *every));
    let place = line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    let (bytes, end, spare) = (size(*bytes), size(end_bytes.unwrap_or(0)), size(*spare_bytes));
    match each {
        Each::Step | Each::Epoch | Each::Round => format!(
            "{what} by {bytes} {often}{place}: needs about {end}{}, {spare} less than {} offers",
            at_the_end(growth),
            target.name
        ),
        Each::Batch => format!(
            "grows by {bytes} a batch{place}: needs about {end}{}, {spare} less than {} offers",
            computed(growth),
            target.name
        ),
    }
}

/// A sentence about growth from step to step, with the reserved bytes at the end; `None` if these are unknown.
pub(crate) fn growth(growth: &Growth) -> Option<String> {
    let Growth {
        each: Each::Step, bytes, every, total: Some(_), line, end_bytes: Some(end), is_peak, ..
    } = growth
    else {
        return None;
    };
    let what = if *is_peak { "the peak grows" } else { "grows" };
    let size = |bytes| bytes::shown(bytes, false);
    let place = line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    let (bytes, end) = (size(*bytes), size(*end));
    let often = one_in(Each::Step, *every);
    Some(format!("{what} by {bytes} {often}{place}, to {end}{}", at_the_end(growth)))
}

/// A phrase for the moment when growth from step to step ends.
fn at_the_end(growth: &Growth) -> String {
    let total = thousands(growth.total.unwrap_or(0));
    if growth.is_states {
        format!(" after {total} steps, when all parameters are trained")
    } else if growth.resets {
        format!(" after {total} {}s, when it is full or dropped", growth.each.name())
    } else {
        let its = if growth.breaks.is_some() { "at most" } else { "its" };
        format!(" at the end of {its} {total} {}s", growth.each.name())
    }
}

/// A phrase that says from how many batches or steps the program's need was computed.
fn computed(growth: &Growth) -> String {
    match (growth.each, growth.total) {
        (Each::Batch, Some(total)) => {
            format!(", computed from {} of {} batches", thousands(growth.seen), thousands(total))
        }
        (Each::Step | Each::Epoch | Each::Round, Some(_)) => at_the_end(growth),
        _ => String::new(),
    }
}

/// How often memory grows: `a step`, `an epoch`, `every 50 steps`.
fn one_in(each: Each, every: u64) -> String {
    match (each, every) {
        (Each::Epoch, 1) => "an epoch".to_owned(),
        (Each::Round, 1) => "a round of the outer loop".to_owned(),
        (_, 1) => format!("a {}", each.name()),
        (Each::Round, _) => format!("every {} rounds of the outer loop", thousands(every)),
        _ => format!("every {} {}s", thousands(every), each.name()),
    }
}

/// A phrase with the peaks and the steps in which they occur.
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

/// The end of a sentence that says in which step a peak occurs. Empty for a program without steps.
pub(crate) fn when(step: u64, report: &Report) -> String {
    match report.steps {
        0 => String::new(),
        steps if step > steps && step != report.failed_step => format!(" {}", after(report)),
        _ => format!(" in step {step}"),
    }
}

/// A phrase for the time after the steps. A program whose loop was cut short would run more steps.
fn after(report: &Report) -> String {
    if report.cut { "after the training".to_owned() } else { format!("after step {}", report.steps) }
}
