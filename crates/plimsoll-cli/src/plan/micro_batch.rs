//! A smaller micro-batch with more accumulation, for a program that makes its batches itself: [`MicroBatch`]. The numbers that
//! set the batch size are found in its source (`../../python/plimsoll/techniques/batch_source.py`), and each row is a run of
//! the program with smaller numbers there, in which the optimizer's step has an effect only in every Nth iteration. A plan
//! shows these runs as a further option, but never chooses them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Plan;
use super::candidate::{Candidate, limits};
use super::goal::{Goal, Wish};
use super::search::Search;
use super::time::Cost;
use crate::exit::Failure;
use crate::output;
use crate::predict::analysis::waste::LONGEST;
use crate::predict::gpu::Target;
use crate::predict::recording::read::place;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::{self, How, Program, Rows};
use crate::predict::view::{Replaced, Writes};
use crate::protocol::Number;
use crate::techniques::{Set, Technique};

/// The numbers of parts to try, in this order.
const PARTS: [u64; 4] = [2, 4, 8, 16];

/// The maximum number of these numbers to try.
const RUNS: usize = 3;

/// Where a program sets its batch size, and what smaller batches cost.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    own: u64,
    numbers: Vec<Number>,
    /// The estimated cost for each number of parts.
    costs: BTreeMap<u64, Option<Cost>>,
}

/// Runs of the program with a smaller micro-batch.
#[derive(Debug, Clone)]
pub(super) struct MicroBatch {
    /// The program's own batch.
    pub(super) own: u64,
    /// One run for each number of parts of the program's own batch, in ascending order.
    pub(super) tried: Vec<Division>,
}

/// A run with a smaller micro-batch.
#[derive(Debug, Clone)]
pub(super) struct Division {
    pub(super) parts: u64,
    /// The lines of the program with smaller numbers: file, line, text.
    pub(super) lines: Vec<(PathBuf, usize, String)>,
    pub(super) candidate: Candidate,
}

impl Division {
    /// What to change, as a phrase.
    pub(super) fn said(&self, own: u64) -> String {
        let lines = self.lines.iter().map(|(file, line, text)| {
            format!("`{text}` in place of {}", place(&file.to_string_lossy(), *line as u64))
        });
        let (lines, parts) = (lines.collect::<Vec<_>>().join(" and "), self.parts);
        let each = if parts == 2 { "2nd".to_owned() } else { format!("{parts}th") };
        format!(
            "a micro-batch of {} ({lines}), {parts} times as many iterations, the loss divided by {parts}, and \
             the optimizer's step and zero_grad in every {each}",
            own / parts
        )
    }
}

impl MicroBatch {
    /// The run with the fewest parts that fits; otherwise the run with the most parts.
    pub(super) fn best(&self) -> Option<&Division> {
        self.tried.iter().find(|it| it.candidate.fit.fits()).or(self.tried.last())
    }
}

impl Search<'_, '_> {
    /// Where the program sets its batch size, if it does not fit and no set already divides its batch; `Err` in the result
    /// says why that is unknown.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn divisible(&mut self) -> Result<Option<Result<Batch, String>>, Failure> {
        let Some(base) = self.tried.candidates().first() else { return Ok(None) };
        let divides = |it: &Candidate| it.set.has(Technique::Accumulate) && it.is_effective();
        let is_wanted = self.wish.goal == Goal::Fit && !base.has_room() && base.caught.is_none();
        let is_known = base.trial.end == End::Ran && base.trial.trains && base.trial.grows.is_none();
        let is_interrupted = self.trials.is_interrupted();
        if !is_wanted || !is_known || is_interrupted || self.tried.candidates().iter().any(divides) {
            return Ok(None);
        }
        if self.until.is_some_and(|until| Instant::now() > until) {
            return Ok(Some(Err("the time of --within was up".to_owned())));
        }
        let trial = base.trial.clone();
        self.trials.give_up()?;
        self.trials.end_at(None);
        let seen = self.trials.of(&Set::default(), How::Batch(Rows { to: 0, of: 0, way: "tensors" }))?;
        let Some(batch) = seen.technique("batch").filter(|_| seen.end == End::Ran) else { return Ok(None) };
        let Some(own) = batch.batch else { return Ok(Some(Err(batch.detail.clone()))) };
        if batch.numbers.is_empty() || !batch.unknown.is_empty() {
            return Ok(Some(Err(format!("the model gets {own} rows, but {}", batch.unknown))));
        }
        let parts = PARTS.into_iter().filter(|parts| own.is_multiple_of(*parts));
        let cost = |parts| Set::parse(&format!("accumulate={parts}")).map(|set| self.priced(&set, &trial));
        let costs: BTreeMap<_, _> = parts.map(|parts| (parts, cost(parts).ok().flatten())).collect();
        if costs.is_empty() {
            return Ok(Some(Err(format!("the model gets {own} rows, which is not divisible by 2"))));
        }
        Ok(Some(Ok(Batch { own, numbers: batch.numbers.clone(), costs })))
    }
}

