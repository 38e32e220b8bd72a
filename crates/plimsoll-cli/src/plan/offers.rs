//! Techniques that change which parameters are trained, such as `lora`. A plan shows what they would save, but never
//! chooses them.

use super::candidate::{Candidate, objection};
use super::fit::Fit;
use super::goal::Goal;
use super::search::Search;
use crate::exit::Failure;
use crate::output;
use crate::predict::trial::End;
use crate::predict::trials::How;
use crate::techniques::{Alone, Set, Technique};

impl Search<'_, '_> {
    /// The sets that each contain one of these techniques. Empty if the techniques do not suit the program.
    pub(super) fn offered(&self) -> Vec<Set> {
        let Some(base) = self.tried.candidates().first() else { return Vec::new() };
        let trial = &base.trial;
        let is_meant = trial.end == End::Ran && trial.trains && !trial.compiles && trial.grows.is_none();
        let is_asked = self.wish.goal == Goal::Fit && !base.fit.fits() && !self.is_interrupted;
        let offered = Technique::all().filter(|it| it.row().alone == Alone::Offered);
        let sets = offered.map(|it| Set::default().with(it, None));
        sets.filter(|_| is_meant && is_asked).collect()
    }

    /// Runs the program with each of these techniques alone, if the program does not fit as it is, and the model that
    /// it trains is not compiled.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn offers(&mut self) -> Result<Vec<Candidate>, Failure> {
        let sets = self.offered();
        self.ahead(&sets)?;
        let mut offers = Vec::new();
        for set in sets {
            let trial = self.trials.of(&set, How::Ample)?;
            if trial.end == End::Interrupted {
                break;
            }
            let limits = self.limits(&trial);
            let fit = match &trial.end {
                End::Ran if trial.reserved_bytes <= limits.capacity_bytes => limits.fit(trial.reserved_bytes),
                End::Ran => limits.short(trial.reserved_bytes),
                end => Fit::Unknown(objection(end)),
            };
            let cost = self.cost(&set, &trial)?;
            let offer = Candidate { set, trial, fit, caught: None, cost };
            output::progress(&super::sentences::progress(&offer));
            offers.push(offer);
        }
        Ok(offers)
    }
}
