//! One pass through the search with the known facts: [`Pass`]. A pass ends at the first result that is missing.

use super::super::facts::{Fact, Facts, Ran};
use super::super::goal::Goal;
use super::choice;
use crate::techniques::{Joins, Programs, Set, Technique};

/// Sets whose results a pass needs: the result of the first set now, and the other results probably next.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) sets: Vec<Set>,
    /// Whether a set that fits is already known. If so, these sets can only improve on it.
    pub(super) is_optional: bool,
}

/// A pass through the search.
pub(super) struct Pass<'a> {
    pub(super) facts: &'a Facts,
    /// The results that this pass has read so far, in order. The decisions of this pass depend on no other results.
    pub(super) seen: Vec<&'a Fact>,
    /// The sets that the pass is about to request.
    announced: Vec<Set>,
    /// Whether the search already has an answer, and is only looking for a better answer.
    pub(super) is_answered: bool,
    /// The techniques that save memory by themselves.
    pub(super) useful: Vec<Technique>,
    /// Which blocks are checkpointed: the repeated blocks of the model, or the repeated blocks inside them.
    pub(super) blocks: Technique,
}

impl<'a> Pass<'a> {
    pub(super) fn new(facts: &'a Facts) -> Pass<'a> {
        Pass {
            facts,
            seen: facts.tried.iter().take(facts.known_before).collect(),
            announced: Vec::new(),
            is_answered: false,
            useful: Vec::new(),
            blocks: Technique::Checkpoint,
        }
    }

    /// Returns the facts about a set.
    ///
    /// # Errors
    /// If the set has not been tried yet.
    pub(super) fn tried(&mut self, set: &Set) -> Result<&'a Fact, Missing> {
        if let Some(seen) = self.seen.iter().find(|it| it.set == *set) {
            return Ok(seen);
        }
        if let Some(fact) = self.facts.tried.iter().find(|it| it.set == *set) {
            self.seen.push(fact);
            return Ok(fact);
        }
        let mut missing = vec![set.clone()];
        if self.announced.contains(set) {
            let is_new = |it: &&Set| *it != set && self.facts.tried.iter().all(|known| known.set != **it);
            missing.extend(self.announced.iter().filter(is_new).cloned());
        }
        Err(Missing { sets: missing, is_optional: self.is_answered })
    }

    /// Announces the sets that are requested next, so that they can run concurrently, one for each processor
    /// of this machine.
    pub(super) fn announce(&mut self, sets: impl IntoIterator<Item = Set>) {
        self.announced = sets.into_iter().filter(|set| !set.is_empty()).collect();
    }

    /// The unchanged program.
    pub(super) fn base(&mut self) -> Result<&'a Fact, Missing> {
        self.tried(&Set::default())
    }

    /// The best set that fits, of those seen so far.
    pub(super) fn chosen(&self) -> Option<&'a Fact> {
        choice::of(&self.seen, self.facts.wish, self.facts.limits).map(|it| it.best)
    }

    /// Whether the best set so far fits with enough headroom.
    pub(super) fn has_room(&self) -> bool {
        self.chosen().is_some_and(Fact::has_room)
    }

    pub(super) fn goal(&self) -> Goal {
        self.facts.wish.goal
    }

    /// Whether no other set can be better.
    pub(super) fn is_met(&self) -> bool {
        self.goal() == Goal::Fit && self.has_room()
    }

    pub(super) fn is_useful(&self, technique: Technique) -> bool {
        self.useful.contains(&technique)
    }

    /// The useful techniques that can join sets of this kind. Leaves out techniques that another useful technique
    /// replaces, and techniques that cannot be combined with `beside`.
    pub(super) fn joined(&self, joins: Joins, beside: Option<Technique>) -> Set {
        let fits_beside = |it: Technique| beside.is_none_or(|beside| beside.excluded_by(it).is_none());
        let joining = Technique::all().filter(|it| it.row().joins <= joins && self.is_useful(*it));
        let joining: Vec<Technique> = joining.filter(|&it| fits_beside(it)).collect();
        let is_replaced = |it: Technique| joining.iter().any(|other| other.row().replaces.contains(&it));
        let set = joining.iter().fold(Set::default(), |set, &it| set.with(it, None));
        set.only(|it| !is_replaced(it))
    }

    /// Tries each of these techniques alone, if allowed, and records the useful techniques.
    pub(super) fn alone(&mut self, techniques: &[Technique]) -> Result<(), Missing> {
        let base = self.base()?;
        let is_allowed = |it: &Technique| it.row().numbers <= self.facts.wish.numbers;
        let techniques: Vec<Technique> = techniques.iter().copied().filter(is_allowed).collect();
        self.announce(techniques.iter().map(|&it| Set::default().with(it, None)));
        for technique in techniques {
            let one = self.tried(&Set::default().with(technique, None))?;
            if one.is_effective() && one.saves_beside(base) && !self.is_useful(technique) {
                self.useful.push(technique);
            }
        }
        Ok(())
    }

    /// Whether one technique alone needs clearly less memory than the other alone.
    pub(super) fn saves_more(&self, one: Technique, other: Technique) -> bool {
        let alone = |technique| self.seen.iter().find(|it| it.is_alone(technique) && it.is_effective());
        match (alone(one), alone(other)) {
            (Some(one), Some(other)) => one.saves_beside(other),
            (one, _) => one.is_some(),
        }
    }

    /// Whether a trial showed that a technique cannot be applied to this program, or has no effect.
    pub(super) fn is_ruled_out(&self, technique: Technique) -> bool {
        self.seen.iter().any(|it| match &it.run {
            Ran::Refused(refused) => *refused == technique,
            Ran::Idle(idle) => idle.contains(&technique),
            Ran::Well | Ran::Failed => false,
        })
    }

    /// Whether a technique is meant for programs of this kind, such as inference programs.
    pub(super) fn is_meant(&self, technique: Technique) -> bool {
        let Facts { infers, compiles, .. } = *self.facts;
        match technique.row().programs {
            Programs::All => true,
            Programs::Training => !infers,
            Programs::Inference => infers,
            Programs::Compiled => compiles && !infers,
            Programs::Uncompiled => !compiles && !infers,
        }
    }

    /// Whether the program can run with this technique; true if unknown. Some techniques are only for
    /// programs that compile their model, others only for programs that do not.
    pub(super) fn is_possible(&self, technique: Technique) -> bool {
        if !self.is_meant(technique) {
            return false;
        }
        let alone = self.seen.iter().find(|it| it.is_alone(technique));
        alone.is_none_or(|it| it.is_effective())
    }
}
