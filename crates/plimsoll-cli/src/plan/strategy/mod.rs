//! Decides which sets to try, in which order, and which one to choose: [`next`], a function of the known facts. It does
//! no I/O, so a test can run thousands of searches (`worlds.rs`).
//!
//! The search is written as if each set's result were already known (`order.rs`). A [`Pass`] runs it from the beginning
//! with the known results and ends at the first set whose result is missing. This set is tried, and the next pass gets
//! further.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `choice.rs` | chooses the best of several sets |
//! | `pass.rs` | one pass through the search |
//! | `levels.rs` | what is tried on top of a set, and how few blocks, bytes or parts are enough |
//! | `polish.rs` | the end of a search for the least memory or the fastest step |
//! | `near.rs`, `trade.rs` | sets that differ slightly; the end of a search for the cheapest set that fits |
//! | `inference.rs` | the search for inference programs |
//! | `order.rs` | the order of the search |
//! | `worlds.rs` | a test of the search in random worlds |

mod choice;
mod inference;
mod levels;
mod near;
mod order;
mod pass;
mod polish;
mod trade;
#[cfg(test)]
pub(super) mod worlds;

use self::pass::Pass;
use super::facts::{Fact, Facts};
use crate::techniques::Set;

/// The maximum number of sets that a search tries. Searches in `worlds.rs` try 34 on average.
const MOST_TRIALS: usize = 100;

/// The next step of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The first of these sets has to be tried. The other sets will probably have to be tried next, and can run at the
    /// same time.
    Try(Vec<Set>),
    /// Like [`Step::Try`], but a set that fits is already known; these sets may be cheaper, or leave more headroom.
    Improve(Vec<Set>),
    Done(Decision),
}

/// The decision about the sets that were tried, as indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Decision {
    /// `None` if nothing fits.
    pub(super) chosen: Option<usize>,
    /// The best set, if it was not chosen because it only just fits: the chosen set leaves more room and takes about
    /// the same time.
    pub(super) instead_of: Option<usize>,
}

/// The sets to try next or, if the search is over, the decision.
pub(super) fn next(facts: &Facts) -> Step {
    let mut pass = Pass::new(facts);
    match pass.search() {
        Err(missing) if facts.tried.len() < MOST_TRIALS => match missing.is_optional {
            true => Step::Improve(missing.sets),
            false => Step::Try(missing.sets),
        },
        _ => Step::Done(decide(facts)),
    }
}

/// The decision based on the facts so far, even though the search may not be over.
pub(super) fn decide(facts: &Facts) -> Decision {
    let all: Vec<_> = facts.tried.iter().collect();
    let choice = choice::of(&all, facts.wish, facts.limits);
    let place = |set: &Set| facts.tried.iter().position(|it| it.set == *set);
    Decision {
        chosen: choice.as_ref().and_then(|it| place(&it.best.set)),
        instead_of: choice.and_then(|it| it.instead_of).and_then(|it| place(&it.set)),
    }
}

/// Whether the set `own` would be chosen over the set `other`.
pub(super) fn is_better(facts: &Facts, own: &Fact, other: &Fact) -> bool {
    let of = |base: Option<&Fact>| {
        let all: Vec<&Fact> = base.into_iter().chain([other, own]).collect();
        choice::of(&all, facts.wish, facts.limits).is_some_and(|it| it.best.set == own.set)
    };
    of(facts.tried.first())
}
