//! Estimates sets that have not run from sets that have run: [`Estimates`]. The estimates only decide what runs next:
//! no row of a report is an estimate.
//!
//! Between no checkpointed blocks and all of them, a peak is roughly linear in their number, and it is also roughly
//! linear in the share of the saved bytes that is offloaded. With two such techniques, a peak is linear in each of them
//! (bilinear), because what is recomputed is not offloaded. A technique that does not touch activations, such as
//! `offload-optimizer`, saves about as many bytes in one set as in another. An estimate is thus a weighted sum of known
//! sets: a [`Mix`].
//!
//! Each run of a set that could be estimated checks the estimate. If the two differ by more than 1 %, sets with these
//! techniques are no longer estimated.

use std::collections::BTreeMap;

use super::facts::{Fact, Ran};
use crate::techniques::{Levels, Set, Technique, Time, Value};

/// The largest difference between an estimate and a run, as a share of the run.
const TRUSTED: f64 = 0.01;

/// A weighted sum of known sets, by their indices. The weights add up to 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mix(BTreeMap<usize, f64>);

/// What can be estimated from the sets that have run.
pub(super) struct Estimates<'a> {
    known: &'a [Fact],
    /// Groups of techniques for which an estimate was wrong in this program.
    untrusted: Vec<Vec<Technique>>,
}

/// What an estimate may assume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    /// Only interpolation between the levels of a technique.
    Linear,
    /// In addition, the assumption that a technique saves the same bytes in every set.
    Rough,
}

impl Mix {
    fn of(index: usize) -> Mix {
        Mix(BTreeMap::from([(index, 1.0)]))
    }

    /// A weighted sum of mixes.
    fn sum<const N: usize>(parts: [(&Mix, f64); N]) -> Mix {
        let mut all = BTreeMap::new();
        for (mix, weight) in parts {
            for (&index, own) in &mix.0 {
                *all.entry(index).or_insert(0.0) += own * weight;
            }
        }
        Mix(all)
    }

    /// The weighted sum of a quantity of the known sets, such as their peaks.
    pub(super) fn apply(&self, quantity: impl Fn(usize) -> u64) -> u64 {
        let sum: f64 = self.0.iter().map(|(&index, weight)| weight * quantity(index) as f64).sum();
        sum.max(0.0).round() as u64
    }
}

