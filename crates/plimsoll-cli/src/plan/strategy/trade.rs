//! The end of a search for the cheapest set that fits: trades checkpointed blocks, copies and parts of the batch
//! against each other as long as the step gets faster. A mixture of two techniques is often cheaper than either
//! technique alone, because copies cost little until they take longer than the computation.

use super::near::{MOST_EFFORT, levelled};
use super::pass::{Missing, Pass};
use crate::techniques::{Joins, Numbers, Set, Technique, Time};

/// The most time that a combination of two techniques can save compared with one of the two techniques alone, as a
/// fraction of the program's own step.
const SLACK: f64 = 0.15;

/// The maximum number of rounds of small changes.
const ROUNDS: usize = 5;

/// If the chosen set has enough headroom, and its step takes at most this multiple of the unchanged program's step,
/// `trade` looks for no cheaper set.
const CHEAP: f64 = 1.02;

/// A cheaper set is worth looking for only if it may save more than this fraction of the program's own step.
const WORTH: f64 = 0.01;

impl Pass<'_> {
    /// Trades one technique for another in the chosen set, as long as that makes its step shorter.
    pub(super) fn trade(&mut self) -> Result<(), Missing> {
        let Some(chosen) = self.chosen().filter(|it| !it.set.is_empty()) else { return Ok(()) };
        if chosen.has_room() && chosen.order_s() <= self.base()?.order_s() * CHEAP {
            return Ok(());
        }
        self.is_answered = true;
        // Techniques that cost no time may free memory, so that fewer activations have to be recomputed.
        let easy = chosen.set.only(|it| it.row().effort < MOST_EFFORT);
        for set in [&easy, &chosen.set] {
            let all = self.with_all_free(set);
            if self.tried(&all)?.has_room() {
                self.lowered(&all, None)?;
                break;
            }
        }
        if !self.has_room() {
            self.make_room()?;
        }
        while let Some(set) = self.dear() {
            self.traded(&set)?;
            if self.chosen().is_some_and(|it| it.set == set) {
                break;
            }
        }
        self.exchange()?;
        for _ in 0..ROUNDS {
            let Some(set) = self.dear() else { break };
            let near = self.near(&set);
            self.announce(near.clone());
            for set in near {
                self.tried(&set)?;
            }
            if self.chosen().is_some_and(|it| it.set == set) {
                break;
            }
        }
        Ok(())
    }

    /// The chosen set, if it leaves enough room and a cheaper set could save time.
    fn dear(&self) -> Option<Set> {
        self.chosen().filter(|it| it.has_room() && self.is_dear(it.order_s())).map(|it| it.set.clone())
    }

    /// If nothing fits, tries everything that saves memory, and then weakens the techniques as far as possible.
    pub(super) fn everything(&mut self, numbers: Numbers) -> Result<(), Missing> {
        let joins = if numbers == Numbers::Identical { Joins::Identical } else { Joins::Rounding };
        let mut sets = Vec::new();
        for parts in [None, Some(Technique::Accumulate), Some(Technique::Split)] {
            let mut set = Set::default();
            if let Some(parts) = parts.filter(|it| it.row().numbers <= numbers && !self.is_ruled_out(*it)) {
                set = set.with(parts, self.values(parts).last().copied().flatten());
            }
            let is_wanted =
                |it: &Technique| it.row().joins <= joins || [self.blocks, Technique::Offload].contains(it);
            for technique in Technique::all().rev().filter(is_wanted) {
                if self.can_join(&set, technique) {
                    set = set.with(technique, None);
                }
            }
            sets.push(set);
        }
        // A technique whose copies do not overlap with computation comes last.
        let quick: Vec<Set> = sets.iter().map(|it| it.only(|it| it.row().time != Time::StepCopies)).collect();
        sets.splice(0..0, quick);
        sets.dedup();
        self.announce(sets.clone());
        for set in sets {
            if !set.is_empty() && self.tried(&set)?.has_room() {
                self.lowered(&set, None)?;
                break;
            }
        }
        Ok(())
    }

    /// Tries higher levels of one technique, for a set that only just fits.
    fn make_room(&mut self) -> Result<(), Missing> {
        let Some(set) = self.chosen().map(|it| self.with_all_free(&it.set)) else { return Ok(()) };
        for (_, more) in self.raised(&set) {
            if self.tried(&more)?.has_room() {
                self.lowered(&more, None)?;
                break;
            }
        }
        Ok(())
    }

    /// Tries variants of this set with more of one technique and less of the other techniques, until a variant is
    /// faster.
    fn traded(&mut self, set: &Set) -> Result<(), Missing> {
        let (own_s, base_s) = (self.tried(set)?.order_s(), self.base()?.order_s());
        for (technique, more) in self.raised(&self.with_all_free(set)) {
            let others = levelled(&more).filter(|it| *it != technique);
            let without = others.fold(more.clone(), |set, it| set.without(it));
            // As the other techniques are lowered, the time approaches the time of `without`, the set without them. If
            // some activations are recomputed, fewer have to be copied.
            if self.tried(&without)?.order_s() >= own_s + SLACK * base_s || !self.tried(&more)?.has_room() {
                continue;
            }
            let better = self.lowered(&more, Some(technique))?;
            if self.tried(&better)?.order_s() < own_s - WORTH * base_s {
                break;
            }
        }
        Ok(())
    }

    /// Checkpoints fewer and fewer blocks, each time with as few copies to the host as possible, as long as the step
    /// gets faster.
    fn exchange(&mut self) -> Result<(), Missing> {
        let (technique, blocks) = (Technique::Offload, self.blocks);
        while let Some(set) = self.dear().filter(|it| it.has(blocks) && self.can_be_more(it, technique)) {
            let Some(fewer) = self.stepped(&set, blocks, -1) else { break };
            let (none, most) = (fewer.without(technique), fewer.with(technique, None));
            if most.conflict().is_some() || !self.tried(&most)?.has_room() {
                break;
            }
            let values = self.values(technique);
            self.fewest(&none, &most, values.len() as u64, |number| {
                none.with(technique, values[number as usize - 1])
            })?;
            if self.chosen().is_some_and(|it| it.set == set) {
                break;
            }
        }
        Ok(())
    }

    fn is_dear(&self, step_s: f64) -> bool {
        step_s > self.seen.first().map_or(0.0, |it| it.order_s()) * (1.0 + WORTH)
    }

    /// Lowers each technique of this set, except the technique `except`, to the lowest level at which the set fits.
    fn lowered(&mut self, set: &Set, except: Option<Technique>) -> Result<Set, Missing> {
        let mut set = set.clone();
        // Dividing the batch into parts is the slowest technique.
        let mut techniques: Vec<Technique> = levelled(&set).filter(|it| Some(*it) != except).collect();
        techniques.reverse();
        for technique in techniques {
            let without = set.without(technique);
            if !without.is_empty() && self.tried(&without)?.has_room() {
                set = without;
                continue;
            }
            let values = self.values(technique);
            let place = values.iter().position(|it| *it == set.value(technique)).unwrap_or(values.len() - 1);
            let part = |number: u64| set.with(technique, values[number as usize - 1]);
            self.fewest(&without, &set, place as u64 + 1, part)?;
            let fitting = values[..place].iter().map(|&value| set.with(technique, value));
            let seen = |it: &Set| self.seen.iter().any(|seen| seen.set == *it && seen.has_room());
            if let Some(fewest) = fitting.into_iter().find(seen) {
                set = fewest;
            }
        }
        Ok(set)
    }
}
