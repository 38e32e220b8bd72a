//! The chosen set on the GPU itself, over more steps than those of its trial: [`Checked`].

use super::goal::Goal;
use super::search::Search;
use super::text;
use crate::exit::Failure;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::How;
use crate::techniques::{Set, Technique};

/// What runs on the GPU itself showed.
#[derive(Default)]
pub(super) struct Checked {
    /// Of the last set that was expected to fit and does not: why.
    pub(super) objection: Option<String>,
    /// The sets that ran.
    ran: Vec<(Set, Trial)>,
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
            self.run()?;
            // What is known by then is checked, too.
            self.is_interrupted &= !self.is_late;
            let Some(chosen) = self.chosen().cloned() else { return Ok(checked) };
            // The largest batch is searched on the GPU itself.
            if checked.of(&chosen.set).is_some() || self.is_interrupted || self.wish.goal == Goal::Batch {
                return Ok(checked);
            }
            let trial = self.trials.of(&chosen.set, How::Itself)?;
            let Some(candidate) = self.candidates.iter_mut().find(|it| it.set == chosen.set) else {
                return Ok(checked);
            };
            let runs_short = matches!(trial.end, End::RanOut(_)) || (trial.retries > 0 && !chosen.is_tight);
            let has_grown = runs_short && trial.steps >= chosen.trial.steps && !self.settles;
            let why = match &trial.end {
                End::Ran if !has_grown => {
                    candidate.settle(&trial, self.target);
                    None
                }
                End::Ran => Some("memory runs short in later steps".to_owned()),
                End::RanOut(_) if chosen.caught.is_some() && trial.goes_on(&chosen.trial) => {
                    candidate.caught = Some(trial.clone());
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
            candidate.fits = Some(false);
            let name = text::named(&chosen);
            checked.objection = Some(format!("{name} was expected to fit, but on the GPU itself: {why}"));
            if has_grown && !self.is_late {
                self.again()?;
            }
        }
    }

    /// Searches again with trials that go on until their reserved bytes no longer grow. If that has no answer for the program as it is, because
    /// the user ended it, what was known stays.
    fn again(&mut self) -> Result<(), Failure> {
        self.settles = true;
        self.trials.settle_all();
        (self.useful, self.blocks) = (Vec::new(), Technique::Checkpoint);
        let known = std::mem::take(&mut self.candidates);
        self.run()?;
        if self.candidates.first().is_none_or(|base| base.trial.end != End::Ran) {
            self.candidates = known;
        }
        Ok(())
    }
}
