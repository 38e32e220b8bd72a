//! Tests the search with estimates on recorded programs. The records are rows of plans that ran every set that the
//! strategy requested (`tests/plan_time/recorded.jsonl`).

use serde::Deserialize;

use super::estimate::{Estimates, Mix};
use super::facts::{Fact, Facts, Ran};
use super::fit::Limits;
use super::foresee;
use super::goal::{Goal, Wish};
use super::strategy::{self, Step};
use crate::techniques::{Numbers, Set};

/// Set, allocated and reserved bytes, fit, run, seconds of a step, blocks.
type Row = (String, u64, u64, String, String, Option<f64>, u64);

/// A plan, and the GPU.
#[derive(Deserialize)]
struct Recorded {
    case: String,
    capacity_bytes: u64,
    total_bytes: u64,
    chosen: String,
    rows: Vec<Row>,
}

impl Recorded {
    fn limits(&self) -> Limits {
        let roomy_bytes = self.capacity_bytes - self.total_bytes / 50;
        Limits { capacity_bytes: self.capacity_bytes, roomy_bytes }
    }

    fn facts(&self) -> Vec<Fact> {
        let limits = self.limits();
        let fact = |row: &Row| {
            let &(ref text, allocated_bytes, reserved_bytes, ref fit, ref run, step_s, blocks) = row;
            let set = if text.is_empty() { Set::default() } else { Set::parse(text).unwrap() };
            let fit = match fit.as_str() {
                "tight" => limits.tight(reserved_bytes),
                "fits" => limits.fit(reserved_bytes),
                _ => limits.short(reserved_bytes),
            };
            let run = if run == "well" { Ran::Well } else { Ran::Idle(set.techniques().collect()) };
            Fact { set, fit, run, is_caught: false, allocated_bytes, reserved_bytes, step_s, blocks }
        };
        self.rows.iter().map(fact).collect()
    }

    /// The facts of an unrecorded set, computed as a weighted sum of the known facts.
    fn mixed(&self, set: &Set, mix: &Mix, known: &[Fact]) -> Fact {
        let limits = self.limits();
        let sum = |of: &dyn Fn(&Fact) -> u64| mix.apply(|index| of(&known[index]));
        let reserved_bytes = sum(&|it| it.reserved_bytes);
        let fits = reserved_bytes <= limits.capacity_bytes;
        let recorded = self.facts().into_iter().find(|it| it.set == *set).and_then(|it| it.step_s);
        // The time of a set is always computed, so it is as precise here as for a run.
        let step_s = recorded.unwrap_or(sum(&|it| (it.step_s.unwrap_or(0.0) * 1e9) as u64) as f64 / 1e9);
        Fact {
            set: set.clone(),
            fit: if fits { limits.fit(reserved_bytes) } else { limits.short(reserved_bytes) },
            run: Ran::Well,
            is_caught: false,
            allocated_bytes: sum(&|it| it.allocated_bytes),
            reserved_bytes,
            step_s: Some(step_s),
            blocks: known
                .iter()
                .filter(|it| set.techniques().any(|own| it.set.has(own)))
                .map(|it| it.blocks)
                .max()
                .unwrap_or(0),
        }
    }

    /// Searches with the recorded facts. Returns the number of runs, and the chosen set. A set that was not recorded
    /// is estimated as a mixture of recorded sets; if that is impossible, it counts as failed.
    fn searched(&self, next: impl Fn(&Facts) -> Step) -> (usize, Option<String>) {
        let recorded = self.facts();
        let all = Estimates::of(&recorded);
        let mut facts = Facts {
            wish: Wish { goal: Goal::Fit, numbers: Numbers::Rounding },
            devices: 1,
            limits: self.limits(),
            tried: Vec::new(),
            known_before: 0,
            grows: false,
            compiles: false,
            infers: false,
            has_nested_blocks: false,
        };
        loop {
            match next(&facts) {
                Step::Done(decision) => {
                    let chosen = decision.chosen.map(|place| facts.tried[place].set.to_string());
                    return (facts.tried.len(), chosen);
                }
                Step::Try(sets) | Step::Improve(sets) => {
                    let set = &sets[0];
                    let fact = match (recorded.iter().find(|it| it.set == *set), all.mix(set)) {
                        (Some(fact), _) => fact.clone(),
                        (None, Ok(mix)) => self.mixed(set, &mix, &recorded),
                        (None, Err(_)) => Fact { set: set.clone(), run: Ran::Failed, ..recorded[0].clone() },
                    };
                    facts.tried.push(fact);
                }
            }
        }
    }
}

#[test]
fn recorded_programs_get_the_same_set_from_fewer_runs() {
    let lines = include_str!("../../tests/plan_time/recorded.jsonl").lines();
    let (mut runs, mut runs_without) = (0, 0);
    for line in lines {
        let recorded: Recorded = serde_json::from_str(line).unwrap();
        let (without, _) = recorded.searched(strategy::next);
        let estimated =
            |facts: &Facts| foresee::next(facts, |set, mix| recorded.mixed(set, mix, &facts.tried));
        let (own, chosen) = recorded.searched(estimated);
        println!("{}: {own} runs instead of {without}", recorded.case);
        assert_eq!(chosen.as_ref(), Some(&recorded.chosen), "{}", recorded.case);
        assert!(own <= without, "{}", recorded.case);
        (runs, runs_without) = (runs + own, runs_without + without);
    }
    assert!(4 * runs < 3 * runs_without, "{runs} runs instead of {runs_without}");
}
