//! The report as text: the verdict, the table, what was refused, the code and the command of the chosen set.

use std::fmt::Write;

use super::Plan;
use super::candidate::Candidate;
use super::fit::Fit;
use super::goal::Goal;
use super::largest::Largest;
use super::time::Cost;
use crate::bytes;
use crate::output::{BOLD, RESET};
use crate::predict::render::reads;
use crate::predict::trial::{End, Trial};
use crate::techniques::{Numbers, Shown, Technique};

/// A set as the table names it.
pub(super) fn named(candidate: &Candidate) -> String {
    if candidate.set.is_empty() { "as it is".to_owned() } else { candidate.set.to_string() }
}

/// The line of progress after a trial.
pub(super) fn progress(candidate: &Candidate) -> String {
    let size = |bytes| bytes::shown(bytes, false);
    let trial = &candidate.trial;
    let result = match &trial.end {
        End::Ran => {
            let fits = match &candidate.caught {
                Some(it) => format!(", fits: the program {}", catching(it)),
                None if candidate.fit.fits() => ", fits".to_owned(),
                None => String::new(),
            };
            format!(
                "{} allocated, {} reserved{fits}",
                size(trial.allocated_bytes),
                size(trial.reserved_bytes)
            )
        }
        _ => candidate.objection().unwrap_or_default(),
    };
    format!("tried {}: {result}", named(candidate))
}

/// The whole report.
pub(super) fn render(plan: &Plan, whole_bytes: bool) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{BOLD}{}{RESET}", verdict(plan));
    if let Some(note) = &plan.checked {
        let _ = writeln!(out, "{note}");
    }
    if let Some(other) = other(plan) {
        let _ = writeln!(out, "{other}");
    }
    for sentence in plan.candidates.first().map_or(&[][..], |base| &base.trial.graphs) {
        let _ = writeln!(out, "as it is, {sentence}");
    }
    let has_set = plan.chosen().is_some_and(|it| !it.set.is_empty());
    if let Some(peak) = plan.planned.as_ref().and_then(|it| it.peak.as_ref()).filter(|_| has_set) {
        let _ = writeln!(out, "the peak that remains is {peak}");
    }
    let ran: Vec<&Candidate> = plan.candidates.iter().filter(|it| it.objection().is_none()).collect();
    if !ran.is_empty() {
        table(&mut out, plan, &ran, whole_bytes);
    }
    let decided = plan.chosen().or(plan.candidates.first()).map_or(&[][..], |it| &it.trial.decided);
    if !decided.is_empty() {
        let _ = writeln!(out, "\n{BOLD}{}{RESET}", reads::HEADING);
        decided.iter().for_each(|row| out.extend(["  ", &reads::line(row), "\n"]));
    }
    let mut objections: Vec<(String, String)> = Vec::new();
    for it in &plan.candidates {
        // A reason is shown once, for the smallest set.
        let fresh = it.objection().filter(|why| objections.iter().all(|(_, known)| known != why));
        objections.extend(fresh.map(|why| (named(it), why)));
    }
    if !objections.is_empty() && !ran.is_empty() {
        let _ = writeln!(out, "\n{BOLD}Not possible, or without effect{RESET}");
        for (name, why) in objections {
            let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why);
            let _ = writeln!(out, "  {name:<18}  {why}");
        }
    }
    if let Some(chosen) = plan.chosen().filter(|it| !it.set.is_empty()) {
        let _ = writeln!(out, "\n{BOLD}Without an edit{RESET}\n  {}", plan.command(chosen));
        let _ = writeln!(
            out,
            "\n{BOLD}Or in the program{RESET} (`model` and `optimizer` stand for your own names; before the first step, unless a line says otherwise)"
        );
        for technique in chosen.trial.techniques.iter().filter(|it| !it.lines.is_empty()) {
            let _ = writeln!(out, "  # {}", technique.name);
            for line in &technique.lines {
                let _ = writeln!(out, "  {line}");
            }
        }
    }
    out
}

