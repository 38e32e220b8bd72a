//! `--goal batch`: the largest value of `{BATCH}` in the command that fits, as the program is and with the techniques that use the
//! least memory.

use std::ffi::OsString;

use plimsoll_gpu::Gpu;

use super::search::{Goal, Wish};
use super::{Plan, PlanArgs, program, search};
use crate::exit::Failure;
use crate::output;
use crate::predict::gpu::Target;
use crate::predict::search::largest;
use crate::predict::trial::{self, End, Trial};
use crate::techniques::Set;

const MARK: &str = "{BATCH}";

/// Parses `1..512`.
pub(super) fn range(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    ends.filter(|(from, to)| 0 < *from && from <= to)
        .ok_or_else(|| "expected FROM..TO, such as 1..512".to_owned())
}

/// Whether the command has a place for the batch.
pub(super) fn is_in(command: &[OsString]) -> bool {
    command.iter().any(|word| word.to_string_lossy().contains(MARK))
}

fn with_batch(command: &[OsString], batch: u64) -> Vec<OsString> {
    let replaced = |word: &OsString| match word.to_str() {
        Some(text) => text.replace(MARK, &batch.to_string()).into(),
        None => word.clone(),
    };
    command.iter().map(replaced).collect()
}

/// Plans for the least memory at the smallest batch, then searches for the largest batch as the program is and with that set.
pub(super) fn plan(args: &PlanArgs, target: &Target, gpu: &'static Gpu, wish: Wish) -> Result<Plan, Failure> {
    let (from, to) = args.batch;
    // Techniques show their effect only where activations are a part of the peak.
    let start = from.max(to.min(8));
    let small = program(args, with_batch(&args.command, start));
    let mut plan = search(&small, target, gpu, Wish { goal: Goal::Memory, ..wish })?;
    plan.goal = Goal::Batch;
    let Some(chosen) = plan.chosen().map(|it| it.set.clone()) else { return Ok(plan) };
    let mut sentences = Vec::new();
    let sets = if chosen.is_empty() { vec![chosen] } else { vec![Set::default(), chosen] };
    for set in sets {
        let label = if set.is_empty() { "as it is".to_owned() } else { format!("with {set}") };
        let mut is_interrupted = false;
        let best = largest(from, to, target.capacity_bytes(), |batch| {
            let trial = one(args, target, &set, batch)?;
            is_interrupted |= trial.end == End::Interrupted;
            output::progress(&format!(
                "tried {label}, batch {batch}: {}",
                if trial.end == End::Ran { "fits" } else { "does not fit" }
            ));
            Ok::<_, Failure>((trial.end == End::Ran).then_some(trial.reserved_bytes))
        })?;
        plan.is_interrupted |= is_interrupted;
        plan.batch_value = best;
        sentences.push(match best {
            Some(best) if best == to => {
                format!("{label} the largest batch is at least {to} (no larger one was tried)")
            }
            Some(best) => format!("{label} the largest batch is {best}"),
            None => format!("{label} no batch of {from}..{to} fits"),
        });
    }
    plan.batch = Some(sentences.join(", "));
    Ok(plan)
}

/// A run on the GPU itself with this batch.
fn one(args: &PlanArgs, target: &Target, set: &Set, batch: u64) -> Result<Trial, Failure> {
    let program = program(args, with_batch(&args.command, batch));
    trial::alone(&program, target, set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_has_both_ends_and_the_mark_is_replaced() {
        assert_eq!(range("1..512"), Ok((1, 512)));
        for text in ["", "5", "0..3", "4..2", "a..b"] {
            assert!(range(text).is_err(), "{text}");
        }
        let command: Vec<OsString> = ["train", "--b={BATCH}"].map(OsString::from).to_vec();
        assert!(is_in(&command) && !is_in(&command[..1]));
        assert_eq!(with_batch(&command, 7)[1], OsString::from("--b=7"));
    }
}
