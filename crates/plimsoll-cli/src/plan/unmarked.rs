//! Finds the largest batch of a program whose command does not contain `{BATCH}`, by runs in which the model gets
//! a different batch ([`Unmarked`]). `../../python/plimsoll/techniques/batch.py` resizes the batch.

use std::time::{Duration, Instant};

use super::Plan;
use super::goal::Goal;
use super::largest::{Largest, label};
use super::search::Search;
use crate::exit::Failure;
use crate::output;
use crate::predict::search::{largest, largest_above};
use crate::predict::trial::{End, Trial};
use crate::predict::trials::{How, Rows};
use crate::techniques::Set;

/// Time limit of the search, unless the largest batch is the goal.
const LIMIT: Duration = Duration::from_secs(10);

/// The largest batch to try, as a multiple of the program's own.
const MULTIPLE: u64 = 1024;

/// The name of the technique that changes the batch.
const NAME: &str = "batch";

/// The largest batches, and how they were found.
#[derive(Debug, Clone)]
pub(super) struct Unmarked {
    /// The program's own batch.
    own: u64,
    way: &'static str,
    /// The lines that create or move tensors with that batch size.
    places: Vec<String>,
    /// The searches for the largest batch: for the unchanged program, and with the chosen set.
    pub(super) largest: Vec<Largest>,
}

impl Unmarked {
    /// How the batches were found, as a sentence.
    pub(super) fn sentence(&self) -> String {
        let own = self.own;
        match self.way {
            "tensors" => format!(
                "batch: the model gets {own} rows; other batches were tried by resizing tensors of {own} rows where \
                 the program makes them or moves them to the GPU ({})",
                self.places.join(", ")
            ),
            _ => format!(
                "batch: the model gets {own} rows; other batches were tried by resizing the model's arguments. \
                 Tensors that the program makes outside the model kept their size, so write {{BATCH}} in the command to be sure"
            ),
        }
    }
}

impl Search<'_, '_> {
    /// Searches for the largest batch, both for the unchanged program and with a set. `Err` in the result says why no
    /// largest batch was found.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn largest_batches(
        &mut self,
        chosen: Option<&Set>,
    ) -> Result<Result<Unmarked, String>, Failure> {
        let until = (self.wish.goal != Goal::Batch).then(|| Instant::now() + LIMIT);
        self.trials.end_at(until);
        let found = self.batches_until(chosen);
        if !self.trials.is_interrupted() {
            self.trials.give_up()?;
        }
        self.trials.end_at(None);
        found
    }

    fn batches_until(&mut self, chosen: Option<&Set>) -> Result<Result<Unmarked, String>, Failure> {
        let none = Set::default();
        let looks = Rows { to: 0, of: 0, way: "tensors" };
        let seen = self.trials.of(&none, How::Batch(looks))?;
        let Some(batch) = seen.technique(NAME).filter(|_| seen.end == End::Ran) else {
            return Ok(Err("the run that looks for the model's batch size failed".to_owned()));
        };
        let Some(own) = batch.batch else { return Ok(Err(batch.detail.clone())) };
        let places = batch.places.clone();
        let mut why = String::new();
        for way in ["tensors", "inputs"] {
            if way == "tensors" && places.is_empty() {
                continue;
            }
            let mut found = Unmarked { own, way, places: places.clone(), largest: Vec::new() };
            for set in std::iter::once(&none).chain(chosen.filter(|it| !it.is_empty())) {
                match self.largest_with(set, own, way)? {
                    Ok(largest) => found.largest.push(largest),
                    Err(objection) => why = objection,
                }
            }
            if found.largest.first().is_some_and(|it| it.set.is_empty()) {
                return Ok(Ok(found));
            }
        }
        Ok(Err(why))
    }

    /// The largest batch with this set; `Err` in the result says why the batch size cannot be changed in this way.
    fn largest_with(
        &mut self,
        set: &Set,
        own: u64,
        way: &'static str,
    ) -> Result<Result<Largest, String>, Failure> {
        let tried = self.tried.candidates().iter().find(|it| it.set == *set);
        let known = tried.filter(|it| it.fit.fits()).map(|it| it.trial.clone());
        let capacity_bytes = tried.map_or(0, |it| self.limits(&it.trial).capacity_bytes);
        let range = match &known {
            Some(_) => (own, own.saturating_mul(MULTIPLE)),
            None => (own.min(2), own),
        };
        let mut best: Option<(u64, Trial)> = known.clone().map(|trial| (own, trial));
        let (mut objection, mut is_interrupted) = (None, false);
        let peak = |rows| {
            if rows == own || objection.is_some() || is_interrupted {
                return Ok(None);
            }
            let trial = self.trials.of(set, How::Batch(Rows { to: rows, of: own, way }))?;
            let given = trial.technique(NAME).and_then(|it| it.batch);
            let said = match &trial.end {
                End::Ran if given == Some(rows) => "fits".to_owned(),
                End::RanOut(_) if given.is_none_or(|given| given == rows) => "does not fit".to_owned(),
                End::Interrupted => {
                    is_interrupted = true;
                    return Ok(None);
                }
                End::Ran | End::RanOut(_) => {
                    objection = Some(format!("the model did not get the batch of {rows}"));
                    return Ok(None);
                }
                End::Refused(it) => format!("{}: {}", it.technique, it.reason),
                End::Failed(why) | End::Unknown(why) => why.clone(),
            };
            output::progress(&format!("tried {}, batch {rows}: {said}", label(set)));
            match trial.end {
                End::Ran => {
                    let peak = trial.reserved_bytes;
                    if best.as_ref().is_none_or(|(of, _)| *of < rows) {
                        best = Some((rows, trial));
                    }
                    Ok(Some(peak))
                }
                End::RanOut(_) => Ok(None),
                _ => {
                    objection = Some(format!("with a batch of {rows}: {said}"));
                    Ok::<_, Failure>(None)
                }
            }
        };
        let batch = match &known {
            Some(it) => Some(largest_above((own, it.reserved_bytes), range.1, capacity_bytes, peak)?),
            None => largest(range.0, range.1, capacity_bytes, peak)?,
        };
        Ok(match objection {
            Some(why) => Err(why),
            None => Ok(Largest {
                set: set.clone(),
                range,
                batch,
                trial: best.map(|(_, trial)| trial),
                is_interrupted,
            }),
        })
    }
}

impl Plan {
    /// Stores the largest batches in the plan. If the largest batch is the goal, the set with the larger batch is
    /// chosen.
    pub(super) fn adopt(&mut self, found: Result<Unmarked, String>) {
        if let Ok(found) = &found {
            self.largest.clone_from(&found.largest);
        }
        if self.goal == Goal::Batch {
            let of = |it: Option<&Largest>| it.and_then(|it| it.batch);
            let (as_it_is, with_set) = (of(self.largest.first()), of(self.largest.get(1)));
            if with_set <= as_it_is {
                self.chosen = as_it_is.map(|_| 0);
            }
            self.batch = with_set.max(as_it_is);
            let planned = if with_set > as_it_is { self.largest.get(1) } else { self.largest.first() };
            self.planned = planned.and_then(|it| it.trial.clone());
        }
        self.unmarked = Some(found);
    }
}