impl<'a> Estimates<'a> {
    /// Estimates from these sets, in the order in which they ran.
    pub(super) fn of(known: &'a [Fact]) -> Estimates<'a> {
        let mut untrusted = Vec::new();
        for (place, fact) in known.iter().enumerate() {
            let before = Estimates { known: &known[..place], untrusted: Vec::new() };
            let Some(Ok(mix)) = fact.is_effective().then(|| before.mix(&fact.set)) else { continue };
            let is_off = |of: fn(&Fact) -> u64| {
                let estimate = mix.apply(|index| of(&known[index]));
                of(fact).abs_diff(estimate) as f64 > TRUSTED * of(fact) as f64
            };
            if is_off(|it| it.reserved_bytes) || is_off(|it| it.allocated_bytes) {
                untrusted.push(fact.set.techniques().collect());
            }
        }
        Estimates { known, untrusted }
    }

    /// The estimate of a set that has not run.
    ///
    /// # Errors The set that has to run first: this set, or another set that the estimate needs.
    pub(super) fn mix(&self, set: &Set) -> Result<Mix, Set> {
        let is_untrusted = |them: &Vec<Technique>| them.iter().all(|it| set.has(*it));
        if self.untrusted.iter().any(is_untrusted) {
            return Err(set.clone());
        }
        let weights = self.weights(set, Precision::Linear);
        weights.map_err(|first| if self.is_known(&first) { set.clone() } else { first })
    }

    /// A rough estimate, to find out whether a set can be ruled out.
    pub(super) fn rough(&self, set: &Set) -> Option<Mix> {
        self.weights(set, Precision::Rough).ok()
    }

    fn is_known(&self, set: &Set) -> bool {
        self.known.iter().any(|it| it.set == *set)
    }

    fn weights(&self, set: &Set, precision: Precision) -> Result<Mix, Set> {
        if let Some(index) = self.known.iter().position(|it| it.set == *set) {
            // Techniques without an effect are no basis for an estimate.
            let is_basis = self.known[index].run == Ran::Well;
            return if is_basis { Ok(Mix::of(index)) } else { Err(set.clone()) };
        }
        let is_partial = |it: &Technique| self.place(*it, set.value(*it)).is_some_and(|place| place < 1.0);
        // If several techniques have levels, uses the technique for which the most sets have run.
        let along = set.techniques().filter(is_partial).max_by_key(|it| self.along(set, *it).count());
        match (along, precision) {
            (Some(technique), _) => self.between(set, technique, precision),
            (None, Precision::Linear) => Err(set.clone()),
            (None, Precision::Rough) => self.composed(set),
        }
    }

    /// An estimate by interpolation between two sets that differ from this set only in the level of a technique.
    fn between(&self, set: &Set, technique: Technique, precision: Precision) -> Result<Mix, Set> {
        let Some(own) = self.place(technique, set.value(technique)) else { return Err(set.clone()) };
        let (mut below, mut above) = ((0.0, None), (1.0, None));
        for (place, index) in self.along(set, technique) {
            if place <= own && place >= below.0 {
                below = (place, Some(Mix::of(index)));
            }
            if place >= own && place <= above.0 {
                above = (place, Some(Mix::of(index)));
            }
        }
        let or = |mix: Option<Mix>, end: Set| mix.map_or_else(|| self.weights(&end, precision), Ok);
        let more = or(above.1, set.with(technique, None))?;
        let less = or(below.1, set.without(technique))?;
        let share = if above.0 > below.0 { (own - below.0) / (above.0 - below.0) } else { 0.0 };
        Ok(Mix::sum([(&less, 1.0 - share), (&more, share)]))
    }

    /// The level and index of each set that has run and differs from this set only in the level of a technique.
    fn along(&self, set: &Set, technique: Technique) -> impl Iterator<Item = (f64, usize)> {
        let rest = set.without(technique);
        let known = self.known.iter().enumerate().filter(|(_, it)| it.run == Ran::Well);
        known.filter_map(move |(index, it)| {
            let is_along = it.set.has(technique) && it.set.without(technique) == rest;
            let place = is_along.then(|| self.place(technique, it.set.value(technique)))??;
            Some((place, index))
        })
    }

    /// The mix for a set with a technique that saves about the same bytes in each set: the set without the
    /// technique, minus those bytes.
    fn composed(&self, set: &Set) -> Result<Mix, Set> {
        for technique in set.techniques().filter(|it| is_constant(*it)) {
            let rest = set.without(technique);
            let pairs = self.known.iter().enumerate().filter_map(|(index, with)| {
                let without = with.set.without(technique);
                let is_part = with.set.has(technique)
                    && without.entries().iter().all(|entry| rest.entries().contains(entry));
                let other = self.known.iter().position(|it| it.set == without)?;
                let are_bases = [index, other].iter().all(|&it| self.known[it].run == Ran::Well);
                (is_part && are_bases).then_some((other, index))
            });
            let nearest = pairs.max_by_key(|&(other, _)| self.known[other].set.entries().len());
            if let (Some((without, with)), Ok(rest)) = (nearest, self.weights(&rest, Precision::Rough)) {
                return Ok(Mix::sum([(&rest, 1.0), (&Mix::of(with), 1.0), (&Mix::of(without), -1.0)]));
            }
        }
        Err(set.clone())
    }

    /// The level of a technique: 0 without it, 1 at its strongest. `None` if peaks are not linear in it.
    fn place(&self, technique: Technique, value: Option<u64>) -> Option<f64> {
        let row = technique.row();
        let most = match (row.levels, row.value) {
            (Levels::Blocks, _) => {
                let known = self.known.iter().filter(|it| it.set.has(technique));
                known.map(|it| it.blocks).max().filter(|blocks| *blocks > 0)?
            }
            (Levels::Multiples(_), Value::Percent { default }) => default,
            _ => return None,
        };
        let value = value.unwrap_or(most);
        (value <= most).then(|| value as f64 / most as f64)
    }
}

/// Whether a technique saves about the same bytes no matter what other techniques do to the activations. The savings of
/// expandable segments depend on what is freed.
fn is_constant(technique: Technique) -> bool {
    let row = technique.row();
    technique != Technique::Expandable
        && row.levels == Levels::Default
        && matches!(row.time, Time::Same | Time::StepCopies)
}

#[cfg(test)]
mod tests {
    use super::super::fit::Fit;
    use super::*;

