//! The end of a search for the least memory or the fastest step: adds single techniques to the best set, or removes
//! them, as long as that makes it better. A technique may have no effect alone, such as expandable segments while
//! nothing else is freed.

use super::candidate::Candidate;
use super::search::{OFFLOAD_STEP, PARTS, Search};
use crate::exit::Failure;
use crate::techniques::{Set, TECHNIQUES, Value};

/// The most rounds: each tries about ten sets.
const ROUNDS: usize = 3;

/// Techniques that may make a step faster, and techniques that cost no time and free memory, so that less
/// is recomputed.
const FAST: [&str; 4] = ["expandable", "free-grads", "fused", "bf16"];

/// The percentage of `offload` without a value.
const OFFLOAD: u64 = 95;

impl Search<'_, '_> {
    /// Adds expandable segments to the set with the least memory, if its live bytes would fit. They may
    /// save nothing alone, but something once activations are gone.
    pub(super) fn close_gaps(&mut self) -> Result<(), Failure> {
        let capacity = self.target.capacity_bytes();
        let would_fit = |it: &&Candidate| it.is_effective() && it.trial.allocated_bytes <= capacity;
        let candidates = self.candidates.iter().filter(|it| it.set.numbers() <= self.wish.numbers);
        let least = candidates.filter(would_fit).min_by_key(|it| it.trial.reserved_bytes);
        let Some(set) = least.map(|it| it.set.with("expandable", None)) else { return Ok(()) };
        if !self.is_met() {
            self.tried(&set)?;
        }
        Ok(())
    }

    /// Changes the best set until no single change makes it better.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn polish(&mut self) -> Result<(), Failure> {
        for _ in 0..ROUNDS {
            let Some(best) = self.chosen().map(|it| it.set.clone()) else { return Ok(()) };
            let neighbours = self.neighbours(&best);
            self.ahead(neighbours.clone())?;
            for set in neighbours {
                if self.is_interrupted {
                    return Ok(());
                }
                self.tried(&set)?;
            }
            if self.chosen().is_none_or(|it| it.set == best) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The sets that differ from this one in one technique, or in its value.
    fn neighbours(&self, best: &Set) -> Vec<Set> {
        let mut found = Vec::new();
        for technique in TECHNIQUES.iter().filter(|it| it.numbers <= self.wish.numbers) {
            let name = technique.name;
            if best.has(name) {
                found.push(best.without(name));
                found.extend(self.other_value(best, name));
            } else if (self.wish.goal.is_memory() || FAST.contains(&name)) && self.is_possible(name) {
                found.push(best.with(name, (technique.value == Value::Parts).then_some(PARTS[0])));
            }
        }
        found.retain(|set| set.conflict().is_none() && !set.is_empty());
        found
    }

    /// For less memory: more parts of the batch. For less time: fewer checkpointed blocks, and fewer bytes
    /// on the host.
    fn other_value(&self, best: &Set, name: &'static str) -> Option<Set> {
        let is_memory = self.wish.goal.is_memory();
        let value = match (name, best.value(name)) {
            ("accumulate" | "split", Some(parts)) if is_memory && parts < PARTS[3] => parts * 2,
            ("accumulate" | "split", Some(parts)) if !is_memory && parts > 2 => parts / 2,
            ("checkpoint" | "checkpoint-nested", Some(blocks)) if blocks > 1 => blocks - 1,
            ("offload", None) if is_memory => 100,
            ("offload", percent) if !is_memory => match percent.unwrap_or(OFFLOAD) {
                percent if percent > OFFLOAD_STEP => (percent - 1) / OFFLOAD_STEP * OFFLOAD_STEP,
                _ => return None,
            },
            _ => return None,
        };
        Some(best.with(name, Some(value)))
    }

    /// Whether the program can run with this technique; true if unknown. Some techniques are only for
    /// programs that compile, some for those that do not.
    fn is_possible(&self, name: &'static str) -> bool {
        let compiles = self.candidates.first().is_some_and(|it| it.trial.compiles);
        if matches!((name, compiles), ("memory-budget" | "no-compile", false) | ("compile", true)) {
            return false;
        }
        let alone = self.candidates.iter().find(|it| it.set.names().eq([name]));
        alone.is_none_or(|it| it.is_effective())
    }
}
