//! `{BATCH}` in the command: a plan for one batch, and the largest batch that fits, both without and with
//! techniques.

use std::ffi::OsString;

use super::goal::{Goal, Wish};
use super::largest::{Largest, label};
use super::{Marked, Plan, PlanArgs, program, search};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::predict::gpu::Target;
use crate::predict::search::largest;
use crate::predict::trial::End;
use crate::predict::trials;
use crate::techniques::Set;

const MARK: &str = "{BATCH}";

/// The range to search if --batch names none.
const RANGE: Batches = Batches::Range(1, 512);

/// A plan for one batch size also tries larger batch sizes, up to this multiple.
const MULTIPLE: u64 = 32;

/// `--batch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Batches {
    One(u64),
    /// The smallest and the largest batch.
    Range(u64, u64),
}

impl Batches {
    /// Reads `32` or `1..512`.
    pub(super) fn parse(text: &str) -> Result<Batches, String> {
        let wrong = || "expected a number such as 32, or FROM..TO such as 1..512".to_owned();
        let number = |text: &str| text.parse().ok().filter(|&number: &u64| number > 0).ok_or_else(wrong);
        match text.split_once("..") {
            None => number(text).map(Batches::One),
            Some((from, to)) => match (number(from)?, number(to)?) {
                (from, to) if from <= to => Ok(Batches::Range(from, to)),
                _ => Err(wrong()),
            },
        }
    }
}

/// The batches that `{BATCH}`, --batch and --goal together request; `None` if the command has no `{BATCH}`, and
/// --batch is not given.
///
/// # Errors
/// If the options contradict each other.
pub(super) fn wanted(args: &PlanArgs) -> Result<Option<Batches>, Failure> {
    let has_mark = args.command.iter().any(|word| word.to_string_lossy().contains(MARK));
    let is_largest = args.goal == Some(Goal::Batch);
    let wrong = match (has_mark, args.batch) {
        (false, None) => return Ok(None),
        (false, _) => {
            "the command does not contain {BATCH}; for example `python train.py --batch-size {BATCH}`"
        }
        (true, Some(Batches::One(_))) if is_largest => {
            "--goal batch needs a range, such as --batch 1..512; a single number is the batch to plan for"
        }
        (true, None | Some(Batches::Range(..))) if !is_largest && args.goal.is_some() => {
            "this --goal needs a number for {BATCH}, such as --batch 32"
        }
        (true, wanted) => return Ok(Some(wanted.unwrap_or(RANGE))),
    };
    Err(Failure::new(Exit::Usage, wrong))
}

fn with_batch(command: &[OsString], batch: u64) -> Vec<OsString> {
    let replaced = |word: &OsString| match word.to_str() {
        Some(text) => text.replace(MARK, &batch.to_string()).into(),
        None => word.clone(),
    };
    command.iter().map(replaced).collect()
}

/// Plans for this batch size, then searches for the largest batch size, for the unchanged program and with the chosen
/// set.
pub(super) fn plan_for(args: &PlanArgs, batch: u64, target: &Target, wish: Wish) -> Result<Plan, Failure> {
    let program = program(args, with_batch(&args.command, batch));
    let mut plan = search(&program, target, wish, args.within, Marked::Yes)?;
    (plan.batch, plan.table_batch) = (Some(batch), Some(batch));
    let Some(base) = plan.candidates.first().filter(|it| it.trial.end == End::Ran) else { return Ok(plan) };
    if wish.goal != Goal::Fit || plan.is_interrupted {
        return Ok(plan);
    }
    let more = (batch, batch.saturating_mul(MULTIPLE));
    let range = if base.fit.fits() { more } else { (1, batch) };
    let mut searches = vec![(Set::default(), range)];
    searches.extend(plan.chosen().filter(|it| !it.set.is_empty()).map(|it| (it.set.clone(), more)));
    for (set, range) in searches {
        plan.add_largest(args, target, &set, range)?;
    }
    Ok(plan)
}

