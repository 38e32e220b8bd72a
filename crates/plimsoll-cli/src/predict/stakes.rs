//! A second run with the largest values where unknown ones decide sizes, for the bytes at stake. Values of the device are zero here, so
//! the first run shows the least.

use std::collections::BTreeSet;
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

/// The longest first run after which there is a second one.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

impl Outcome {
    /// Runs the program again with the largest value of each line where an unknown one decides a size, if it fits without them.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn find_stakes(
        &mut self,
        args: &PredictArgs,
        target: &Target,
        session: &Session,
    ) -> Result<(), Failure> {
        let open: BTreeSet<(&str, u64)> = self
            .reports
            .iter()
            .flat_map(|report| &report.reads)
            .filter_map(|read| read.undecided())
            .collect();
        if open.is_empty() || !args.assume.is_empty() || !matches!(self.verdict, Verdict::Fits { .. }) {
            return Ok(());
        }
        output::progress(
            "values of the device decide sizes; running again with the largest ones, for the bytes at stake",
        );
        let largest: Vec<Assumption> =
            open.into_iter().map(|(file, line)| Assumption::largest(file, line)).collect();
        let run = Run::of(args, &args.command, &target.with_more(0), session, &largest)?;
        let largest = Outcome::of(&run.job, target)?;
        let ran = matches!(largest.verdict, Verdict::Fits { .. } | Verdict::Grows(_) | Verdict::RunsOut(_));
        let has_problems = largest.reports.iter().any(|report| !report.problems.is_empty());
        if ran && !has_problems && run.job.ended != Ended::Interrupted {
            self.with_largest = Some(Box::new(largest));
        }
        Ok(())
    }
}
