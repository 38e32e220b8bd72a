//! The steps of a search: what to add to a set ([`Pass::level`]), and the smallest number of blocks, bytes or parts
//! with which a set fits.

use super::super::goal::Goal;
use super::pass::{Missing, Pass};
use crate::techniques::{Alone, Levels, Set, Technique};

/// With fewer checkpointed blocks than this, checkpointing segments of blocks keeps about as much memory as
/// checkpointing each block.
const SEGMENTED: u64 = 9;

/// If a program needs more than this multiple of the GPU's memory, only the smallest memory budget can be enough.
const FAR: f64 = 1.15;

impl Pass<'_> {
    /// Tries the techniques for a program that compiles its training step. Expandable segments reuse the first
    /// trial's compiled code from the caches. Each smaller percentage of activations has to be compiled again.
    /// Returns whether the search is over.
    pub(super) fn budgets(&mut self) -> Result<bool, Missing> {
        let expandable = Set::default().with(Technique::Expandable, None);
        let budget = |percent| Set::default().with(Technique::MemoryBudget, Some(percent));
        // Two trials that compile concurrently take twice as long each, which would delay the first answer.
        let is_fit = self.goal() == Goal::Fit;
        // Perhaps only the smallest budget is enough. If even that is not, there is no need to compile the model with
        // the other budgets.
        let smallest = budgets().last().filter(|_| is_fit && self.is_far());
        self.announce([expandable.clone(), budget(*smallest.unwrap_or(&budgets()[0]))]);
        let tried = self.tried(&expandable)?;
        if is_fit && tried.has_room() {
            return Ok(true);
        }
        if let Some(&percent) = smallest
            && !self.tried(&budget(percent))?.has_room()
        {
            return Ok(false);
        }
        for &percent in budgets() {
            let tried = self.tried(&budget(percent))?;
            if is_fit && tried.has_room() {
                return Ok(true);
            }
            if !tried.is_effective() {
                break;
            }
        }
        Ok(is_fit && self.has_room())
    }

    /// Whether the unchanged program needs far more than the GPU has.
    fn is_far(&self) -> bool {
        let needed = self.seen.first().map_or(0, |base| base.reserved_bytes);
        needed as f64 > FAR * self.facts.limits.roomy_bytes as f64
    }

    /// Compiles the model so that it keeps the fewest activations and, if this fits, also so that it keeps more. Each
    /// trial takes about a minute, so this technique comes last.
    pub(super) fn compiled(&mut self, set: &Set) -> Result<(), Missing> {
        for &percent in budgets().iter().rev() {
            if !self.tried(&set.with(Technique::Compile, Some(percent)))?.has_room() {
                break;
            }
        }
        Ok(())
    }

    /// Turns off the program's own torch.compile, because some techniques do not work on a compiled model.
    pub(super) fn eager(&mut self, set: &Set) -> Result<(), Missing> {
        let eager = Set::default().with(Technique::NoCompile, None);
        // Some techniques may have had no effect while the program compiled.
        let acts_inside =
            |it: &Technique| it.row().alone == Alone::Always && it.excluded_by(Technique::Compile).is_some();
        let inside: Vec<Technique> = Technique::all().filter(acts_inside).collect();
        self.announce([eager.clone()].into_iter().chain(inside.iter().map(|&it| eager.with(it, None))));
        let own = self.tried(&eager)?;
        let mut useful = Vec::new();
        for &technique in &inside {
            let one = self.tried(&eager.with(technique, None))?;
            if one.is_effective() && (!own.has_peaks() || one.saves_beside(own)) {
                useful.push(technique);
            }
        }
        let mut set = set.only(|it| !inside.contains(&it));
        set = set.with(Technique::NoCompile, None).with(Technique::Expandable, None);
        if useful.contains(&Technique::ChunkedLoss) {
            set = set.with(Technique::ChunkedLoss, None);
        }
        let (checkpoint, offload) = (Technique::Checkpoint, Technique::Offload);
        self.level(&set, useful.contains(&checkpoint), useful.contains(&offload), false)
    }

    /// Tries this set, then adds checkpointing, the batch in parts, and offloading, as far as the flags allow.
    /// Offloading is also tried on the set alone. Stops when a set fits with enough headroom, unless the goal is the
    /// least memory.
    pub(super) fn level(
        &mut self,
        set: &Set,
        checkpoint: bool,
        offload: bool,
        parts: bool,
    ) -> Result<(), Missing> {
        self.announce([set.clone()].into_iter().chain(checkpoint.then(|| set.with(self.blocks, None))));
        let own = self.tried(set)?;
        let is_enough = !set.is_empty() && own.has_room() && !self.goal().is_memory();
        if is_enough || !own.has_peaks() {
            return Ok(());
        }
        let mut least = set.clone();
        if checkpoint {
            least = set.with(self.blocks, None);
            if self.tried(&least)?.has_room() && !self.goal().is_memory() {
                return self.fewest_blocks(set);
            }
            if let Some(segments) = self.segments(set, &least)? {
                least = segments;
                if self.has_room() && !self.goal().is_memory() {
                    return Ok(());
                }
            }
        }
        if parts {
            for name in [Technique::Accumulate, Technique::Split] {
                if !self.is_ruled_out(name) && self.parts(&without_conflict(&least, name), name)? {
                    break;
                }
            }
        }
        // Without other techniques, offloading may fit only if cached memory is released.
        for base in [set, &least].into_iter().filter(|_| offload) {
            if self.goal().is_memory() || !self.has_room() {
                self.least_offload(base)?;
            }
        }
        Ok(())
    }

    /// This set with checkpointed segments of blocks, if it needs less memory than `each`, the set that checkpoints
    /// each block.
    fn segments(&mut self, set: &Set, each: &Set) -> Result<Option<Set>, Missing> {
        let technique = Technique::CheckpointSegments;
        let has_failed = self.seen.iter().any(|it| it.set.has(technique) && !it.is_effective());
        if self.blocks != Technique::Checkpoint || has_failed {
            return Ok(None);
        }
        let each = self.tried(each)?;
        let segments = set.with(technique, None);
        if each.blocks < SEGMENTED || segments.conflict().is_some() {
            return Ok(None);
        }
        Ok(self.tried(&segments)?.saves_beside(each).then_some(segments))
    }

    /// Tries this set with the batch in more and more parts, until it fits. Returns whether the technique
    /// has an effect.
    pub(super) fn parts(&mut self, set: &Set, technique: Technique) -> Result<bool, Missing> {
        let Levels::Upward(numbers) = technique.row().levels else { return Ok(false) };
        for &number in numbers {
            let tried = self.tried(&set.with(technique, Some(number)))?;
            if number == numbers[0] && !tried.is_effective() {
                return Ok(false);
            }
            let fits = tried.fit.fits() && !self.goal().is_memory();
            if fits || !tried.is_effective() {
                break;
            }
        }
        Ok(true)
    }

    /// Tries this set with saved tensors on the host, and finds the smallest percentage at which it fits.
    pub(super) fn least_offload(&mut self, set: &Set) -> Result<(), Missing> {
        let Levels::Multiples(step) = Technique::Offload.row().levels else { return Ok(()) };
        let most = set.with(Technique::Offload, None);
        if !self.tried(&most)?.has_room() || self.goal().is_memory() {
            return Ok(());
        }
        self.fewest(set, &most, 100 / step, |number| set.with(Technique::Offload, Some(number * step)))
    }

    /// The smallest number of checkpointed blocks at which this set fits. The set is known to fit with all blocks
    /// checkpointed.
    pub(super) fn fewest_blocks(&mut self, set: &Set) -> Result<(), Missing> {
        let technique = self.blocks;
        let all = set.with(technique, None);
        let blocks = self.tried(&all)?.blocks;
        self.fewest(set, &all, blocks, |number| set.with(technique, Some(number)))
    }

    /// Finds the smallest number of parts, out of `of`, to which a technique must be applied so that this set fits.
    /// `all`, the set that applies the technique to all parts, is known to fit.
    pub(super) fn fewest(
        &mut self,
        set: &Set,
        all: &Set,
        of: u64,
        part: impl Fn(u64) -> Set,
    ) -> Result<(), Missing> {
        if of < 2 {
            return Ok(());
        }
        // Without the technique, the set may take less memory than the unchanged program, or may not run.
        let none = Some(self.tried(set)?).filter(|it| it.has_peaks());
        let none_bytes = none.unwrap_or(self.base()?).reserved_bytes;
        let all_bytes = self.tried(all)?.reserved_bytes;
        let mut number = solved(none_bytes, all_bytes, of, self.facts.limits.roomy_bytes).min(of - 1);
        // Savings are roughly linear, so this tries the estimate first, then its neighbour, and then bisects.
        let (mut too_few, mut enough, mut is_first) = (0, of, true);
        let near = [number, number - 1, number + 1].into_iter().filter(|it| (1..of).contains(it));
        self.announce(near.map(&part));
        while (too_few + 1..enough).contains(&number) {
            if self.tried(&part(number))?.has_room() {
                enough = number;
            } else {
                too_few = number;
            }
            number = match (is_first, enough == number) {
                (true, true) => number - 1,
                (true, false) => number + 1,
                (false, _) => too_few.midpoint(enough),
            };
            is_first = false;
        }
        Ok(())
    }

    /// Removes techniques that the chosen set does not need, starting with those that change the program most.
    pub(super) fn simplify(&mut self) -> Result<(), Missing> {
        let Some(mut set) = self.chosen().map(|it| it.set.clone()) else { return Ok(()) };
        // The number of checkpointed blocks is already the smallest.
        let mut techniques: Vec<Technique> =
            set.techniques().filter(|it| it.row().levels != Levels::Blocks).collect();
        techniques.sort_by_key(|it| std::cmp::Reverse(it.row().effort));
        self.announce(techniques.iter().map(|&it| set.without(it)));
        for technique in techniques {
            let fewer = set.without(technique);
            if fewer.is_empty() {
                continue;
            }
            let tried = self.tried(&fewer)?;
            if tried.has_room() {
                set = fewer;
            }
        }
        Ok(())
    }
}

/// Percentages of activations that a compiled model keeps, in the order of their trials.
pub(super) fn budgets() -> &'static [u64] {
    match Technique::MemoryBudget.row().levels {
        Levels::Downward(percentages) => percentages,
        _ => &[],
    }
}

/// This set without the techniques that cannot be combined with `technique`.
fn without_conflict(set: &Set, technique: Technique) -> Set {
    set.only(|it| it.excluded_by(technique).is_none())
}

/// The number of checkpointed blocks with which the peak is about equal to the capacity, if all blocks save the same
/// amount.
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
