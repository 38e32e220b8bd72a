//! Tests the strategy in 1,000 random worlds. A [`World`] determines the cost and the savings of each set. Savings
//! do not simply add up: two phases have peaks, memory fragments, and some pairs of techniques help or hinder each
//! other.
//!
//! *Cheapest* is defined as for `Goal::Fit`: among the sets that fit, those that change the numbers least, then
//! those with room, then the fastest. A set counts as equally cheap if it matches the cheapest in the first two
//! criteria, and its step is longer by at most 2 % of the program's own step. Techniques with the highest effort,
//! and `compile`, count only if no other set is as good in the first two criteria, because they are not used to
//! save time.
//!
//! The cheapest set is found in 966 of the 1,000 worlds, with 34 trials on average; in 1,900 of 2,000 worlds with
//! other seeds (starting at 5,000 and at 20,000).

use super::super::facts::{Fact, Facts, Ran};
use super::super::fit::{Fit, Limits};
use super::super::goal::{Goal, Wish};
use super::near::MOST_EFFORT;
use super::{MOST_TRIALS, Step, choice, next};
use crate::techniques::{Alone, Levels, Numbers, Programs, Set, Technique, Time};

/// Random numbers that depend only on their seed.
#[derive(Clone, Copy)]
struct Random(u64);

