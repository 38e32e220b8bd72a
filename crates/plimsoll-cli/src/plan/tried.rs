//! The sets that were tried: [`Tried`], the candidates in the order of their trials, and the operators counted to
//! determine their cost.

use super::candidate::Candidate;
use super::facts::{Fact, Facts};
use super::fit::Limits;
use super::goal::Wish;
use super::time::{Cost, Work};
use crate::predict::trial::End;
use crate::techniques::Set;

/// All results of a search.
#[derive(Default)]
pub(super) struct Tried {
    candidates: Vec<Candidate>,
    /// The operators of a step, by the set of techniques that change the operators.
    works: Vec<(Set, Work)>,
    /// The number of candidates that were known when a candidate was last corrected.
    known_before: usize,
}

impl Tried {
    pub(super) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    pub(super) fn into_candidates(self) -> Vec<Candidate> {
        self.candidates
    }

    pub(super) fn has(&self, set: &Set) -> bool {
        self.candidates.iter().any(|it| it.set == *set)
    }

    pub(super) fn add(&mut self, candidate: Candidate) {
        self.candidates.push(candidate);
    }

    /// Corrects a candidate. The search then continues with all results so far.
    pub(super) fn correct(&mut self, place: usize, how: impl FnOnce(&mut Candidate)) {
        how(&mut self.candidates[place]);
        self.known_before = self.candidates.len();
    }

    /// Stores the cost of the unchanged program.
    pub(super) fn price(&mut self, cost: Option<Cost>) {
        if let Some(base) = self.candidates.first_mut() {
            base.cost = cost;
        }
    }

    /// Removes and returns all candidates.
    pub(super) fn forget(&mut self) -> Vec<Candidate> {
        self.known_before = 0;
        std::mem::take(&mut self.candidates)
    }

    /// Replaces all candidates with these.
    pub(super) fn restore(&mut self, candidates: Vec<Candidate>) {
        self.known_before = candidates.len();
        self.candidates = candidates;
    }

    /// The operators of a step with these techniques, if they were counted.
    pub(super) fn work(&self, set: &Set) -> Option<&Work> {
        self.works.iter().find(|(counted, _)| counted == set).map(|(_, work)| work)
    }

    pub(super) fn add_work(&mut self, set: Set, work: Work) {
        self.works.push((set, work));
    }

    /// The facts that the strategy reads.
    pub(super) fn facts(&self, wish: Wish, devices: u32, limits: Limits) -> Facts {
        let base = self.candidates.first();
        Facts {
            wish,
            devices,
            limits,
            tried: self.candidates.iter().map(Candidate::fact).collect::<Vec<Fact>>(),
            known_before: self.known_before,
            grows: base.is_some_and(|it| it.trial.grows.is_some()),
            compiles: base.is_some_and(|it| it.trial.compiles),
            infers: base
                .is_some_and(|it| matches!(it.trial.end, End::Ran | End::RanOut(_)) && !it.trial.trains),
            has_nested_blocks: self.work(&Set::default()).is_some_and(|work| work.nested > 0),
        }
    }
}
