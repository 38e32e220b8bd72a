//! Lines that free memory at the peak, as an alternative to techniques: [`CodeChange`]. `predict` finds the lines
//! (`predict/analysis/waste.rs`), and each row is a run of the program whose source contains them. A plan shows these
//! runs as a further option, but never chooses them.

use std::time::Duration;

use super::Plan;
use super::candidate::{Candidate, limits};
use super::fit::Fit;
use super::goal::{Goal, Wish};
use crate::exit::Failure;
use crate::output;
use crate::predict::analysis::waste::{LONGEST, NewLine, least_bytes, places, replaced};
use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::{self, Program};
use crate::predict::view::Writes;
use crate::protocol::{Waste, WasteKind};
use crate::techniques::Numbers;

/// How many sets to try in combination with the lines.
const SETS: usize = 2;

/// Lines that free memory, and runs of the program with them.
#[derive(Debug, Clone)]
pub(super) struct CodeChange {
    /// A description of the lines in one or two words, such as `del`.
    pub(super) what: String,
    pub(super) lines: Vec<NewLine>,
    /// The run with the lines and without any technique, then the runs with the lines and a set.
    pub(super) tried: Vec<Candidate>,
}

impl CodeChange {
    /// The first run that fits.
    pub(super) fn fitting(&self) -> Option<&Candidate> {
        self.tried.iter().find(|it| it.fit.fits())
    }
}

impl Plan {
    /// Runs the program with the lines that free memory at its peak. If the program does not fit with these lines
    /// alone, sets that are cheaper than the chosen set are run together with the lines.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn change_code(
        &mut self,
        program: &Program,
        target: &Target,
        wish: Wish,
        first: Duration,
    ) -> Result<(), Failure> {
        let Some(base) = self.candidates.first() else { return Ok(()) };
        let is_asked = match wish.goal {
            Goal::Fit => !base.has_room() && base.caught.is_none(),
            Goal::Memory => true,
            Goal::Speed | Goal::Batch => false,
        };
        let may_run = !self.is_interrupted && first <= LONGEST && !program.writes.allow_writes;
        let is_known = base.trial.end == End::Ran && base.trial.grows.is_none();
        if !is_asked || !may_run || !is_known || base.trial.waste.is_empty() {
            return Ok(());
        }
        let rows: Vec<&Waste> = base.trial.waste.iter().collect();
        let Ok(replaced) = replaced(&rows) else { return Ok(()) };
        let program = Program {
            writes: Writes { replaced, ..program.writes.clone() },
            timeout: program.timeout.or(Some(LONGEST.max(first * 3))),
            ..program.clone()
        };
        output::progress(
            "some memory that is live at the peak is never read again; running with lines that free it",
        );
        let trial = trials::alone(&program, &trials::ample(target), &base.set)?;
        let before_bytes = base.trial.allocated_bytes;
        let is_gain = trial.allocated_bytes + least_bytes(before_bytes) <= before_bytes;
        if trial.end != End::Ran || !is_gain {
            self.is_interrupted |= trial.end == End::Interrupted;
            return Ok(());
        }
        let saved_bytes = base.trial.reserved_bytes.saturating_sub(trial.reserved_bytes);
        let edited = self.edited(base, trial);
        let (fits, mut tried) = (edited.fit.fits(), vec![edited]);
        if wish.goal == Goal::Fit && !fits {
            for candidate in beside(&self.candidates, self.chosen(), &self.target, saved_bytes, wish.numbers)
            {
                let trial = trials::alone(&program, target, &candidate.set)?;
                if trial.end == End::Ran {
                    tried.push(self.edited(candidate, trial));
                    break;
                }
            }
        }
        let what = what(&rows);
        self.code = Some(CodeChange { what, lines: places(&rows), tried });
        Ok(())
    }

    /// The candidate's set, with the result of the trial that also ran the lines that free memory. The lines do not add
    /// time.
    fn edited(&self, candidate: &Candidate, trial: Trial) -> Candidate {
        let fit = self.fit_of(&trial);
        Candidate { set: candidate.set.clone(), trial, fit, caught: None, cost: candidate.cost }
    }

    /// Whether a separate run fits.
    pub(super) fn fit_of(&self, trial: &Trial) -> Fit {
        let limits = limits(&trial.target(&self.target));
        let bytes = trial.reserved_bytes;
        match bytes > limits.capacity_bytes {
            true => limits.short(bytes),
            false if trial.retries > 0 => limits.tight(bytes),
            false => limits.fit(bytes),
        }
    }
}

