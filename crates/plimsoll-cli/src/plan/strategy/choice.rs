//! The best of the sets that were tried: [`of`].

use super::super::facts::Fact;
use super::super::fit::Limits;
use super::super::goal::{Goal, Wish};
use crate::techniques::Numbers;

/// If the best set only just fits, a set that leaves more room is chosen instead if it takes at most this multiple of
/// the time, even if this set changes the numbers more.
const SAME_TIME: f64 = 1.02;

/// The best set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) best: &'a Fact,
    /// The best set, if it was not chosen because it only just fits: the chosen set leaves more room and takes about
    /// the same time.
    pub(super) instead_of: Option<&'a Fact>,
}

/// The best set that fits. Sets are compared by these criteria in order: no failed request, the least change to the
/// numbers, enough headroom, the shortest step (to 1 %), the least change to the program. If the best set only just
/// fits, a set that leaves more room and takes about the same time is chosen instead, even if this set rounds
/// differently. For the goal of the largest batch, the best set is the one with the least memory, because these trials
/// do not run with the largest batch.
pub(super) fn of<'a>(tried: &[&'a Fact], wish: Wish, limits: Limits) -> Option<Choice<'a>> {
    let base_s = tried.first().map_or(0.0, |it| it.order_s()).max(f64::MIN_POSITIVE);
    let is_option = |it: &Fact| {
        it.set.numbers() <= wish.numbers && (it.fit.fits() || wish.goal == Goal::Batch) && it.is_effective()
    };
    let options: Vec<&Fact> = tried.iter().copied().filter(|it| is_option(it)).collect();
    let best = |options: &[&'a Fact]| {
        let order = |a: &&&Fact, b: &&&Fact| {
            let key = |it: &Fact| {
                let numbers = if wish.goal == Goal::Fit { it.set.numbers() } else { Numbers::Identical };
                let bytes = if wish.goal.is_memory() { it.reserved_bytes } else { 0 };
                (it.is_caught, numbers, bytes, it.fit.is_tight(), limits.is_close(it.reserved_bytes))
            };
            let hundredths = |it: &Fact| (it.order_s() / base_s * 100.0).round();
            key(a)
                .cmp(&key(b))
                .then_with(|| hundredths(a).total_cmp(&hundredths(b)))
                .then_with(|| a.set.effort().cmp(&b.set.effort()))
        };
        options.iter().min_by(order).copied()
    };
    let first = best(&options)?;
    let has_room = |it: &Fact| {
        it.has_room() && it.step_s.zip(first.step_s).is_some_and(|(own, first)| own <= first * SAME_TIME)
    };
    let roomy: Vec<&Fact> = options.iter().copied().filter(|it| has_room(it)).collect();
    let is_at_the_limit = wish.goal == Goal::Fit && !first.has_room() && !first.is_caught;
    Some(match best(&roomy).filter(|_| is_at_the_limit) {
        Some(roomy) => Choice { best: roomy, instead_of: Some(first) },
        None => Choice { best: first, instead_of: None },
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Ran;
    use super::*;
    use crate::techniques::Set;

    const LIMITS: Limits = Limits { capacity_bytes: 100, roomy_bytes: 98 };

    fn fact(set: &str, reserved_bytes: u64, step_s: impl Into<Option<f64>>) -> Fact {
        let is_over = reserved_bytes > LIMITS.capacity_bytes;
        Fact {
            set: if set.is_empty() { Set::default() } else { Set::parse(set).unwrap() },
            fit: if is_over { LIMITS.tight(98) } else { LIMITS.fit(reserved_bytes) },
            run: Ran::Well,
            is_caught: false,
            allocated_bytes: reserved_bytes,
            reserved_bytes: if is_over { 98 } else { reserved_bytes },
            step_s: step_s.into(),
            blocks: 0,
        }
    }

    /// The chosen set, and the best set if that was not chosen.
    fn chosen(goal: Goal, numbers: Numbers, tried: &[Fact]) -> (String, Option<String>) {
        let tried: Vec<&Fact> = tried.iter().collect();
        let choice = of(&tried, Wish { goal, numbers }, LIMITS).unwrap();
        (choice.best.set.to_string(), choice.instead_of.map(|it| it.set.to_string()))
    }

    #[test]
    fn a_set_with_room_is_preferred_if_it_takes_at_most_two_percent_more_than_a_tight_one() {
        let tight = fact("offload", 110, 1.0);
        let close = fact("offload=90", 99, 1.0);
        for at_the_limit in [tight, close] {
            let with = |set, step_s: Option<f64>| [at_the_limit.clone(), fact(set, 80, step_s)];
            let (name, fit) =
                (at_the_limit.set.to_string(), |tried: &[Fact]| chosen(Goal::Fit, Numbers::Rounding, tried));
            assert_eq!(fit(&with("fused", Some(1.02))), ("fused".to_owned(), Some(name.clone())));
            assert_eq!(fit(&with("fused", Some(0.5))), ("fused".to_owned(), Some(name.clone())));
            assert_eq!(fit(&with("fused", Some(1.03))), (name.clone(), None));
            // An unknown time does not count as about the same, and a set that is not allowed cannot be chosen.
            assert_eq!(fit(&with("fused", None)), (name.clone(), None));
            assert_eq!(fit(&with("bf16", Some(0.5))), (name.clone(), None));
            // Among sets that keep the numbers, the one with room comes first, regardless of its time.
            assert_eq!(fit(&with("checkpoint", Some(3.0))), ("checkpoint".to_owned(), None));
        }
    }

    #[test]
    fn the_numbers_come_first_then_time_to_a_hundredth_then_the_change_to_the_program() {
        let fit = |tried: &[Fact]| chosen(Goal::Fit, Numbers::Changed, tried).0;
        assert_eq!(fit(&[fact("fused", 50, 1.0), fact("checkpoint", 90, 1.5)]), "checkpoint");
        assert_eq!(fit(&[fact("checkpoint", 50, 1.5), fact("offload", 90, 1.2)]), "offload");
        assert_eq!(fit(&[fact("checkpoint", 90, 1.003), fact("expandable", 90, 1.0)]), "expandable");
        assert_eq!(
            chosen(Goal::Speed, Numbers::Rounding, &[fact("fused", 50, 0.9), fact("", 90, 1.0)]).0,
            "fused"
        );
        assert_eq!(
            chosen(Goal::Memory, Numbers::Rounding, &[fact("", 90, 1.0), fact("fused", 50, 2.0)]).0,
            "fused"
        );
    }
}