    fn set(text: &str) -> Set {
        if text.is_empty() { Set::default() } else { Set::parse(text).unwrap() }
    }

    fn fact(text: &str, bytes: u64) -> Fact {
        Fact {
            set: set(text),
            fit: Fit::Room(0),
            run: Ran::Well,
            is_caught: false,
            allocated_bytes: bytes,
            reserved_bytes: bytes,
            step_s: Some(1.0),
            blocks: if text.contains("checkpoint") { 10 } else { 0 },
        }
    }

    fn estimate(known: &[Fact], text: &str) -> Result<u64, String> {
        let mix = Estimates::of(known).mix(&set(text)).map_err(|first| first.to_string())?;
        Ok(mix.apply(|index| known[index].reserved_bytes))
    }

    #[test]
    fn peaks_are_linear_in_each_level_and_roughly_savings_of_some_techniques_add_up() {
        let mut known = vec![
            fact("", 1000),
            fact("checkpoint", 400),
            fact("offload", 300),
            fact("offload-optimizer", 900),
        ];
        for (text, expected) in [
            ("checkpoint=3", Ok(820)),
            ("checkpoint=9", Ok(460)),
            ("offload=57", Ok(580)),
            ("offload-optimizer,checkpoint", Err("offload-optimizer,checkpoint".to_owned())),
            ("offload-optimizer,checkpoint=5", Err("offload-optimizer,checkpoint".to_owned())),
            // Activations that are recomputed are not offloaded.
            ("checkpoint=5,offload=57", Err("checkpoint,offload".to_owned())),
            ("checkpoint,offload", Err("checkpoint,offload".to_owned())),
            ("split=2", Err("split=2".to_owned())),
            ("offload=100", Err("offload=100".to_owned())),
        ] {
            assert_eq!(
                estimate(&known, text).map_err(|it| set(&it)),
                expected.map_err(|it| set(&it)),
                "{text}"
            );
        }
        let rough = |text| {
            Estimates::of(&known).rough(&set(text)).map(|mix| mix.apply(|it| known[it].reserved_bytes))
        };
        assert_eq!(rough("offload-optimizer,checkpoint=5"), Some(600));
        assert_eq!(rough("split=2"), None);
        known.push(fact("checkpoint,offload", 280));
        // 40 % of 700 plus 60 % of 290.
        assert_eq!(estimate(&known, "checkpoint=5,offload=57"), Ok(454));
        // A run between the two ends gives a closer estimate.
        known.push(fact("checkpoint=4", 763));
        assert_eq!(estimate(&known, "checkpoint=3"), Ok(822));
    }

    #[test]
    fn after_a_run_that_differs_by_more_than_a_hundredth_its_techniques_run_for_each_set() {
        let mut known = vec![fact("", 1000), fact("offload", 300), fact("checkpoint", 400)];
        known.push(fact("offload=57", 585));
        assert_eq!(estimate(&known, "offload=38"), Ok(723));
        known[3] = fact("offload=57", 590);
        assert_eq!(estimate(&known, "offload=38"), Err("offload=38".to_owned()));
        assert_eq!(estimate(&known, "checkpoint=5"), Ok(700));
        // A technique without an effect says nothing about other techniques.
        known[2].run = Ran::Idle(vec![Technique::Checkpoint]);
        assert_eq!(estimate(&known, "checkpoint=5"), Err("checkpoint=5".to_owned()));
    }
}