/// The verdict in one sentence.
pub(super) fn verdict(plan: &Plan) -> String {
    let Some(base) = plan.candidates.first() else {
        return match plan.largest.as_slice() {
            [] => "no answer: interrupted".to_owned(),
            _ => format!("interrupted; so far: {}", largest(plan)),
        };
    };
    let name = &plan.target.name;
    match &base.trial.end {
        End::Ran | End::RanOut(_) => {}
        End::Failed(how) => return format!("no plan: the program FAILED, but not because of memory: {how}"),
        End::Unknown(why) => return format!("no plan: {why}"),
        End::Refused(it) => return format!("no plan: {}: {}", it.technique, it.reason),
        End::Interrupted => return "no plan: interrupted during the first run".to_owned(),
    }
    let interrupted = match (plan.is_interrupted, plan.is_late) {
        (true, _) => "interrupted; so far: ",
        (false, true) => "of what was tried in time (--within): ",
        (false, false) => "",
    };
    if plan.goal == Goal::Batch && !plan.largest.is_empty() {
        return format!("{interrupted}{}", largest(plan));
    }
    let spare = |it: &Candidate| {
        format!(
            "{} of {}{}",
            size(it.caught.as_ref().unwrap_or(&it.trial).reserved_bytes + plan.target.context_bytes),
            size(plan.target.total_bytes),
            it.fit.word()
        )
    };
    let sentence = match plan.chosen() {
        None if base.trial.grows.is_some() => {
            let grows = base.trial.grows.as_deref().unwrap_or_default();
            format!(
                "does NOT fit {name}: memory {grows}, and no technique frees what the program keeps of each step"
            )
        }
        Some(chosen) if chosen.set.is_empty() => {
            let why = chosen
                .caught
                .as_ref()
                .map_or_else(String::new, |it| format!(", because the program {}", catching(it)));
            let word = match plan.goal {
                Goal::Memory => "as it is the program uses the least memory and fits",
                Goal::Speed => "as it is the program is the fastest and fits",
                Goal::Fit | Goal::Batch => "fits",
            };
            let as_it_is = if matches!(plan.goal, Goal::Memory | Goal::Speed) { "" } else { " as it is" };
            format!("{word} {name}{as_it_is}{why}: {}", spare(chosen))
        }
        Some(chosen) => {
            let word = match plan.goal {
                Goal::Memory => "least memory",
                Goal::Speed => "fastest",
                Goal::Fit | Goal::Batch => "fits",
            };
            format!(
                "{word} on {name} with {}: {}{}, numbers {}",
                described(chosen),
                spare(chosen),
                slower(plan.base_cost(), chosen.cost),
                chosen.set.numbers().name()
            )
        }
        None => {
            let offer =
                plan.candidates.iter().find(|it| it.fit.fits() && it.set.numbers() == Numbers::Changed);
            let least = plan
                .candidates
                .iter()
                .filter(|it| it.is_effective())
                .min_by_key(|it| it.trial.reserved_bytes);
            let least = least.map_or_else(String::new, |it| {
                let with = if it.set.is_empty() { "" } else { "with " };
                format!("; the least is {}, {with}{}", spare(it), named(it))
            });
            match offer {
                Some(it) => format!(
                    "does NOT fit {name} under any set that keeps the numbers; with {} it does: {} (--numbers changed plans with it)",
                    it.set,
                    spare(it)
                ),
                None => format!("does NOT fit {name} under any set that was tried{least}"),
            }
        }
    };
    let largest = plan.largest.iter().map(|it| format!("; {}", it.sentence()));
    format!("{interrupted}{sentence}{}", largest.collect::<String>())
}

/// The set at the limit that was not chosen because another one has room, or one that has room where the chosen
/// one has none: both are named.
fn other(plan: &Plan) -> Option<String> {
    let chosen = plan.chosen().filter(|it| it.fit.fits() && plan.goal == Goal::Fit)?;
    let all = plan.candidates.iter().filter(|it| it.set != chosen.set && it.fit.fits() && it.is_effective());
    let slower = |it: &Candidate| slower(plan.base_cost(), it.cost);
    if let Some(it) = plan.instead_of() {
        return Some(format!(
            "{} fits, too, but only just{}, numbers {}; {} leaves room and takes at most 2 % more time",
            named(it),
            slower(it),
            it.set.numbers().name(),
            named(chosen)
        ));
    }
    if chosen.has_room() {
        let faster = all.filter(|it| !it.has_room() && it.step_s() < chosen.step_s());
        let fastest = faster.min_by(|a, b| a.step_s().total_cmp(&b.step_s()))?;
        return Some(format!("at the limit, and not chosen: {}{}", named(fastest), slower(fastest)));
    }
    let roomy = all.filter(|it| it.has_room()).min_by(|a, b| a.step_s().total_cmp(&b.step_s()))?;
    let numbers = roomy.set.numbers().name();
    Some(format!("with room to spare: {}{}, numbers {numbers}", named(roomy), slower(roomy)))
}

/// The verdict of a search for the largest batch.
fn largest(plan: &Plan) -> String {
    let sentences = plan.largest.iter().map(Largest::sentence).collect::<Vec<_>>().join(", ");
    let numbers = plan
        .chosen()
        .filter(|it| !it.set.is_empty())
        .map_or_else(String::new, |it| format!(", numbers {}", it.set.numbers().name()));
    format!("{}: {sentences}{numbers}", plan.target.name)
}

/// What a program does that catches running out of memory and goes on.
fn catching(trial: &Trial) -> String {
    let times = if trial.caught == 1 { "once".to_owned() } else { format!("{} times", trial.caught) };
    format!(
        "catches out of memory {times} and goes on, with a peak of {} allocated",
        size(trial.allocated_bytes)
    )
}

