//! Which sets are tried, in which order: [`Search`]. Savings do not add up, so each set is judged by a run.
//!
//! First every technique alone; then those with an effect together, the number of checkpointed blocks solved from two peaks
//! (it saves linearly) and then verified; then, if nothing that keeps the numbers fits, with techniques that change the rounding;
//! with bf16 last.

use plimsoll_gpu::Gpu;

use super::candidate::Candidate;
use super::time::{Cost, Work};
use crate::exit::Failure;
use crate::output;
use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial, Trials};
use crate::techniques::{Numbers, Set};

/// Parts of the batch that are tried, in this order.
const PARTS: [u64; 4] = [2, 4, 8, 16];

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) goal: Goal,
    /// The most that a set may do to the numbers.
    pub(super) numbers: Numbers,
}

/// What to optimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Goal {
    /// The cheapest set that fits: those that keep the numbers first, then the fastest
    Fit,
    /// The least memory
    Memory,
    /// The fastest set that fits, whether it rounds differently or not
    Speed,
    /// The largest {BATCH} that fits
    Batch,
}

/// Trials and their results.
pub(super) struct Search<'a, 'scope> {
    pub(super) trials: &'a mut Trials<'scope>,
    pub(super) target: &'a Target,
    pub(super) gpu: &'static Gpu,
    pub(super) wish: Wish,
    pub(super) work: Work,
    /// All that was tried, in order.
    pub(super) candidates: Vec<Candidate>,
    /// Whether the user ended the search.
    pub(super) is_interrupted: bool,
}

