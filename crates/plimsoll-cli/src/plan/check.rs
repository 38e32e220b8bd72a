//! Runs the chosen set at the GPU's size, for more steps than its trial had: [`Checked`].

use super::fit::Fit;
use super::goal::Goal;
use super::search::Search;
use super::sentences;
use super::strategy::Decision;
use crate::exit::Failure;
use crate::output;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::How;
use crate::techniques::Set;

/// The results of runs at the GPU's size.
#[derive(Default)]
pub(super) struct Checked {
    /// The decision after these runs.
    pub(super) decision: Decision,
    /// Why the last chosen set did not fit at the GPU's size.
    pub(super) objection: Option<String>,
    /// The sets that ran.
    ran: Vec<(Set, Trial)>,
    /// Whether trials run until their reserved bytes stop growing.
    settles: bool,
}

impl Checked {
    /// The successful run with this set on a simulated device of the GPU's size; `None` if there was none.
    pub(super) fn of(&self, set: &Set) -> Option<&Trial> {
        self.ran.iter().find(|(of, _)| of == set).map(|(_, trial)| trial)
    }
}

impl Search<'_, '_> {
    /// Searches, then runs the chosen set at the GPU's size until its reserved bytes stop growing. If the set does not
    /// fit there, or only just fits, the search is repeated with trials that run just as long. If the set still fits in
    /// these trials, the search is repeated without this set.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn checked(&mut self) -> Result<Checked, Failure> {
        let mut checked = Checked::default();
        loop {
            checked.decision = self.run()?;
            // If the search ran out of time, the results so far are checked as well.
            self.is_interrupted &= !self.is_late;
            let Some(place) = checked.decision.chosen else { return Ok(checked) };
            let chosen = self.tried.candidates()[place].clone();
            // The search for the largest batch already runs at the GPU's size.
            if checked.of(&chosen.set).is_some() || self.is_interrupted || self.wish.goal == Goal::Batch {
                return Ok(checked);
            }
            // The last trials of the search run in parallel with this run.
            self.trials.ahead(&[(chosen.set.clone(), How::Itself)])?;
            self.count_ahead()?;
            self.ahead(&self.offered())?;
            output::progress(&format!(
                "running {} at the GPU's size until its memory stops growing",
                sentences::named(&chosen)
            ));
            let trial = self.trials.of(&chosen.set, How::Itself)?;
            let runs_short =
                matches!(trial.end, End::RanOut(_)) || (trial.retries > 0 && !chosen.fit.is_tight());
            let has_grown = runs_short && trial.steps >= chosen.trial.steps && !checked.settles;
            let why = match &trial.end {
                End::Ran if !has_grown => {
                    let limits = self.limits(&trial);
                    self.tried.correct(place, |it| it.settle(&trial, limits));
                    None
                }
                End::Ran => Some("memory runs short in later steps".to_owned()),
                End::RanOut(_) if chosen.caught.is_some() && trial.goes_on(&chosen.trial) => {
                    self.tried.correct(place, |it| it.caught = Some(trial.clone()));
                    None
                }
                End::Interrupted => {
                    self.is_interrupted = true;
                    return Ok(checked);
                }
                End::RanOut(why) | End::Failed(why) | End::Unknown(why) => Some(why.clone()),
                End::Refused(it) => Some(format!("{}: {}", it.technique, it.reason)),
            };
            let Some(why) = why else {
                checked.ran.push((chosen.set, trial));
                self.price()?;
                continue;
            };
            let name = sentences::named(&chosen);
            checked.objection =
                Some(format!("{name} fits in its trial, but not in a longer simulation: {why}"));
            self.tried.correct(place, |it| it.fit = Fit::Short(0));
            if has_grown && !self.is_late {
                checked.settles = true;
                self.again()?;
            }
        }
    }

    /// Searches again with trials that run until their reserved bytes stop growing. If the user ends this search before
    /// the unmodified program has a result, the earlier results are kept.
    fn again(&mut self) -> Result<(), Failure> {
        self.trials.settle_all();
        let known = self.forget();
        self.run()?;
        if self.tried.candidates().first().is_none_or(|base| base.trial.end != End::Ran) {
            self.tried.restore(known);
        }
        Ok(())
    }
}
