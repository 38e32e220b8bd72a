//! A second run, to compute how many bytes depend on unknown values: those that decide sizes get their largest value.
//! Device values are zero in the first run, so it shows the minimum.

use std::time::Duration;

use super::analysis::verdict::Verdict;
use super::answer::Outcome;
use super::args::PredictArgs;
use super::assume::Assumption;
use super::gpu::Target;
use super::launch::ended::Ended;
use super::launch::session::Session;
use super::run::Run;
use crate::exit::Failure;
use crate::output;
use crate::protocol::Read;

/// If the first run took longer than this, there is no second run.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

impl Outcome {
    /// Runs the program again with the largest value at each line where an unknown value decides a size, if the
    /// program fits with zeros in their place.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn find_stakes(
        &mut self,
        args: &PredictArgs,
        target: &Target,
        session: &Session,
    ) -> Result<(), Failure> {
        let reports = &self.reports;
        let is_open = reports.iter().flat_map(|report| &report.reads).any(Read::is_undecided);
        let warned = reports.iter().flat_map(|report| &report.warnings).filter_map(Assumption::most);
        let largest: Vec<Assumption> = is_open.then(Assumption::largest).into_iter().chain(warned).collect();
        if largest.is_empty() || !args.assume.is_empty() || !matches!(self.verdict, Verdict::Fits { .. }) {
            return Ok(());
        }
        output::progress(
            "values read from the GPU decide how much memory is needed; running again with the largest ones, to see how much",
        );
        let run = Run::of(args, &args.command, &target.with_more(0), session, &largest)?;
        let found = Outcome::of(&run.job, target)?;
        let ran = matches!(found.verdict, Verdict::Fits { .. } | Verdict::Grows(_) | Verdict::RunsOut(_));
        // Lines without a known largest value get zero again.
        let is_larger =
            found.reports.iter().flat_map(|report| &report.reads).any(|read| read.assumed.is_some())
                || largest.len() > usize::from(is_open);
        if ran && is_larger && run.job.ended != Ended::Interrupted {
            self.with_largest = Some(Box::new(found));
        }
        Ok(())
    }
}
