//! Which sets are tried, in which order: [`Search`]. Savings do not add up, so each set is judged by a run.
//!
//! A program that fits needs none. Otherwise first every technique alone; then those with an effect together, the number of checkpointed blocks solved from two peaks
//! (it saves linearly) and then verified; then, if nothing that keeps the numbers fits, with techniques that change the rounding;
//! with bf16 last. For the least memory and the fastest step, `polish.rs` then changes the best set by single techniques.

use std::time::{Duration, Instant};

use super::candidate::{Candidate, is_close};
use super::goal::{Goal, Wish};
use super::time::{Cost, Work};
use crate::exit::Failure;
use crate::output;
use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::{How, Trials};
use crate::techniques::{Alone, Joins, Levels, Numbers, Operators, Set, Technique, Time};

/// More than this multiple of the program's own time, other sets are tried beside one that fits.
const SLOW: f64 = 1.3;

/// Trials and their results.
pub(super) struct Search<'a, 'scope> {
    pub(super) trials: &'a mut Trials<'scope>,
    pub(super) target: &'a Target,
    /// The number of GPUs.
    pub(super) devices: u32,
    pub(super) wish: Wish,
    /// How long it may take after the first trial.
    pub(super) within: Duration,
    /// When it ends with what is known.
    pub(super) until: Option<Instant>,
    /// The operators of a step, by the techniques that change them.
    pub(super) works: Vec<(Set, Work)>,
    /// All that was tried, in order.
    pub(super) candidates: Vec<Candidate>,
    /// Whether the user ended the search, or its time was up.
    pub(super) is_interrupted: bool,
    /// Whether its time was up.
    pub(super) is_late: bool,
    /// Whether trials go on until their reserved bytes no longer grow.
    pub(super) settles: bool,
    /// The techniques that save memory alone.
    pub(super) useful: Vec<Technique>,
    /// Which blocks are checkpointed: those of the model, or those inside of them.
    pub(super) blocks: Technique,
}