/// Searches for the largest batch twice: for the unchanged program, and with the techniques that use the least memory
/// near the first result.
pub(super) fn plan(args: &PlanArgs, range: (u64, u64), target: &Target, wish: Wish) -> Result<Plan, Failure> {
    let (from, to) = range;
    let found = find(args, target, &Set::default(), range)?;
    let as_it_is = found.batch;
    if found.is_interrupted {
        return Ok(Plan::interrupted(args, target, found));
    }
    // With a large batch, trials best show which set uses the least memory.
    let (batch, wish) = match as_it_is {
        Some(batch) if batch == to => (to, Wish { goal: Goal::Fit, ..wish }),
        Some(batch) => (batch.saturating_mul(2).clamp(from, to), wish),
        None => (from, wish),
    };
    let program = program(args, with_batch(&args.command, batch));
    let mut plan = search(&program, target, wish, args.within, Marked::Yes)?;
    plan.goal = Goal::Batch;
    plan.largest.push(found);
    (plan.batch, plan.table_batch) = (as_it_is, Some(batch));
    let Some(set) = plan.chosen().map(|it| it.set.clone()).filter(|set| !set.is_empty()) else {
        plan.chosen = plan.chosen.filter(|_| as_it_is.is_some());
        plan.planned = plan.largest[0].trial.clone();
        return Ok(plan);
    };
    plan.add_largest(args, target, &set, (as_it_is.unwrap_or(from), to))?;
    let with_set = plan.largest.last().and_then(|it| it.batch);
    plan.batch = with_set.max(as_it_is);
    if with_set <= as_it_is {
        // The set allows no larger batch, so the unchanged program is chosen if it fits.
        plan.chosen = as_it_is.map(|_| 0);
    }
    let planned = if with_set > as_it_is { plan.largest.last() } else { plan.largest.first() };
    plan.planned = planned.and_then(|it| it.trial.clone());
    Ok(plan)
}

impl Plan {
    fn add_largest(
        &mut self,
        args: &PlanArgs,
        target: &Target,
        set: &Set,
        range: (u64, u64),
    ) -> Result<(), Failure> {
        if !self.is_interrupted {
            let found = find(args, target, set, range)?;
            self.is_interrupted |= found.is_interrupted;
            self.largest.push(found);
        }
        Ok(())
    }

    /// The user ended the search before a set was tried.
    fn interrupted(args: &PlanArgs, target: &Target, found: Largest) -> Plan {
        Plan {
            target: target.clone(),
            goal: Goal::Batch,
            candidates: Vec::new(),
            chosen: None,
            instead_of: None,
            is_interrupted: true,
            is_late: false,
            devices: args.devices,
            host_factor: args.host_factor,
            checked: None,
            planned: None,
            offers: Vec::new(),
            hints: Vec::new(),
            code: None,
            micro_batch: None,
            unmarked: None,
            batch: found.batch,
            largest: vec![found],
            table_batch: None,
            words: args.command.clone(),
        }
    }
}

/// Finds the largest batch of the range that fits with a set. Each batch size is tried in a run at the GPU's size.
fn find(args: &PlanArgs, target: &Target, set: &Set, range: (u64, u64)) -> Result<Largest, Failure> {
    let (from, to) = range;
    let label = label(set);
    let (mut is_interrupted, mut fitting) = (false, None);
    let batch = largest(from, to, target.capacity_bytes(), |batch| {
        if is_interrupted {
            return Ok(None);
        }
        let trial = trials::alone(&program(args, with_batch(&args.command, batch)), target, set)?;
        is_interrupted |= trial.end == End::Interrupted;
        let (fits, why) = match &trial.end {
            End::Ran => (true, "fits".to_owned()),
            End::RanOut(_) => (false, "does not fit".to_owned()),
            End::Refused(it) => (false, format!("{}: {}", it.technique, it.reason)),
            End::Failed(why) | End::Unknown(why) => (false, why.clone()),
            End::Interrupted => (false, "interrupted".to_owned()),
        };
        output::progress(&format!("tried {label}, batch {batch}: {why}"));
        let peak = trial.reserved_bytes;
        if fits && fitting.as_ref().is_none_or(|(of, _)| *of < batch) {
            fitting = Some((batch, trial));
        }
        Ok::<_, Failure>(fits.then_some(peak))
    })?;
    Ok(Largest { set: set.clone(), range, batch, trial: fitting.map(|(_, trial)| trial), is_interrupted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_number_or_a_range_with_both_ends() {
        assert_eq!(Batches::parse("32"), Ok(Batches::One(32)));
        assert_eq!(Batches::parse("1..512"), Ok(Batches::Range(1, 512)));
        for text in ["", "0", "0..3", "4..2", "a..b", "3..", "-1"] {
            assert!(Batches::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_mark_is_replaced() {
        let command: Vec<OsString> = ["train", "--b={BATCH}"].map(OsString::from).to_vec();
        assert_eq!(with_batch(&command, 7)[1], OsString::from("--b=7"));
    }
}
