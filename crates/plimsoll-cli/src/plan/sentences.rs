//! The sentences of the report: the verdict, an alternative set, and the search's progress.

use std::time::Duration;

use super::Plan;
use super::candidate::Candidate;
use super::goal::Goal;
use super::largest::Largest;
use super::time::Cost;
use crate::bytes;
use crate::predict::trial::{End, Trial};
use crate::techniques::{Numbers, Set, Shown, Technique};

/// How many sets to name in a progress line.
const NAMED: usize = 3;

/// The set's name in the table.
pub(super) fn named(candidate: &Candidate) -> String {
    if candidate.set.is_empty() { "as it is".to_owned() } else { candidate.set.to_string() }
}

/// The progress line after a trial.
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

/// The progress line that is printed before these sets are tried.
pub(super) fn trying(sets: &[Set], remaining: Duration) -> String {
    let names: Vec<String> = sets.iter().take(NAMED).map(Set::to_string).collect();
    let seconds = remaining.as_secs_f64().ceil().max(1.0);
    let more = if sets.len() > NAMED { ", …" } else { "" };
    match sets.len() {
        1 => format!("trying {}, about {seconds:.0} s left", names.join("")),
        number => format!("trying {number} sets: {}{more}, about {seconds:.0} s left", names.join("; ")),
    }
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
        End::Failed(how) => {
            return format!("no plan: the program itself FAILED, not for lack of memory: {how}");
        }
        End::Unknown(why) => return format!("no plan: {why}"),
        End::Refused(it) => return format!("no plan: {}: {}", it.technique, it.reason),
        End::Interrupted => return "no plan: interrupted during the first run".to_owned(),
    }
    let interrupted = match (plan.is_interrupted, plan.is_late) {
        (true, _) => "interrupted; so far: ",
        (false, true) => "of the sets tried within --within: ",
        (false, false) => "",
    };
    if let (Goal::Batch, Some(Err(why))) = (plan.goal, &plan.unmarked) {
        return format!(
            "{interrupted}no largest batch: {why}; write {{BATCH}} in the command, such as `python train.py --batch-size {{BATCH}}`"
        );
    }
    if plan.goal == Goal::Batch && !plan.largest.is_empty() {
        return format!("{interrupted}{}", largest(plan));
    }
    let spare = |it: &Candidate| spare(plan, it);
    let sentence = match plan.chosen() {
        None if base.trial.grows.is_some() => {
            let grows = base.trial.grows.as_deref().unwrap_or_default();
            format!(
                "does NOT fit {name}: memory {grows}, and no technique frees what the program keeps from each step"
            )
        }
        Some(chosen) if chosen.set.is_empty() => {
            let why = chosen
                .caught
                .as_ref()
                .map_or_else(String::new, |it| format!(", because the program {}", catching(it)));
            let word = match plan.goal {
                Goal::Memory => "as it is, the program uses the least memory and fits",
                Goal::Speed => "as it is, the program is the fastest and fits",
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
                    "does NOT fit {name} with any set that keeps the numbers; with {} it does: {} (add --numbers changed)",
                    it.set,
                    spare(it)
                ),
                None => format!("does NOT fit {name} with any set that was tried{least}"),
            }
        }
    };
    let largest = plan.largest.iter().map(|it| format!("; {}", it.sentence()));
    format!("{interrupted}{sentence}{}{}", changes(plan), largest.collect::<String>())
}

/// A size that changes in a step that was not run, in parentheses. Empty if there is none, or if the program does not fit
/// anyway.
fn changes(plan: &Plan) -> String {
    let found = plan.shown().filter(|_| plan.chosen().is_some()).and_then(|trial| trial.changes.as_ref());
    found.map_or_else(String::new, |(at, step)| {
        format!(" ({at} changes in step {}: --steps {step})", bytes::thousands(*step))
    })
}

/// The alternative to the chosen set. If the chosen set leaves enough headroom, the alternative is a faster set that
/// only just fits; otherwise, it is a set that leaves more headroom.
pub(super) fn other(plan: &Plan) -> Option<String> {
    let chosen = plan.chosen().filter(|it| it.fit.fits() && plan.goal == Goal::Fit)?;
    let all = plan.candidates.iter().filter(|it| it.set != chosen.set && it.fit.fits() && it.is_effective());
    let slower = |it: &Candidate| slower(plan.base_cost(), it.cost);
    if let Some(it) = plan.instead_of() {
        return Some(format!(
            "{} also fits, but only just{}, numbers {}; {} leaves room and takes at most 2 % more time",
            named(it),
            slower(it),
            it.set.numbers().name(),
            named(chosen)
        ));
    }
    if chosen.has_room() {
        let faster = all.filter(|it| !it.has_room() && it.step_s() < chosen.step_s());
        let fastest = faster.min_by(|a, b| a.step_s().total_cmp(&b.step_s()))?;
        return Some(format!("faster, but only just fits: {}{}", named(fastest), slower(fastest)));
    }
    let roomy = all.filter(|it| it.has_room()).min_by(|a, b| a.step_s().total_cmp(&b.step_s()))?;
    let numbers = roomy.set.numbers().name();
    Some(format!("with room to spare: {}{}, numbers {numbers}", named(roomy), slower(roomy)))
}

