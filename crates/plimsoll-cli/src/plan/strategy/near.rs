//! Sets that differ slightly from another set, by one technique or by the level of a technique. `trade.rs` tries them.

use super::pass::Pass;
use crate::techniques::{Joins, Levels, Numbers, Set, Technique, Time};

/// Techniques with this effort or more are not used to save time.
pub(super) const MOST_EFFORT: u32 = 4;

/// The maximum number of values of a technique to try.
const STEPS: usize = 5;

impl Pass<'_> {
    /// Neighbouring sets that may be faster. Some lower one technique by a level, and may also raise another technique
    /// by a level or add a technique that costs no time. Others remove a technique that has no levels.
    pub(super) fn near(&self, set: &Set) -> Vec<Set> {
        let mut near = Vec::new();
        let free = self.with_all_free(set);
        let is_joining = |it: &Technique| it.row().joins <= Joins::Rounding && it.row().effort < MOST_EFFORT;
        let joining: Vec<Technique> = Technique::all()
            .filter(|it| is_joining(it) && !set.has(*it) && self.can_join(set, *it))
            .collect();
        near.extend(joining.iter().map(|&it| set.with(it, None)));
        for technique in levelled(set) {
            for base in [set, &free] {
                let Some(less) = self.stepped(base, technique, -1) else { continue };
                let others = Technique::all().filter(|it| *it != technique && self.can_be_more(set, *it));
                for (other, more) in others.filter_map(|it| Some((it, self.stepped(&less, it, 1)?))) {
                    // Raising the technique by one level may not be enough to replace the other technique.
                    near.extend(self.stepped(&more, other, 1));
                    near.push(more);
                }
                near.push(less);
                let none = base.without(technique);
                let others = levelled(set).filter(|it| *it != technique);
                near.extend(others.filter_map(|it| self.stepped(&none, it, 1)));
            }
            near.extend(self.instead(set, technique));
            let less = self.stepped(set, technique, -1);
            let with_one = |less: Set| joining.iter().map(|&it| less.with(it, None)).collect::<Vec<_>>();
            near.extend(less.map(with_one).unwrap_or_default());
        }
        for technique in set.techniques().filter(|it| !is_levelled(*it)) {
            let without = set.without(technique);
            let instead = Technique::all().filter(|it| {
                technique.excluded_by(*it).is_some()
                    && it.row().joins <= Joins::Rounding
                    && self.can_join(&without, *it)
            });
            near.extend(instead.map(|it| without.with(it, None)));
            near.push(without);
        }
        near.retain(|it| !it.is_empty() && it.numbers() <= set.numbers() && it.conflict().is_none());
        near
    }

    /// Sets in which this technique is replaced by a technique that excludes it: at the strongest level of the new
    /// technique, and at the same level.
    fn instead(&self, set: &Set, technique: Technique) -> Vec<Set> {
        let without = set.without(technique);
        let others =
            Technique::all().filter(|it| technique.excluded_by(*it).is_some() && self.can_be_more(set, *it));
        let mut instead = Vec::new();
        for other in others {
            instead.push(without.with(other, None));
            if other.row().levels == technique.row().levels {
                instead.push(without.with(other, set.value(technique)));
            }
        }
        instead
    }

    /// A technique one level lower or higher; `None` if there is no such level.
    pub(super) fn stepped(&self, set: &Set, technique: Technique, step: isize) -> Option<Set> {
        let values = self.values(technique);
        if !set.has(technique) {
            return values.first().map(|&value| joined(set, technique, value));
        }
        let place = values.iter().position(|it| *it == set.value(technique))?;
        match place.checked_add_signed(step) {
            Some(place) => values.get(place).map(|&value| set.with(technique, value)),
            None => Some(set.without(technique)),
        }
    }

    /// This set with each of the techniques that take time, at higher and higher levels.
    pub(super) fn raised(&self, set: &Set) -> Vec<(Technique, Set)> {
        let mut raised = Vec::new();
        for technique in Technique::all().filter(|it| self.can_be_more(set, *it)) {
            let values = self.values(technique);
            let own = set.has(technique).then(|| values.iter().position(|it| *it == set.value(technique)));
            let step = values.len().div_ceil(STEPS);
            let first = own.map_or(0, |own| own.map_or(values.len(), |own| own + step));
            let more = values.iter().skip(first).step_by(step).map(|&value| joined(set, technique, value));
            raised.extend(more.map(|set| (technique, set)));
        }
        raised
    }

    /// Whether a technique in a set can have a higher level.
    pub(super) fn can_be_more(&self, set: &Set, technique: Technique) -> bool {
        is_levelled(technique)
            && self.is_useful_kind(technique)
            && technique.row().numbers <= set.numbers()
            && self.is_possible(technique)
            && !self.is_ruled_out(technique)
    }

    /// Whether this program has the blocks that a technique checkpoints; true for techniques that do not
    /// checkpoint blocks.
    fn is_useful_kind(&self, technique: Technique) -> bool {
        technique.row().levels != Levels::Blocks || self.is_useful(technique)
    }

    /// The values of a technique, from the smallest to the largest effect.
    pub(super) fn values(&self, technique: Technique) -> Vec<Option<u64>> {
        match technique.row().levels {
            Levels::Blocks => {
                let blocks = self.seen.iter().filter(|it| it.set.has(technique)).map(|it| it.blocks).max();
                (1..blocks.unwrap_or(1)).map(Some).chain([None]).collect()
            }
            Levels::Multiples(step) => (1..100 / step).map(|it| Some(it * step)).chain([None]).collect(),
            Levels::Upward(values) => values.iter().copied().map(Some).collect(),
            Levels::Default | Levels::Downward(_) => vec![None],
        }
    }

    /// This set with every technique that costs no time and changes the numbers no more than the set does.
    pub(super) fn with_all_free(&self, set: &Set) -> Set {
        let joins = if set.numbers() == Numbers::Identical { Joins::Free } else { Joins::Rounding };
        let joining = |it: &Technique| {
            it.row().joins <= joins && it.row().effort < MOST_EFFORT && it.row().time == Time::Same
        };
        Technique::all().rev().filter(joining).fold(set.clone(), |set, it| {
            if !set.has(it) && self.can_join(&set, it) { set.with(it, None) } else { set }
        })
    }

    /// Whether a technique may save memory in addition to the techniques of a set.
    pub(super) fn can_join(&self, set: &Set, technique: Technique) -> bool {
        let is_free =
            |own: Technique| own.excluded_by(technique).is_none() && !own.row().replaces.contains(&technique);
        self.is_possible(technique) && !self.is_ruled_out(technique) && set.techniques().all(is_free)
    }
}

/// This set with a technique, without the techniques that it excludes.
fn joined(set: &Set, technique: Technique, value: Option<u64>) -> Set {
    set.only(|it| it.excluded_by(technique).is_none()).with(technique, value)
}

/// The techniques in a set that can have a lower level.
pub(super) fn levelled(set: &Set) -> impl Iterator<Item = Technique> {
    set.techniques().filter(|it| is_levelled(*it))
}

fn is_levelled(technique: Technique) -> bool {
    let row = technique.row();
    let has_levels = matches!(row.levels, Levels::Blocks | Levels::Multiples(_) | Levels::Upward(_));
    has_levels || row.time == Time::StepCopies
}