impl Plan {
    /// Runs the program with a smaller micro-batch, until one leaves enough headroom.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn divide_batch(
        &mut self,
        program: &Program,
        target: &Target,
        wish: Wish,
        first: Duration,
        batch: Option<Result<Batch, String>>,
    ) -> Result<(), Failure> {
        let Some(batch) = batch else { return Ok(()) };
        if self.is_interrupted && !self.is_late || wish.goal != Goal::Fit || program.devices > 1 {
            return Ok(());
        }
        let hinders = match (first > LONGEST, program.writes.allow_writes) {
            (true, _) => Some("the program takes too long for further runs"),
            (_, true) => Some("with --allow-writes, its source is not changed"),
            _ => None,
        };
        let batch = hinders.map_or(batch, |why| Err(why.to_owned()));
        self.micro_batch = Some(match batch {
            Err(why) => Err(why),
            Ok(batch) => self.divided(program, target, first, &batch)?,
        });
        Ok(())
    }

    fn divided(
        &mut self,
        program: &Program,
        target: &Target,
        first: Duration,
        batch: &Batch,
    ) -> Result<Result<MicroBatch, String>, Failure> {
        let own = batch.own;
        let mut found = MicroBatch { own, tried: Vec::new() };
        output::progress(&format!("running with a micro-batch smaller than {own}"));
        for _ in 0..RUNS {
            let Some(parts) = self.next_parts(batch, &found.tried) else { break };
            let Some((replaced, lines)) = with_smaller(&batch.numbers, own / parts) else {
                return Ok(Err(format!("the model gets {own} rows, but its source cannot be changed")));
            };
            let program = Program {
                writes: Writes { replaced, ..program.writes.clone() },
                timeout: program.timeout.or(Some(LONGEST.max(first * 3))),
                ..program.clone()
            };
            let trial = trials::accumulated(&program, &trials::ample(target), parts)?;
            if trial.end == End::Interrupted {
                self.is_interrupted = true;
                break;
            }
            if let Some(why) = objection(&trial, own / parts) {
                let why = format!("with a micro-batch of {}, {why}", own / parts);
                return Ok(if found.tried.is_empty() { Err(why) } else { Ok(found) });
            }
            let fit = self.fit_of(&trial);
            let set = Set::parse(&format!("accumulate={parts}")).unwrap_or_default();
            let cost = batch.costs.get(&parts).copied().flatten();
            let candidate = Candidate { set, trial, fit, caught: None, cost };
            found.tried.push(Division { parts, lines, candidate });
        }
        Ok(if found.tried.is_empty() { Err("none of its runs ended".to_owned()) } else { Ok(found) })
    }

    /// The next number of parts to try: the smallest that may leave enough headroom, if memory falls with the batch as it did
    /// so far. `None` if a run left enough headroom, or none can.
    fn next_parts(&self, batch: &Batch, tried: &[Division]) -> Option<u64> {
        let Some(last) = tried.last() else { return batch.costs.keys().next().copied() };
        if last.candidate.has_room() {
            return None;
        }
        let base_bytes = self.candidates.first()?.trial.reserved_bytes as f64;
        let of = |parts: u64| 1.0 - 1.0 / parts as f64;
        let bytes = last.candidate.trial.reserved_bytes as f64;
        let saved_bytes = (base_bytes - bytes) / of(last.parts);
        let roomy_bytes = limits(&last.candidate.trial.target(&self.target)).roomy_bytes as f64;
        let mut more = batch.costs.keys().copied().filter(|parts| *parts > last.parts);
        more.find(|parts| base_bytes - saved_bytes * of(*parts) <= roomy_bytes)
    }
}

/// Why a run says nothing about a smaller batch.
fn objection(trial: &Trial, rows: u64) -> Option<String> {
    match &trial.end {
        End::Ran if trial.technique("batch").and_then(|it| it.batch) != Some(rows) => {
            Some("the model does not get that many rows".to_owned())
        }
        End::Ran if trial.steps < 2 => Some("the loop ends before the optimizer's second step".to_owned()),
        End::Ran => None,
        End::Refused(it) => Some(it.reason.clone()),
        end => Some(super::candidate::objection(end)),
    }
}

/// The program's files with another number in these places, and the changed lines; `None` if a file has changed.
#[expect(clippy::type_complexity, reason = "used once")]
fn with_smaller(numbers: &[Number], rows: u64) -> Option<(Vec<Replaced>, Vec<(PathBuf, usize, String)>)> {
    let mut files: BTreeMap<&Path, Vec<&Number>> = BTreeMap::new();
    for number in numbers {
        files.entry(&number.file).or_default().push(number);
    }
    let (mut replaced, mut lines) = (Vec::new(), Vec::new());
    for (path, mut numbers) in files {
        let text = std::fs::read_to_string(path).ok()?;
        let mut all: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        // Starts with the last number, so that the places of the earlier ones stay valid.
        numbers.sort_by_key(|it| std::cmp::Reverse((it.line, it.begin)));
        for it in &numbers {
            let line = all.get_mut(it.line.checked_sub(1)?)?;
            line.get(it.begin..it.end)?;
            line.replace_range(it.begin..it.end, &rows.to_string());
        }
        numbers.dedup_by_key(|it| it.line);
        for it in numbers.iter().rev() {
            lines.push((path.to_owned(), it.line, all[it.line - 1].trim().to_owned()));
        }
        replaced.push(Replaced { path: path.to_owned(), text: all.concat() });
    }
    Some((replaced, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_one_line_are_replaced_together() {
        let folder = std::env::temp_dir().join(format!("plimsoll-numbers-{}", std::process::id()));
        std::fs::write(&folder, "import x\n  f(64), f(64)  # é\n").expect("a file");
        let number = |begin, end| Number { file: folder.clone(), line: 2, begin, end };
        let found = with_smaller(&[number(4, 6), number(11, 13)], 8);
        let (replaced, lines) = found.expect("the numbers");
        assert_eq!(replaced[0].text, "import x\n  f(8), f(8)  # é\n");
        assert_eq!(lines, [(folder.clone(), 2, "f(8), f(8)  # é".to_owned())]);
        assert!(with_smaller(&[number(40, 42)], 8).is_none());
        std::fs::remove_file(&folder).expect("the file");
    }
}
