//! The end of a search for the least memory or the fastest step: adds single techniques to the best set, or removes
//! them, as long as the set gets better. A technique may have no effect alone: expandable segments, for example, may
//! save nothing until other techniques free memory.

use super::super::facts::Fact;
use super::pass::{Missing, Pass};
use crate::techniques::{Levels, Set, Technique, Value};

/// The maximum number of rounds. Each round tries about ten sets.
const ROUNDS: usize = 3;

impl Pass<'_> {
    /// Adds expandable segments to the set with the least memory, if its live bytes would fit. Expandable segments may
    /// save nothing alone, but may save memory when activations are no longer kept.
    pub(super) fn close_gaps(&mut self) -> Result<(), Missing> {
        let facts = self.facts;
        let would_fit = |it: &&&Fact| {
            it.set.numbers() <= facts.wish.numbers
                && it.is_effective()
                && it.allocated_bytes <= facts.limits.capacity_bytes
        };
        let least = self.seen.iter().filter(would_fit).min_by_key(|it| it.reserved_bytes);
        let Some(set) = least.map(|it| it.set.with(Technique::Expandable, None)) else { return Ok(()) };
        if !self.is_met() {
            self.tried(&set)?;
        }
        Ok(())
    }

    /// Changes the best set until no single change makes it better.
    pub(super) fn polish(&mut self) -> Result<(), Missing> {
        for _ in 0..ROUNDS {
            let Some(best) = self.chosen().map(|it| it.set.clone()) else { return Ok(()) };
            let neighbours = self.neighbours(&best);
            self.announce(neighbours.clone());
            for set in neighbours {
                self.tried(&set)?;
            }
            if self.chosen().is_none_or(|it| it.set == best) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The sets that differ from this one in one technique, or in the value of one technique.
    fn neighbours(&self, best: &Set) -> Vec<Set> {
        let mut found = Vec::new();
        for technique in Technique::all().filter(|it| it.row().numbers <= self.facts.wish.numbers) {
            if best.has(technique) {
                found.push(best.without(technique));
                found.extend(self.other_value(best, technique));
            } else if (self.goal().is_memory() || technique.row().is_for_speed) && self.is_possible(technique)
            {
                let value = match technique.row().levels {
                    Levels::Upward(values) => values.first().copied(),
                    _ => None,
                };
                found.push(best.with(technique, value));
            }
        }
        found.retain(|set| set.conflict().is_none() && !set.is_empty());
        found
    }

    /// To use less memory, the batch is divided into more parts. To take less time, fewer blocks are
    /// checkpointed, and fewer bytes are moved to the host.
    fn other_value(&self, best: &Set, technique: Technique) -> Option<Set> {
        let is_memory = self.goal().is_memory();
        let (row, value) = (technique.row(), best.value(technique));
        let value = match (row.levels, value) {
            (Levels::Upward(values), Some(value)) if is_memory => *values.iter().find(|&&it| it > value)?,
            (Levels::Upward(values), Some(value)) => *values.iter().rev().find(|&&it| it < value)?,
            (Levels::Blocks, Some(blocks)) if blocks > 1 => blocks - 1,
            (Levels::Multiples(_), None) if is_memory => 100,
            (Levels::Multiples(step), percent) if !is_memory => {
                let Value::Percent { default } = row.value else { return None };
                match percent.unwrap_or(default) {
                    percent if percent > step => (percent - 1) / step * step,
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(best.with(technique, Some(value)))
    }
}