impl Search<'_, '_> {
    /// Tries sets until the wish is met as well as can be. The first candidate is the program as it is; if that did not run,
    /// it is the only one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let base = self.tried(&Set::default())?;
        if base.trial.end != End::Ran {
            return Ok(());
        }
        let counted = self.trials.of(&Set::default(), false, true)?;
        self.work = Work::of(&counted);
        self.candidates[0].cost = self.cost(&Set::default(), &base.trial);
        let mut names = vec![
            "expandable",
            "free-grads",
            "step-in-backward",
            "checkpoint",
            "offload",
            "chunked-loss",
            "fused",
        ];
        names.retain(|name| crate::techniques::named(name).is_some_and(|it| it.numbers <= self.wish.numbers));
        let mut useful = Vec::new();
        for name in names {
            let one = self.tried(&Set::default().with(name, None))?;
            if self.is_interrupted {
                return Ok(());
            }
            let saves = one.trial.allocated_bytes < base.trial.allocated_bytes
                || one.trial.reserved_bytes < base.trial.reserved_bytes;
            if one.is_effective() && saves {
                useful.push(name);
            }
        }
        let keep = |names: &[&'static str]| {
            names
                .iter()
                .filter(|name| useful.contains(name))
                .fold(Set::default(), |set, name| set.with(name, None))
        };
        // What costs no time and keeps the numbers; then what rounds differently.
        let free = keep(&["expandable", "free-grads", "step-in-backward"]);
        let has_checkpoint = useful.contains(&"checkpoint");
        self.level(&free, has_checkpoint, useful.contains(&"offload"), false)?;
        let is_met = self.wish.goal == Goal::Fit && self.chosen().is_some();
        if self.wish.numbers >= Numbers::Rounding && !is_met && !self.is_interrupted {
            let rounding = keep(&["expandable", "free-grads", "step-in-backward", "chunked-loss", "fused"]);
            self.level(&rounding, has_checkpoint, useful.contains(&"offload"), true)?;
            if self.wish.numbers == Numbers::Changed || self.chosen().is_none() {
                // An offer if it was not asked for.
                let narrow = rounding.with("bf16", None);
                self.level(&narrow, has_checkpoint, false, true)?;
            }
        }
        if self.wish.goal == Goal::Fit {
            self.simplify()?;
        }
        Ok(())
    }

    /// Sets on top of this one: itself, with checkpointed blocks, with the batch in parts, with saved tensors on the host.
    fn level(&mut self, set: &Set, checkpoint: bool, offload: bool, parts: bool) -> Result<(), Failure> {
        if !set.is_empty() && self.tried(set)?.fits == Some(true) && self.wish.goal != Goal::Memory {
            return Ok(());
        }
        let mut least = set.clone();
        if checkpoint {
            least = set.with("checkpoint", None);
            if self.tried(&least)?.fits == Some(true) {
                if self.wish.goal != Goal::Memory {
                    return self.fewest_blocks(set);
                }
            }
        }
        if parts && !self.is_interrupted {
            let name = if self
                .tried(&self.without_conflict(&least, "accumulate").with("accumulate", Some(2)))?
                .is_effective()
            {
                "accumulate"
            } else {
                "split"
            };
            let base = self.without_conflict(&least, name);
            for number in PARTS {
                let tried = self.tried(&base.with(name, Some(number)))?;
                let fits = tried.fits == Some(true) && self.wish.goal != Goal::Memory;
                if fits || tried.trial.end != End::Ran || self.is_interrupted {
                    break;
                }
            }
        }
        if offload && self.chosen().is_none_or(|_| self.wish.goal == Goal::Memory) && !self.is_interrupted {
            self.tried(&least.with("offload", None))?;
        }
        Ok(())
    }

    fn without_conflict(&self, set: &Set, name: &'static str) -> Set {
        if set.with(name, Some(2)).conflict().is_some() {
            set.without("step-in-backward")
        } else {
            set.clone()
        }
    }

    /// The smallest number of checkpointed blocks with which this set fits: all of them do.
    fn fewest_blocks(&mut self, set: &Set) -> Result<(), Failure> {
        let (none, all) = (self.tried(set)?, self.tried(&set.with("checkpoint", None))?);
        let blocks = all.trial.technique("checkpoint").map_or(0, |it| it.blocks);
        if blocks < 2 {
            return Ok(());
        }
        let capacity = self.target.capacity_bytes();
        let mut number = solved(none.trial.reserved_bytes, all.trial.reserved_bytes, blocks, capacity);
        // Down while it fits, otherwise up.
        let mut fitted = false;
        while (1..blocks).contains(&number) && !self.is_interrupted {
            let fits = self.tried(&set.with("checkpoint", Some(number)))?.fits == Some(true);
            match (fits, fitted) {
                (true, _) => {
                    fitted = true;
                    number -= 1;
                }
                (false, true) => break,
                (false, false) => number += 1,
            }
        }
        Ok(())
    }

    /// Leaves out techniques of the chosen set that it does not need.
    fn simplify(&mut self) -> Result<(), Failure> {
        let Some(chosen) = self.chosen().cloned() else { return Ok(()) };
        let mut set = chosen.set;
        for name in chosen.trial.techniques.iter().map(|it| it.name.clone()) {
            if name == "checkpoint" || self.is_interrupted {
                continue;
            }
            let fewer = set.without(&name);
            if !fewer.is_empty() && self.tried(&fewer)?.fits == Some(true) {
                set = fewer;
            }
        }
        Ok(())
    }

    /// The best candidate that fits: the least change to the numbers, then the shortest step, then the fewest techniques.
    pub(super) fn chosen(&self) -> Option<&Candidate> {
        let goal = self.wish.goal;
        let allowed = |it: &&Candidate| it.set.numbers() <= self.wish.numbers && it.fits == Some(true);
        let fitting = self.candidates.iter().filter(allowed).filter(|it| it.is_effective());
        fitting.min_by(|a, b| {
            let rank = |it: &Candidate| if goal == Goal::Fit { it.set.numbers() } else { Numbers::Identical };
            let bytes = |it: &Candidate| if goal == Goal::Memory { it.trial.reserved_bytes } else { 0 };
            let key = |it: &Candidate| (rank(it), bytes(it));
            key(a)
                .cmp(&key(b))
                .then_with(|| a.step_s().total_cmp(&b.step_s()))
                .then_with(|| a.set.len().cmp(&b.set.len()))
        })
    }

    /// The candidate of a set, which is tried if it has not been.
    fn tried(&mut self, set: &Set) -> Result<Candidate, Failure> {
        if let Some(known) = self.candidates.iter().find(|it| it.set == *set) {
            return Ok(known.clone());
        }
        let trial = self.trials.of(set, false, false)?;
        self.is_interrupted |= trial.end == End::Interrupted;
        let capacity = self.target.capacity_bytes();
        let fits = match trial.end {
            End::Ran if trial.reserved_bytes <= capacity => Some(true),
            End::Ran if trial.allocated_bytes > capacity => Some(false),
            // Cached memory is given back when memory runs short.
            End::Ran => Some(self.trials.of(set, true, false)?.end == End::Ran),
            _ => None,
        };
        let cost = self.cost(set, &trial);
        let candidate = Candidate { set: set.clone(), trial, fits, cost };
        output::progress(&super::text::progress(&candidate));
        self.candidates.push(candidate.clone());
        Ok(candidate)
    }

    fn cost(&self, set: &Set, trial: &Trial) -> Option<Cost> {
        (!self.work.is_empty() && trial.end == End::Ran).then(|| self.work.cost(self.gpu, set, trial))
    }
}

/// The number of blocks with which the peak is about the capacity, if each of them saves the same.
fn solved(none_bytes: u64, all_bytes: u64, blocks: u64, capacity_bytes: u64) -> u64 {
    let saved = none_bytes.saturating_sub(all_bytes).max(1);
    let wanted = none_bytes.saturating_sub(capacity_bytes);
    let number = (u128::from(wanted) * u128::from(blocks)).div_ceil(u128::from(saved));
    u64::try_from(number).unwrap_or(blocks).clamp(1, blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_blocks_is_solved_from_the_peaks_without_and_with_all() {
        assert_eq!(solved(40, 16, 12, 24), 8);
        assert_eq!(solved(40, 16, 12, 23), 9);
        assert_eq!(solved(40, 16, 12, 50), 1);
        assert_eq!(solved(40, 16, 12, 10), 12);
        assert_eq!(solved(40, 40, 12, 10), 12);
    }
}