impl Search<'_, '_> {
    /// Tries sets until the wish is met as well as can be. The first candidate is the program as it is; if that did not run,
    /// it is the only one. It goes on where something was learned of a candidate since the last call.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let base = self.tried(&Set::default())?;
        if self.until.is_none() {
            self.until = Instant::now().checked_add(self.within);
            self.trials.end_at(self.until);
        }
        if base.trial.end != End::Ran || (self.wish.goal == Goal::Fit && base.caught.is_some()) {
            return Ok(());
        }
        // No technique frees what the program keeps of each step.
        if base.trial.grows.is_some() && base.fits != Some(true) {
            return Ok(());
        }
        self.candidates[0].cost = self.cost(&Set::default(), &base.trial)?;
        if self.wish.goal == Goal::Fit && base.fits == Some(true) && !base.is_tight {
            return Ok(());
        }
        // Each trial compiles, so the technique that is made for such programs comes first.
        let compiles = base.trial.compiles && self.wish.numbers >= Numbers::Rounding;
        if compiles && self.budgets()? {
            return Ok(());
        }
        let names = self.first();
        self.alone(&names)?;
        if self.is_interrupted {
            return Ok(());
        }
        // What costs no time and keeps the numbers, by what it changes in a program; then what rounds differently.
        if self.is_useful(Technique::CheckpointNested)
            && self.saves_more(Technique::CheckpointNested, Technique::Checkpoint)
        {
            self.blocks = Technique::CheckpointNested;
        }
        let (has_checkpoint, has_offload) = (self.is_useful(self.blocks), self.is_useful(Technique::Offload));
        let free = self.joined(Joins::Free, None);
        self.level(&free, has_checkpoint, false, false)?;
        let takes_time =
            |it: Technique| matches!(it.row().time, Time::Again | Time::NestedAgain | Time::Copies);
        let has_price = self.chosen().is_some_and(|it| it.has_room() && it.set.techniques().any(takes_time));
        if self.wish.goal == Goal::Fit && has_offload && has_price {
            // Copies may take less time than computing again.
            self.least_offload(&free)?;
            if has_checkpoint && self.is_slow() {
                // Together with it, fewer bytes have to leave.
                self.least_offload(&free.with(self.blocks, None))?;
            }
        }
        if !self.is_met() {
            self.level(&self.joined(Joins::Identical, None), has_checkpoint, has_offload, false)?;
            self.close_gaps()?;
        }
        if self.wish.numbers >= Numbers::Rounding && !self.is_met() {
            self.alone(
                &Technique::all().filter(|it| it.row().alone == Alone::Optimizer).collect::<Vec<_>>(),
            )?;
            let mut rounding = self.joined(Joins::Rounding, None);
            if compiles {
                rounding = rounding.with(Technique::MemoryBudget, budgets().last().copied());
            }
            self.level(&rounding, has_checkpoint, has_offload, true)?;
            self.close_gaps()?;
            if self.is_useful(Technique::Fsdp) && !self.is_met() {
                // Whole parameters are freed where they are sharded, which leaves gaps.
                let sharded = self.joined(Joins::Rounding, Some(Technique::Fsdp));
                let sharded = sharded.with(Technique::Fsdp, None).with(Technique::Expandable, None);
                self.level(&sharded, has_checkpoint, false, false)?;
            }
            if self.chosen().is_none() {
                if compiles {
                    self.eager(&self.joined(Joins::Rounding, None))?;
                } else {
                    self.compiled(&self.joined(Joins::Rounding, Some(Technique::Compile)))?;
                }
            }
            let narrow = self.joined(Joins::Changed, None);
            if self.wish.numbers == Numbers::Changed && !self.is_met() && narrow.numbers() == Numbers::Changed
            {
                self.level(&narrow, has_checkpoint, false, false)?;
            }
            if self.wish.numbers == Numbers::Changed || self.chosen().is_none() {
                // An offer if it was not asked for.
                self.level(&rounding.with(Technique::Bf16, None), has_checkpoint, false, true)?;
            }
        }
        match self.wish.goal {
            Goal::Fit => self.simplify(),
            Goal::Memory | Goal::Speed | Goal::Batch => self.polish(),
        }
    }

    /// The techniques that are tried alone at the beginning, in this order.
    fn first(&self) -> Vec<Technique> {
        let has_nested = self.works.first().is_some_and(|(_, work)| work.nested > 0);
        let is_first = |it: &Technique| match it.row().alone {
            Alone::Always => true,
            Alone::NestedBlocks => has_nested,
            Alone::SeveralGpus => self.devices > 1,
            Alone::Optimizer => self.wish.goal != Goal::Fit,
            Alone::Changed => self.wish.numbers == Numbers::Changed,
            Alone::Never => false,
        };
        let mut first: Vec<Technique> = Technique::all().filter(is_first).collect();
        first.sort_by_key(|it| it.row().alone);
        first
    }

    /// Tries each of these techniques alone, as far as they are allowed, and notes the useful ones.
    fn alone(&mut self, techniques: &[Technique]) -> Result<(), Failure> {
        let is_allowed = |it: &Technique| it.row().numbers <= self.wish.numbers;
        let techniques: Vec<Technique> = techniques.iter().copied().filter(is_allowed).collect();
        self.ahead(techniques.iter().map(|&it| Set::default().with(it, None)))?;
        for technique in techniques {
            let one = self.tried(&Set::default().with(technique, None))?;
            let saves = one.is_effective() && saves(&self.candidates[0].trial, &one.trial);
            if saves && !self.useful.contains(&technique) {
                self.useful.push(technique);
            }
        }
        Ok(())
    }

    fn is_useful(&self, technique: Technique) -> bool {
        self.useful.contains(&technique)
    }

    /// The useful techniques that join such sets, without those that another one of them replaces; beside a technique, those that it does not
    /// exclude.
    fn joined(&self, joins: Joins, beside: Option<Technique>) -> Set {
        let fits_beside = |it: Technique| beside.is_none_or(|beside| beside.excluded_by(it).is_none());
        let joining = Technique::all().filter(|it| it.row().joins <= joins && self.is_useful(*it));
        let joining: Vec<Technique> = joining.filter(|&it| fits_beside(it)).collect();
        let is_replaced = |it: Technique| joining.iter().any(|other| other.row().replaces.contains(&it));
        let set = joining.iter().fold(Set::default(), |set, &it| set.with(it, None));
        set.only(|it| !is_replaced(it))
    }

    /// Begins the trials of sets whose results are asked for soon: as many run at once as this machine has processors.
    pub(super) fn ahead(&mut self, sets: impl IntoIterator<Item = Set>) -> Result<(), Failure> {
        if self.is_interrupted || self.until.is_some_and(|until| Instant::now() > until) {
            return Ok(());
        }
        let mut wanted = Vec::new();
        for set in sets.into_iter().filter(|set| !set.is_empty()) {
            if self.candidates.iter().all(|it| it.set != set) {
                let changed = changed(&set);
                wanted.push((set, How::Ample));
                if self.works.iter().all(|(known, _)| *known != changed) {
                    wanted.push((changed, How::Counted));
                }
            }
        }
        self.trials.ahead(&wanted)
    }

    /// Whether no further set can be better, or the user ended the search.
    pub(super) fn is_met(&self) -> bool {
        self.is_interrupted || (self.wish.goal == Goal::Fit && self.chosen().is_some_and(Candidate::has_room))
    }

    /// Whether one technique alone takes less memory than another one alone, by more than a little.
    fn saves_more(&self, one: Technique, other: Technique) -> bool {
        let alone = |technique| {
            self.candidates.iter().find(|it| it.set.techniques().eq([technique]) && it.is_effective())
        };
        match (alone(one), alone(other)) {
            (Some(one), Some(other)) => saves(&other.trial, &one.trial),
            (one, _) => one.is_some(),
        }
    }

    /// Whether the chosen set takes much longer than the program as it is.
    fn is_slow(&self) -> bool {
        let base_s = self.candidates.first().map_or(0.0, Candidate::step_s);
        self.chosen().is_some_and(|it| it.step_s() > SLOW * base_s)
    }

    /// The best candidate that fits: without running out of memory, then the least change to the numbers, then with memory to spare, then the shortest step to
    /// within a hundredth, then the least change to the program. For the largest batch it is the one with the least memory: other
    /// batches fit than the one of these trials.
    pub(super) fn chosen(&self) -> Option<&Candidate> {
        let goal = self.wish.goal;
        let fits = |it: &Candidate| it.fits == Some(true) || goal == Goal::Batch;
        let allowed = |it: &&Candidate| it.set.numbers() <= self.wish.numbers && fits(it);
        let base_s = self.candidates.first().map_or(0.0, Candidate::step_s).max(f64::MIN_POSITIVE);
        let hundredths = |it: &Candidate| (it.step_s() / base_s * 100.0).round();
        let fitting = self.candidates.iter().filter(allowed).filter(|it| it.is_effective());
        fitting.min_by(|a, b| {
            let rank = |it: &Candidate| if goal == Goal::Fit { it.set.numbers() } else { Numbers::Identical };
            let bytes = |it: &Candidate| if goal.is_memory() { it.trial.reserved_bytes } else { 0 };
            let key = |it: &Candidate| (it.caught.is_some(), rank(it), bytes(it), it.is_tight, it.is_close);
            key(a)
                .cmp(&key(b))
                .then_with(|| hundredths(a).total_cmp(&hundredths(b)))
                .then_with(|| a.set.effort().cmp(&b.set.effort()))
        })
    }

    /// The candidate of a set, which is tried if it has not been.
    pub(super) fn tried(&mut self, set: &Set) -> Result<Candidate, Failure> {
        if let Some(known) = self.candidates.iter().find(|it| it.set == *set) {
            return Ok(known.clone());
        }
        if self.until.is_some_and(|until| Instant::now() > until) && !self.candidates.is_empty() {
            (self.is_late, self.is_interrupted) = (true, true);
            return Ok(Candidate::untried(set));
        }
        let mut trial = self.trials.of(set, How::Ample)?;
        let (mut is_tight, mut caught) = (false, None);
        let capacity = self.target.capacity_bytes();
        if set.is_empty() && trial.end == End::Ran && trial.reserved_bytes > capacity {
            self.trials.ahead(&[(set.clone(), How::Limited), (set.clone(), How::Counted)])?;
        }
        let fits = match trial.end {
            End::Ran if trial.reserved_bytes <= capacity => Some(true),
            // A program that catches running out of memory may take less where there is less.
            End::Ran | End::RanOut(_) if set.is_empty() => {
                let limited = self.trials.of(set, How::Limited)?;
                is_tight = limited.end == End::Ran;
                if is_tight {
                    trial = limited.clone();
                } else if limited.goes_on(&trial) {
                    if trial.end != End::Ran {
                        trial = Trial { end: End::Ran, ..limited.clone() };
                    }
                    caught = Some(limited.clone());
                }
                (limited.end != End::Interrupted).then_some(is_tight || caught.is_some())
            }
            End::Ran if trial.allocated_bytes > capacity => Some(false),
            // Cached memory is given back when memory runs short.
            End::Ran => {
                let limited = self.trials.of(set, How::Limited)?;
                is_tight = limited.end == End::Ran;
                if is_tight {
                    trial.reserved_bytes = limited.reserved_bytes;
                }
                (limited.end != End::Interrupted).then_some(is_tight)
            }
            _ => None,
        };
        let cost = if self.candidates.is_empty() { None } else { self.cost(set, &trial)? };
        self.is_late |= self.trials.is_late();
        self.is_interrupted = self.is_late || self.trials.is_interrupted();
        let is_close = is_close(self.target, trial.reserved_bytes);
        let candidate = Candidate { set: set.clone(), trial, fits, is_tight, is_close, caught, cost };
        if candidate.trial.end != End::Interrupted || self.candidates.is_empty() {
            output::progress(&super::text::progress(&candidate));
            self.candidates.push(candidate.clone());
        }
        Ok(candidate)
    }

    /// The cost of a set, from the operators that run with it. Those that techniques change are counted by a run of their own;
    /// what they compute again is added.
    fn cost(&mut self, set: &Set, trial: &Trial) -> Result<Option<Cost>, Failure> {
        if trial.end != End::Ran || self.is_interrupted {
            return Ok(None);
        }
        self.count(&Set::default())?;
        let changed = changed(set);
        self.count(&changed)?;
        let work = |wanted: &Set| self.works.iter().find(|(set, _)| set == wanted).map(|(_, work)| work);
        let base = work(&Set::default()).filter(|work| !work.is_empty());
        let own = work(&changed).filter(|work| !work.is_empty());
        Ok(base.map(|base| match own {
            Some(own) => {
                own.cost(self.target.listed, self.devices, set, trial, base, changed.has(Technique::Bf16))
            }
            None => base.cost(self.target.listed, self.devices, set, trial, base, false),
        }))
    }

    /// Counts the operators of a step with these techniques, once.
    fn count(&mut self, set: &Set) -> Result<(), Failure> {
        if self.works.iter().all(|(known, _)| known != set) {
            let counted = self.trials.of(set, How::Counted)?;
            self.works.push((set.clone(), Work::of(&counted)));
        }
        Ok(())
    }
}

/// Whether a trial's peak is lower by more than chance: the order of requests alone moves it a little.
pub(super) fn saves(base: &Trial, trial: &Trial) -> bool {
    let lower = |base: u64, bytes: u64| base.saturating_sub(bytes) > base / 200;
    lower(base.allocated_bytes, trial.allocated_bytes) || lower(base.reserved_bytes, trial.reserved_bytes)
}

/// The techniques of a set that run other operators than the program's own.
fn changed(set: &Set) -> Set {
    set.only(|it| it.row().operators == Operators::Other)
}

/// Percentages of activations that a compiled model keeps, in the order of their trials.
pub(super) fn budgets() -> &'static [u64] {
    match Technique::MemoryBudget.row().levels {
        Levels::Downward(percentages) => percentages,
        _ => &[],
    }
}
