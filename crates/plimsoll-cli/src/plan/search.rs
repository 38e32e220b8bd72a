//! Runs the sets that the strategy requests, until the strategy has decided or the time is up: [`Search`].

use std::time::{Duration, Instant};

use super::candidate::{Candidate, limits, objection};
use super::estimate::Mix;
use super::facts::{Fact, Facts};
use super::fit::{Fit, Limits};
use super::foresee;
use super::goal::Wish;
use super::hints::hints;
use super::patience::Patience;
use super::sentences;
use super::strategy::{self, Decision, Step};
use super::time::{Cost, Work};
use super::tried::Tried;
use crate::exit::Failure;
use crate::output;
use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::{How, Trials};
use crate::protocol::Applied;
use crate::techniques::{Operators, Set, Technique};

/// The number of runs that a search usually makes in addition to those that are already planned.
const DECIDING: u32 = 4;

/// How many times longer the first trial, which imports the program, usually takes than a later trial.
const USUAL_PART: u32 = 10;

/// Trials and their results.
pub(super) struct Search<'a, 'scope> {
    pub(super) trials: &'a mut Trials<'scope>,
    target: &'a Target,
    /// The number of GPUs that the program sees.
    devices: u32,
    pub(super) wish: Wish,
    /// The time limit after the first trial.
    within: Duration,
    /// When to end the search and report the results so far.
    pub(super) until: Option<Instant>,
    /// How long to look for a cheaper set after one fits.
    patience: Patience,
    /// Whether the search is looking for cheaper sets.
    improves: bool,
    /// All sets that were tried.
    pub(super) tried: Tried,
    /// The sets named in the last progress line.
    announced: Vec<Set>,
    /// The time at which the first trial ended.
    since: Option<Instant>,
    /// Whether the cost of the unmodified program was requested; other sets are compared with it.
    is_priced: bool,
    /// Whether the user ended the search, or its time was up.
    pub(super) is_interrupted: bool,
    /// Whether the time ran out.
    pub(super) is_late: bool,
}

impl<'a, 'scope> Search<'a, 'scope> {
    pub(super) fn new(
        trials: &'a mut Trials<'scope>,
        target: &'a Target,
        devices: u32,
        wish: Wish,
        within: Duration,
    ) -> Search<'a, 'scope> {
        Search {
            trials,
            target,
            devices,
            wish,
            within,
            until: None,
            patience: Patience::default(),
            improves: false,
            tried: Tried::default(),
            announced: Vec::new(),
            since: None,
            is_priced: false,
            is_interrupted: false,
            is_late: false,
        }
    }