/// A sentence about the peak with the lines of code that save memory. If the lines alone are not enough, the sentence
/// also names a set that makes the program fit together with the lines and is cheaper than the chosen set.
pub(super) fn code_change(plan: &Plan) -> Option<String> {
    let code = plan.code.as_ref()?;
    let lines = code.lines.iter().map(|line| line.said(true)).collect::<Vec<_>>().join(" and ");
    let (base, edited) = (&plan.candidates.first()?.trial, code.tried.first()?);
    let gives = format!("{} instead of {}", size(edited.trial.allocated_bytes), size(base.allocated_bytes));
    let Some(it) = code.fitting() else {
        return Some(format!("with {lines}, which `run` does not add, the peak is {gives}"));
    };
    let used = spare(plan, it);
    if it.set.is_empty() {
        return Some(format!("with {lines}, no technique is needed: {used}; the peak is {gives}"));
    }
    let verb = if it.set.entries().len() == 1 { "alone suffices" } else { "suffices" };
    let numbers = it.set.numbers().name();
    Some(format!(
        "with {lines}, {} {verb}: {used}{}, numbers {numbers}; without a technique the peak is {gives}",
        described(it),
        slower(plan.base_cost(), it.cost)
    ))
}

/// A sentence about a smaller micro-batch, or why none was tried.
pub(super) fn micro_batch(plan: &Plan) -> Option<String> {
    let found = match plan.micro_batch.as_ref()? {
        Err(why) => return Some(format!("no smaller micro-batch was tried: {why}")),
        Ok(found) => found,
    };
    let best = found.best()?;
    let (it, said) = (&best.candidate, best.said(found.own));
    let (used, slower) = (spare(plan, it), slower(plan.base_cost(), it.cost));
    Some(match it.fit.fits() {
        true => format!(
            "with {said}, no technique is needed: {used}{slower}, numbers {}",
            it.set.numbers().name()
        ),
        false => format!("with {said}, it still does not fit: {used}{slower}"),
    })
}

/// A sentence about how much memory the program would need with the techniques that change which parameters are
/// trained.
pub(super) fn offers(plan: &Plan) -> Option<String> {
    let offers = plan.offers.iter().filter(|it| it.is_effective());
    let word = |it: &Candidate| {
        let fits = if it.fit.fits() { "" } else { ", does not fit" };
        let detail = it.trial.techniques.first().map_or("", |it| it.detail.as_str());
        format!("{} {}{fits} ({detail})", it.set, spare(plan, it))
    };
    let words: Vec<String> = offers.map(word).collect();
    (!words.is_empty()).then(|| {
        format!(
            "possible, but never chosen, because they train a different part of the model: {}",
            words.join("; ")
        )
    })
}

/// `7.37 GiB of 7.78 GiB`: how much of the GPU's memory a set uses.
fn spare(plan: &Plan, it: &Candidate) -> String {
    let trial = it.caught.as_ref().unwrap_or(&it.trial);
    format!(
        "{} of {}{}",
        size(trial.reserved_bytes + trial.target(&plan.target).context_bytes),
        size(plan.target.limit_bytes()),
        it.fit.word()
    )
}

/// The verdict of a search for the largest batch.
fn largest(plan: &Plan) -> String {
    let sentences = plan.largest.iter().map(Largest::sentence).collect::<Vec<_>>().join("; ");
    let numbers = plan
        .chosen()
        .filter(|it| !it.set.is_empty())
        .map_or_else(String::new, |it| format!(", numbers {}", it.set.numbers().name()));
    format!("{}: {sentences}{numbers}", plan.target.name)
}

/// A phrase about a program that catches out-of-memory errors and continues.
fn catching(trial: &Trial) -> String {
    let times = if trial.caught == 1 { "once".to_owned() } else { format!("{} times", trial.caught) };
    format!(
        "catches the out-of-memory error {times} and continues, with a peak of {} allocated",
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

/// A phrase about how much longer a step takes, as an estimate.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_names_the_first_sets_their_number_and_the_time_left() {
        let sets: Vec<Set> = ["expandable", "checkpoint=2", "offload", "fused"]
            .iter()
            .map(|it| Set::parse(it).unwrap())
            .collect();
        let said = |number: usize, ms| trying(&sets[..number], Duration::from_millis(ms));
        assert_eq!(said(1, 0), "trying expandable, about 1 s left");
        assert_eq!(said(2, 2_100), "trying 2 sets: expandable; checkpoint=2, about 3 s left");
        assert_eq!(said(4, 61_000), "trying 4 sets: expandable; checkpoint=2; offload, …, about 61 s left");
    }
}
