//! The chosen set on the GPU itself, over more steps than those of its trial: [`Checked`].

use super::fit::Fit;
use super::goal::Goal;
use super::search::Search;
use super::strategy::Decision;
use super::text;
use crate::exit::Failure;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::How;
use crate::techniques::Set;

/// What runs on the GPU itself showed.
#[derive(Default)]
pub(super) struct Checked {
    /// What is chosen then.
    pub(super) decision: Decision,
    /// Of the last set that was expected to fit and does not: why.
    pub(super) objection: Option<String>,
    /// The sets that ran.
    ran: Vec<(Set, Trial)>,
    /// Whether trials go on until their reserved bytes no longer grow.
    settles: bool,
}

impl Checked {
    /// The run of a set.
    pub(super) fn of(&self, set: &Set) -> Option<&Trial> {
        self.ran.iter().find(|(of, _)| of == set).map(|(_, trial)| trial)
    }
}

impl Search<'_, '_> {
    /// Searches, and runs the chosen set on the GPU itself until its reserved bytes no longer grow. Where it then does not fit, or
    /// only just, it searches again with trials that go on as long; where those do not show it, without that set.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn checked(&mut self) -> Result<Checked, Failure> {
        let mut checked = Checked::default();
        loop {
            checked.decision = self.run()?;
            // What is known by then is checked, too.
            self.is_interrupted &= !self.is_late;
            let Some(place) = checked.decision.chosen else { return Ok(checked) };
            let chosen = self.tried.candidates()[place].clone();
            // The largest batch is searched on the GPU itself.
            if checked.of(&chosen.set).is_some() || self.is_interrupted || self.wish.goal == Goal::Batch {
                return Ok(checked);
            }
            let trial = self.trials.of(&chosen.set, How::Itself)?;
            let runs_short =
                matches!(trial.end, End::RanOut(_)) || (trial.retries > 0 && !chosen.fit.is_tight());
            let has_grown = runs_short && trial.steps >= chosen.trial.steps && !checked.settles;
            let why = match &trial.end {
                End::Ran if !has_grown => {
                    let limits = self.limits;
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
                continue;
            };
            let name = text::named(&chosen);
            checked.objection = Some(format!("{name} was expected to fit, but on the GPU itself: {why}"));
            self.tried.correct(place, |it| it.fit = Fit::Short(0));
            if has_grown && !self.is_late {
                checked.settles = true;
                self.again()?;
            }
        }
    }

    /// Searches again with trials that go on until their reserved bytes no longer grow. If that has no answer for the program as it is, because
    /// the user ended it, what was known stays.
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