/// The sets that are cheaper than the chosen set and may fit if the lines save this many bytes, the cheapest first.
fn beside<'a>(
    candidates: &'a [Candidate],
    chosen: Option<&Candidate>,
    target: &Target,
    saved_bytes: u64,
    numbers: Numbers,
) -> Vec<&'a Candidate> {
    let base_s = candidates.first().map_or(0.0, Candidate::step_s).max(f64::MIN_POSITIVE);
    let cost = |it: &Candidate| {
        let hundredths = (it.step_s() / base_s * 100.0).round() as u64;
        (it.set.numbers(), hundredths, it.set.effort())
    };
    let most = chosen.map(cost);
    let may_fit = |it: &&Candidate| {
        let left = it.trial.reserved_bytes.saturating_sub(saved_bytes);
        left <= limits(&it.trial.target(target)).capacity_bytes
    };
    let is_option = |it: &&Candidate| {
        let is_cheaper = most.is_none_or(|most| cost(it) < most);
        !it.set.is_empty() && it.is_effective() && it.set.numbers() <= numbers && is_cheaper
    };
    let mut options: Vec<&Candidate> = candidates.iter().filter(is_option).filter(may_fit).collect();
    options.sort_by_key(|it| cost(it));
    options.truncate(SETS);
    options
}

/// The kinds of lines, such as `del`, without duplicates.
fn what(rows: &[&Waste]) -> String {
    let mut words: Vec<&str> = Vec::new();
    for row in rows {
        let word = match row.kind {
            WasteKind::Del => "del",
            WasteKind::Shape => "to(\"meta\")",
            WasteKind::View => "clone",
            WasteKind::Gradients => "zero_grad",
            WasteKind::States => "optimizer state",
            WasteKind::Unread => "an unread container",
            WasteKind::Graph => "detach",
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::time::Cost;
    use super::*;
    use crate::techniques::Set;

    fn candidate(target: &Target, set: &str, gib: u64, step_s: f64) -> Candidate {
        let set = if set.is_empty() { Set::default() } else { Set::parse(set).expect("a set") };
        let trial = Trial { reserved_bytes: gib << 30, ..Trial::without_answer(End::Ran) };
        let fit = limits(target).fit(gib << 30);
        Candidate { set, trial, fit, caught: None, cost: Some(Cost { step_s, ..Cost::default() }) }
    }

    #[test]
    fn beside_lines_that_save_memory_sets_are_tried_that_are_cheaper_than_the_chosen_one() {
        let target = Target::new("24GiB", Some("8.9"), Some(0)).expect("a GPU");
        let candidates = [
            candidate(&target, "", 40, 1.0),
            candidate(&target, "expandable", 39, 1.0),
            candidate(&target, "checkpoint", 26, 1.3),
            candidate(&target, "offload", 25, 1.2),
            candidate(&target, "chunked-loss", 25, 1.0),
            candidate(&target, "checkpoint,offload", 20, 1.5),
        ];
        let tried = |chosen: Option<usize>, saved_gib: u64, numbers| {
            let chosen = chosen.map(|place| &candidates[place]);
            let sets = beside(&candidates, chosen, &target, saved_gib << 30, numbers);
            sets.iter().map(|it| it.set.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(tried(Some(5), 1, Numbers::Identical), ["offload"]);
        assert_eq!(tried(Some(5), 2, Numbers::Identical), ["offload", "checkpoint"]);
        assert_eq!(tried(Some(3), 2, Numbers::Identical), [""; 0]);
        // A set that rounds differently does not count as cheaper than a set that keeps the numbers.
        assert_eq!(tried(Some(3), 2, Numbers::Rounding), [""; 0]);
        assert_eq!(tried(None, 1, Numbers::Rounding), ["offload", "checkpoint,offload"]);
    }
}