impl Random {
    /// A number from `from` to `to` that depends only on the seed and `thing`.
    fn between(self, thing: u64, from: f64, to: f64) -> f64 {
        let mut bits = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ thing.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        for _ in 0..3 {
            bits = (bits ^ (bits >> 30)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^= bits >> 27;
        }
        from + (to - from) * (bits >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn is_less(self, thing: u64, than: f64) -> bool {
        self.between(thing, 0.0, 1.0) < than
    }
}

/// A random program on a GPU of random size.
pub(in crate::plan) struct World {
    random: Random,
    blocks: u64,
    wish: Wish,
    limits: Limits,
}

/// The savings and cost of one technique on its own.
#[derive(Clone, Copy)]
struct Effect {
    /// The fractions that remain of the optimizer states, the activations, the gradients, the logits, the
    /// optimizer's temporary copies and the gaps.
    states: f64,
    activations: f64,
    gradients: f64,
    logits: f64,
    copies: f64,
    gaps: f64,
    /// The time that the technique adds, as a fraction of the program's own time.
    time: f64,
    /// The time to copy all activations to the host and back, as a fraction of the program's own time.
    copies_s: f64,
}

/// The largest difference that still counts as about the same time, as a share of the program's own step.
const SAME_TIME_S: f64 = 0.02;

const NONE: Effect = Effect {
    states: 1.0,
    activations: 1.0,
    gradients: 1.0,
    logits: 1.0,
    copies: 1.0,
    gaps: 1.0,
    time: 0.0,
    copies_s: 0.0,
};

impl World {
    pub(in crate::plan) fn new(seed: u64) -> World {
        let random = Random(seed + 1);
        let numbers = if random.is_less(1, 0.3) { Numbers::Identical } else { Numbers::Rounding };
        let limits = Limits { capacity_bytes: u64::MAX, roomy_bytes: u64::MAX };
        let blocks = random.between(2, 2.0, 13.0) as u64;
        let mut world = World { random, blocks, wish: Wish { goal: Goal::Fit, numbers }, limits };
        // A GPU whose size is between the program's memory and the minimum that any set needs.
        let reserved_bytes = |set: &Set| world.fact(set).reserved_bytes as f64;
        let least_bytes = world.sets(false).iter().map(reserved_bytes).fold(f64::MAX, f64::min);
        let capacity = random.between(4, 0.95 * least_bytes, reserved_bytes(&Set::default()));
        let capacity_bytes = capacity as u64;
        world.limits = Limits { capacity_bytes, roomy_bytes: capacity_bytes - capacity_bytes / 50 };
        world
    }

    /// Whether a technique can be applied to this program, and has an effect.
    fn run(&self, technique: Technique) -> Ran {
        let thing = 100 + technique as u64;
        let row = technique.row();
        if matches!(row.programs, Programs::Compiled | Programs::Inference)
            || row.time == Time::AllAgain
            || (row.name == "checkpoint-nested" && !self.random.is_less(3, 0.2))
        {
            return Ran::Idle(vec![technique]);
        }
        match self.random.between(thing, 0.0, 1.0) {
            it if it < 0.1 => Ran::Refused(technique),
            it if it < 0.25 => Ran::Idle(vec![technique]),
            it if it < 0.27 => Ran::Failed,
            _ => Ran::Well,
        }
    }

    fn effect(&self, technique: Technique, value: Option<u64>) -> Effect {
        let seed = Random(self.random.0 * 31 + technique as u64);
        let stays = |thing, most| seed.between(thing, 0.0, most);
        let costs = |from, to| seed.between(9, from, to);
        let row = technique.row();
        match (technique, row.time) {
            (_, Time::Again | Time::NestedAgain) => {
                let share = value.unwrap_or(self.blocks) as f64 / self.blocks as f64;
                let saved = (1.0 - stays(1, 0.6)) * share.powf(seed.between(2, 0.7, 1.5));
                Effect { activations: 1.0 - saved, time: costs(0.1, 0.4) * share, ..NONE }
            }
            (_, Time::Copies | Time::DiskCopies) => {
                let share = value.unwrap_or(95) as f64 / 100.0;
                let copies_s = costs(0.2, 4.0) * share;
                Effect { activations: 1.0 - share * (1.0 - stays(1, 0.4)), copies_s, ..NONE }
            }
            (_, Time::Parts | Time::PartsAgain) => {
                let parts = value.unwrap_or(2) as f64;
                let stay = 1.0 / parts + stays(1, 0.1);
                let again = if row.time == Time::PartsAgain { 0.33 } else { 0.0 };
                Effect { activations: stay, logits: stay, time: costs(0.0, 0.04) * parts + again, ..NONE }
            }
            (_, Time::Budget) => {
                let share = value.unwrap_or(50) as f64 / 100.0;
                Effect { activations: share, time: 0.33 * (1.0 - share), ..NONE }
            }
            (Technique::OffloadOptimizer, _) => {
                Effect { states: stays(1, 0.2), time: costs(0.05, 0.6), ..NONE }
            }
            (Technique::Expandable, _) => Effect { gaps: stays(1, 0.4), ..NONE },
            (Technique::FreeGrads, _) => Effect { gradients: stays(1, 0.9), ..NONE },
            (Technique::StepInBackward, _) => {
                Effect { gradients: stays(1, 0.2), time: costs(0.0, 0.01), ..NONE }
            }
            (Technique::ChunkedLoss, _) => Effect { logits: stays(1, 0.4), time: costs(-0.01, 0.01), ..NONE },
            (Technique::NoForeach | Technique::Fused, _) => {
                Effect { copies: stays(1, 0.1), time: costs(-0.01, 0.01), ..NONE }
            }
            _ => NONE,
        }
    }

    /// A trial of the set.
    pub(in crate::plan) fn fact(&self, set: &Set) -> Fact {
        let random = self.random;
        let (mut all, mut pairs) = (NONE, 1.0);
        let mut run = Ran::Well;
        for (place, &(technique, value)) in set.entries().iter().enumerate() {
            if run == Ran::Well {
                run = self.run(technique);
            }
            let is_replaced = set.techniques().any(|it| it.row().replaces.contains(&technique));
            if is_replaced {
                continue;
            }
            let one = self.effect(technique, value);
            // Fewer activations have to be copied if some are recomputed: checkpointing comes first in the
            // order of techniques.
            all.copies_s += one.copies_s * all.activations;
            all.states *= one.states;
            all.activations *= one.activations;
            all.gradients *= one.gradients;
            all.logits *= one.logits;
            all.copies *= one.copies;
            all.gaps *= one.gaps;
            all.time += one.time;
            for &(other, _) in &set.entries()[..place] {
                let pair = 1000 + 64 * technique as u64 + other as u64;
                pairs *= random.between(pair, 0.985, 1.015);
            }
        }
        let gib = |thing, from, to| random.between(thing, from, to) * (1_u64 << 30) as f64;
        let weights = gib(10, 1.0, 8.0);
        let gradients = weights * random.between(11, 0.1, 0.4) * all.gradients;
        let logits = if random.is_less(12, 0.5) { gib(13, 0.5, 6.0) * all.logits } else { 0.0 };
        let backward = gib(14, 2.0, 40.0) * all.activations + logits + gradients;
        let step = gradients + weights * random.between(15, 0.1, 0.5) * all.copies;
        let states = weights * random.between(18, 0.0, 0.6);
        let live = (weights - states * (1.0 - all.states) + backward.max(step)) * pairs;
        let reserved = live * (1.0 + random.between(16, 0.0, 0.12) * all.gaps);
        let fits_tight = self.limits.capacity_bytes as f64 >= live * random.between(17, 1.0, 1.04);
        let reserved_bytes = reserved as u64;
        let fit = if reserved_bytes <= self.limits.capacity_bytes {
            self.limits.fit(reserved_bytes)
        } else if fits_tight {
            self.limits.tight(reserved_bytes)
        } else {
            self.limits.short(reserved_bytes)
        };
        let is_blocks = set.techniques().any(|it| it.row().levels == Levels::Blocks);
        Fact {
            set: set.clone(),
            fit: if matches!(run, Ran::Well | Ran::Idle(_)) { fit } else { Fit::Unknown(String::new()) },
            run,
            is_caught: false,
            allocated_bytes: live as u64,
            reserved_bytes: reserved_bytes.min(self.limits.capacity_bytes.max(live as u64)),
            step_s: Some(beside(1.0 + all.time, all.copies_s)),
            blocks: if is_blocks { self.blocks } else { 0 },
        }
    }

    /// A set whose peaks were estimated. Its time is computed as for a set that ran.
    pub(in crate::plan) fn estimated(&self, set: &Set, allocated_bytes: u64, reserved_bytes: u64) -> Fact {
        let fit = match reserved_bytes <= self.limits.capacity_bytes {
            true => self.limits.fit(reserved_bytes),
            false => self.limits.short(reserved_bytes),
        };
        Fact { fit, run: Ran::Well, allocated_bytes, reserved_bytes, ..self.fact(set) }
    }

    /// Whether a set is as cheap as another set, or cheaper.
    pub(in crate::plan) fn is_as_cheap(&self, own: &Fact, other: &Fact) -> bool {
        class(own) == class(other) && own.order_s() <= other.order_s() + SAME_TIME_S
    }

    /// All allowed sets that work, with all values or with only the strongest value of each technique.
    fn sets(&self, with_all_values: bool) -> Vec<Set> {
        let mut sets = vec![Set::default()];
        let is_allowed = |it: &Technique| {
            it.row().numbers <= self.wish.numbers
                && self.run(*it) == Ran::Well
                // The host in these worlds has enough room.
                && !matches!(it.row().alone, Alone::SeveralGpus | Alone::LastResort)
        };
        for technique in Technique::all().filter(is_allowed) {
            let mut values: Vec<Option<u64>> = match technique.row().levels {
                Levels::Default => vec![None],
                Levels::Blocks => [None].into_iter().chain((1..self.blocks).rev().map(Some)).collect(),
                Levels::Multiples(step) => {
                    [None].into_iter().chain((1..100 / step).map(|it| Some(it * step))).collect()
                }
                Levels::Upward(values) | Levels::Downward(values) => {
                    values.iter().rev().copied().map(Some).collect()
                }
            };
            if !with_all_values {
                values.truncate(1);
            }
            let with = |set: &Set| {
                let can = set.techniques().all(|it| it.excluded_by(technique).is_none());
                let values = if can { &values[..] } else { &[] };
                values.iter().map(|&value| set.with(technique, value)).collect::<Vec<_>>()
            };
            let more: Vec<Set> = sets.iter().flat_map(with).collect();
            sets.extend(more);
        }
        sets
    }

    /// Converts these trials to facts.
    pub(in crate::plan) fn facts(&self, tried: Vec<Fact>) -> Facts {
        Facts {
            wish: self.wish,
            devices: 1,
            limits: self.limits,
            tried,
            known_before: 0,
            grows: false,
            compiles: false,
            infers: false,
            has_nested_blocks: self.random.is_less(3, 0.2),
        }
    }

    /// Searches. Returns the trials and the index of the chosen set.
    pub(in crate::plan) fn searched(&self) -> (Vec<Fact>, Option<usize>) {
        let mut facts = self.facts(Vec::new());
        loop {
            match next(&facts) {
                Step::Done(decision) => return (facts.tried, decision.chosen),
                Step::Try(sets) | Step::Improve(sets) => {
                    assert!(sets[0].conflict().is_none(), "{}", sets[0]);
                    assert!(facts.tried.iter().all(|it| it.set != sets[0]), "{} again", sets[0]);
                    facts.tried.push(self.fact(&sets[0]));
                }
            }
        }
    }

    /// The cheapest of all sets.
    pub(in crate::plan) fn cheapest(&self) -> Option<Fact> {
        let all: Vec<Fact> = self.sets(true).iter().map(|set| self.fact(set)).collect();
        let of = |all: Vec<&Fact>| choice::of(&all, self.wish, self.limits).map(|it| it.best.clone());
        let is_easy = |it: &&Fact| {
            it.set.techniques().all(|it| it.row().effort < MOST_EFFORT && it != Technique::Compile)
        };
        let (best, easy) = (of(all.iter().collect())?, of(all.iter().filter(is_easy).collect()));
        Some(easy.filter(|it| class(it) == class(&best)).unwrap_or(best))
    }
}

/// The criteria that come before the time of a step when sets are compared.
pub(in crate::plan) fn class(fact: &Fact) -> (Numbers, bool) {
    (fact.set.numbers(), fact.has_room())
}

/// The estimated time of a step whose copies overlap with its computation.
fn beside(computed_s: f64, copied_s: f64) -> f64 {
    let pass = |share: f64| (share * computed_s, copied_s / 2.0);
    let together = |(a, b): (f64, f64)| a.max(b) + 0.1 * a.min(b);
    together(pass(1.0 / 3.0)) + together(pass(2.0 / 3.0))
}

#[test]
fn in_random_worlds_the_cheapest_set_is_found_within_the_number_of_trials() {
    const WORLDS: u64 = 1000;
    let (mut found, mut most, mut sum) = (0, 0, 0);
    for seed in 0..WORLDS {
        let world = World::new(seed);
        let (tried, chosen) = world.searched();
        (most, sum) = (most.max(tried.len()), sum + tried.len());
        let chosen = chosen.map(|place| &tried[place]);
        assert!(chosen.is_none_or(|it| it.fit.fits() && it.is_effective()), "world {seed}");
        found += u64::from(match (chosen, &world.cheapest()) {
            (Some(own), Some(best)) => world.is_as_cheap(own, best),
            (own, best) => own.is_none() && best.is_none(),
        });
    }
    println!("{found} of {WORLDS}; at most {most} trials, {sum} together");
    assert!(most <= MOST_TRIALS, "{most} trials");
    assert!(100 * found >= 95 * WORLDS, "{found} of {WORLDS}");
}