/// A set in words: `checkpoint 4 of 12 blocks + chunked-loss`.
fn described(candidate: &Candidate) -> String {
    let word = |&(technique, value): &(Technique, Option<u64>)| {
        let name = technique.name();
        match (technique.row().shown, value) {
            (Shown::Detail, _) => {
                let detail = candidate.trial.technique(name).map_or("", |it| it.detail.as_str());
                format!("{name} {detail}").trim_end().to_owned()
            }
            (Shown::Percent(of), Some(percent)) => format!("{name} of {percent} % {of}"),
            _ => name.to_owned(),
        }
    };
    candidate.set.entries().iter().map(word).collect::<Vec<_>>().join(" + ")
}

/// How much longer a step takes, as an estimate.
fn slower(base: Option<Cost>, cost: Option<Cost>) -> String {
    match (base, cost) {
        (Some(base), Some(cost)) if base.step_s > 0.0 => {
            format!(", about {:+.0} % time (estimated)", (cost.step_s / base.step_s - 1.0) * 100.0)
        }
        _ => String::new(),
    }
}

fn size(bytes: u64) -> String {
    bytes::shown(bytes, false)
}

fn table(out: &mut String, plan: &Plan, ran: &[&Candidate], whole_bytes: bool) {
    let size = |bytes| bytes::shown(bytes, whole_bytes);
    let name_width = ran.iter().map(|it| named(it).len()).max().unwrap_or(0).max("set".len());
    let _ = writeln!(
        out,
        "\n{BOLD}{:<name_width$}  {:>12}  {:>12}  {:>17}  {:>11}  {:>11}  {:>11}  {:>9}  numbers{RESET}",
        "set", "allocated", "reserved", "headroom", "extra FLOPs", "PCIe a step", "pinned host", "time"
    );
    let base = plan.base_cost();
    for it in ran {
        let trial = &it.trial;
        let taken = trial.reserved_bytes + plan.target.context_bytes;
        let headroom = match plan.target.total_bytes.checked_sub(taken) {
            Some(spare) => format!("{}{}", size(spare), it.fit.word()),
            None => format!("-{}", size(taken - plan.target.total_bytes)),
        };
        let cost = it.cost.unwrap_or_default();
        let flops = if cost.extra_flops == 0 {
            "0".to_owned()
        } else {
            format!("{:.1} T", cost.extra_flops as f64 / 1e12)
        };
        let pinned = if it.pinned_bytes() == 0 { "0".to_owned() } else { size(it.pinned_bytes()) };
        let pcie = if cost.pcie_bytes == 0 { "0".to_owned() } else { size(cost.pcie_bytes) };
        let time = match (it.cost, base) {
            (Some(cost), Some(base)) if base.step_s > 0.0 => format!("×{:.2}", cost.step_s / base.step_s),
            _ => "unknown".to_owned(),
        };
        let mark = if plan.chosen().is_some_and(|chosen| chosen.set == it.set) { "  <" } else { "" };
        let _ = writeln!(
            out,
            "{:<name_width$}  {:>12}  {:>12}  {:>17}  {flops:>11}  {pcie:>11}  {pinned:>11}  {time:>9}  {}{mark}",
            named(it),
            size(trial.allocated_bytes),
            size(trial.reserved_bytes),
            headroom,
            it.set.numbers().name()
        );
    }
    if ran.iter().any(|it| it.fit.is_tight()) {
        let _ = writeln!(
            out,
            "tight: it fits because the allocator gives cached memory back when memory runs short, which takes time"
        );
    }
    if ran.iter().any(|it| matches!(it.fit, Fit::Close(_))) {
        let _ = writeln!(
            out,
            "close: on a card the peak may differ by more than what is left, because of other addresses and kernels of cuDNN"
        );
    }
    if ran.iter().any(|it| it.caught.is_some()) {
        let _ = writeln!(
            out,
            "as it is: what the program uses where memory does not run out; on the GPU it catches that and takes less"
        );
    }
    for it in ran.iter().filter(|it| it.set.has(Technique::Fsdp)) {
        let sent = it.cost.map_or(0, |cost| cost.wire_bytes);
        let _ = writeln!(
            out,
            "{}: sizes are those of each of {} GPUs, which sends {} to the others in a step",
            it.set,
            plan.devices,
            size(sent)
        );
    }
    if let Some(batch) = plan.table_batch {
        let _ = writeln!(out, "batch: all rows are of batch {batch}");
    }
    let context = size(plan.target.context_bytes);
    let _ = writeln!(
        out,
        "headroom: of {} after {context} of context (--context)",
        size(plan.target.total_bytes)
    );
    if let Some(base) = base {
        let _ = writeln!(
            out,
            "time: estimated from FLOPs, bytes and kernels of a step against the {}'s datasheet; as it is {:.1} ms",
            plan.target.listed.name,
            base.step_s * 1e3
        );
    }
    for technique in Technique::all() {
        let note = technique.row().note;
        if let Some(note) = note.filter(|_| ran.iter().any(|it| it.cost.is_some() && it.set.has(technique))) {
            let _ = writeln!(out, "{}: {note}", technique.name());
        }
    }
}