    /// Tries sets until no other set can be better, or the time is up. The first candidate is the unchanged program.
    /// A second call continues the search, with corrections that were made to candidates in the meantime.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn run(&mut self) -> Result<Decision, Failure> {
        let decision = self.decided()?;
        if self.patience.is_used() {
            // Trials that are still running are abandoned: sets that may be only slightly cheaper must not delay the
            // run at the GPU's size.
            self.trials.give_up()?;
            self.trials.end_at(self.until);
        }
        Ok(decision)
    }

    fn decided(&mut self) -> Result<Decision, Failure> {
        loop {
            let facts = self.facts();
            let step = foresee::next(&facts, |set, mix| self.estimated(set, mix));
            self.improves = matches!(step, Step::Improve(_));
            let sets = match step {
                Step::Done(decision) => return Ok(decision),
                Step::Improve(_) if self.is_long_enough() => return Ok(strategy::decide(&facts)),
                Step::Try(sets) | Step::Improve(sets) => sets,
            };
            let is_begun = !facts.tried.is_empty();
            if is_begun && self.until.is_some_and(|until| Instant::now() > until) {
                (self.is_late, self.is_interrupted) = (true, true);
            }
            if is_begun && self.is_interrupted {
                return Ok(strategy::decide(&facts));
            }
            if is_begun && !self.is_priced {
                // With the counts of operators, the strategy may choose other sets.
                self.price()?;
                continue;
            }
            if is_begun && !self.announced.contains(&sets[0]) {
                let runs = self.tried.candidates().len() - 1;
                output::progress(&sentences::trying(&sets, self.remaining(sets.len(), runs)));
                self.announced.clone_from(&sets);
            }
            self.ahead(&sets)?;
            self.try_next(&sets[0])?;
            self.since.get_or_insert_with(Instant::now);
            if self.until.is_none() {
                self.until = Instant::now().checked_add(self.within);
                self.trials.end_at(self.until);
            }
        }
    }

    /// Estimates how much longer the search will take: the `sets` sets that run now, and a few more, each take the
    /// average time of the `runs` so far. The run at the GPU's size at the end takes about half as long as the first
    /// run.
    fn remaining(&self, sets: usize, runs: usize) -> Duration {
        let (first, since) = (self.trials.first(), self.since.map_or(Duration::ZERO, |it| it.elapsed()));
        let each = match u32::try_from(runs) {
            Ok(runs @ 1..) => since / runs,
            _ => first / USUAL_PART,
        };
        each * u32::try_from(sets).unwrap_or(u32::MAX).saturating_add(DECIDING) + first / 2
    }

    /// Whether there is no more time to look for a cheaper set. If there is time left, trials end when this time is up.
    fn is_long_enough(&mut self) -> bool {
        let now = Instant::now();
        let own = self.patience.until(now, self.trials.first());
        let until = self.until.map_or(own, |until| until.min(own));
        self.trials.end_at(Some(until));
        now >= until
    }

    fn facts(&self) -> Facts {
        self.tried.facts(self.wish, self.devices, limits(self.trials.target()))
    }

    /// The memory limits of a set, given the memory that its trial used outside the allocator.
    pub(super) fn limits(&self, trial: &Trial) -> Limits {
        limits(&trial.target(self.trials.target()))
    }

    /// Discards and returns all trials, so that they run again.
    pub(super) fn forget(&mut self) -> Vec<Candidate> {
        (self.is_priced, self.patience) = (false, Patience::default());
        self.tried.forget()
    }

    /// Starts the trials of sets whose results are needed soon. This machine runs one trial per processor at a time.
    pub(super) fn ahead(&mut self, sets: &[Set]) -> Result<(), Failure> {
        let mut wanted = Vec::new();
        for set in sets.iter().filter(|set| !set.is_empty() && !self.tried.has(set)) {
            wanted.push((set.clone(), How::Ample));
            let changed = changed(set);
            if self.tried.work(&changed).is_none() {
                wanted.push((changed, How::Counted));
            }
        }
        self.trials.ahead(&wanted)
    }

    /// Tries a set, and finds out whether it fits.
    fn try_next(&mut self, set: &Set) -> Result<(), Failure> {
        let mut trial = self.trials.of(set, How::Ample)?;
        if let Some(lacks) = self.lacks_host(set, &trial) {
            trial.end = End::RanOut(lacks);
        }
        let limits = self.limits(&trial);
        let capacity_bytes = limits.capacity_bytes;
        if set.is_empty() && trial.end == End::Ran && trial.reserved_bytes > capacity_bytes {
            self.trials.ahead(&[(set.clone(), How::Limited), (set.clone(), How::Counted)])?;
        }
        let mut caught = None;
        let fit = match &trial.end {
            End::Ran if trial.reserved_bytes <= capacity_bytes => limits.fit(trial.reserved_bytes),
            // A program that catches out-of-memory errors may use less memory if less is available.
            End::Ran | End::RanOut(_) if set.is_empty() => {
                let limited = self.trials.of(set, How::Limited)?;
                if limited.end == End::Ran {
                    trial = limited;
                    limits.tight(trial.reserved_bytes)
                } else if limited.goes_on(&trial) {
                    if trial.end != End::Ran {
                        trial = Trial { end: End::Ran, ..limited.clone() };
                    }
                    caught = Some(limited);
                    limits.fit(trial.reserved_bytes)
                } else {
                    without_fit(limits, &trial, &limited)
                }
            }
            End::Ran if trial.allocated_bytes > capacity_bytes => limits.short(trial.allocated_bytes),
            // The set may still fit if the allocator releases cached memory when memory runs short.
            End::Ran => {
                let limited = self.trials.of(set, How::Limited)?;
                if limited.end == End::Ran && limited.reserved_bytes > capacity_bytes {
                    // The allocator's limit does not count the rest of a page that an expandable segment maps.
                    limits.short(limited.reserved_bytes)
                } else if limited.end == End::Ran {
                    trial.reserved_bytes = limited.reserved_bytes;
                    limits.tight(trial.reserved_bytes)
                } else {
                    without_fit(limits, &trial, &limited)
                }
            }
            end => Fit::Unknown(objection(end)),
        };
        let is_first = self.tried.candidates().is_empty();
        let cost = if is_first { None } else { self.cost(set, &trial)? };
        // A trial of a cheaper set ran out of time, but the search already has an answer.
        let is_given_up = self.trials.is_late() && self.improves;
        self.is_late |= self.trials.is_late() && !is_given_up;
        self.is_interrupted = self.is_late || self.trials.is_interrupted();
        if (trial.end != End::Interrupted && !is_given_up) || is_first {
            let candidate = Candidate { set: set.clone(), trial, fit, caught, cost };
            output::progress(&sentences::progress(&candidate));
            self.tried.add(candidate);
        }
        Ok(())
    }

    /// A sentence saying how much host memory the machine lacks for a set, if it has enough for the unchanged
    /// program.
    fn lacks_host(&self, set: &Set, trial: &Trial) -> Option<String> {
        let is_enough = self.tried.candidates().first().is_some_and(|base| base.trial.lacks_host.is_none());
        trial.lacks_host.clone().filter(|_| !set.is_empty() && is_enough && trial.end == End::Ran)
    }

    /// The facts about a set, estimated from the trials of other sets.
    fn estimated(&self, set: &Set, mix: &Mix) -> Fact {
        let known = self.tried.candidates();
        let sum = |of: &dyn Fn(&Trial) -> u64| mix.apply(|index| of(&known[index].trial));
        let applied = |technique: Technique| {
            let name = technique.name();
            // What a technique reports about itself hardly depends on the other techniques of a set.
            let of = |trial: &Trial| trial.technique(name).cloned();
            let like = known.iter().rev().find_map(|it| of(&it.trial))?;
            let bytes = sum(&|trial| of(trial).map_or(0, |it| it.bytes));
            Some(Applied { bytes, applied: true, ..like })
        };
        let trial = Trial {
            allocated_bytes: sum(&|it| it.allocated_bytes),
            reserved_bytes: sum(&|it| it.reserved_bytes),
            techniques: set.techniques().filter_map(applied).collect(),
            ..Trial::without_answer(End::Ran)
        };
        let limits = limits(self.trials.target());
        let bytes = trial.reserved_bytes;
        let fit = if bytes <= limits.capacity_bytes { limits.fit(bytes) } else { limits.short(bytes) };
        let cost = self.priced(set, &trial);
        Candidate { set: set.clone(), trial, fit, caught: None, cost }.fact()
    }

    /// Starts the trial that counts the operators of the unchanged program, unless that has been done.
    pub(super) fn count_ahead(&mut self) -> Result<(), Failure> {
        let set = Set::default();
        if self.tried.work(&set).is_some() { Ok(()) } else { self.trials.ahead(&[(set, How::Counted)]) }
    }

    /// Estimates the time of the unchanged program, once.
    pub(super) fn price(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.is_priced, true) {
            return Ok(());
        }
        let Some(base) = self.tried.candidates().first() else { return Ok(()) };
        let trial = base.trial.clone();
        let cost = self.cost(&Set::default(), &trial)?;
        self.tried.price(cost);
        Ok(())
    }

    /// Faster products that the program does not use.
    pub(super) fn hints(&self) -> Vec<String> {
        let Some(work) = self.tried.work(&Set::default()).filter(|work| !work.is_empty()) else {
            return Vec::new();
        };
        let infers = self.tried.candidates().first().is_some_and(|it| !it.trial.trains);
        let capability = self.target.capability.parse().unwrap_or(0.0);
        hints(work, self.target.listed, capability, infers)
    }

    /// The cost of a set, from the operators that run with it. If techniques replace operators, a
    /// separate run counts them; recomputed operators are added to the count.
    pub(super) fn cost(&mut self, set: &Set, trial: &Trial) -> Result<Option<Cost>, Failure> {
        if trial.end != End::Ran || self.is_interrupted {
            return Ok(None);
        }
        self.count(&Set::default())?;
        self.count(&changed(set))?;
        Ok(self.priced(set, trial))
    }

    /// The cost of a set, computed from the operators counted so far.
    pub(super) fn priced(&self, set: &Set, trial: &Trial) -> Option<Cost> {
        let changed = changed(set);
        let work = |set: &Set| self.tried.work(set).filter(|work| !work.is_empty());
        let (base, own) = (work(&Set::default()), work(&changed));
        let has_types = own.is_some() && changed.has(Technique::Bf16);
        let cost = |base: &Work| {
            own.unwrap_or(base).cost(self.target.listed, self.devices, set, trial, base, has_types)
        };
        base.map(cost)
    }

    /// Counts the operators of a step with these techniques, once.
    fn count(&mut self, set: &Set) -> Result<(), Failure> {
        if self.tried.work(set).is_none() {
            let counted = self.trials.of(set, How::Counted)?;
            if counted.end != End::Interrupted {
                self.tried.add_work(set.clone(), Work::of(&counted, self.target.listed, self.trials.hosts()));
            }
        }
        Ok(())
    }
}

/// The techniques in a set that replace some of the program's own operators.
fn changed(set: &Set) -> Set {
    set.only(|it| it.row().operators == Operators::Other)
}

/// Whether a set fits if its run under the GPU's limit failed.
fn without_fit(limits: Limits, trial: &Trial, limited: &Trial) -> Fit {
    match limited.end {
        End::Interrupted => Fit::Unknown(objection(&limited.end)),
        _ => limits.short(trial.reserved_bytes),
    }
}
