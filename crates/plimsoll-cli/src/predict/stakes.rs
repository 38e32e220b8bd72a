//! Computes how many bytes depend on unknown values, with a second run in which the unknown values that decide sizes
//! are at their maximum. In the first run, values read from the GPU are zero, so the first run shows the minimum. If
//! all these values were already at their maximum in the first run (as for the boxes that `nms` keeps), the second run
//! uses the value 1 instead.

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
    /// program fits with zeros in place of unknown values.
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
        let open: Vec<&Read> =
            reports.iter().flat_map(|report| &report.reads).filter(|read| read.is_undecided()).collect();
        let is_open = !open.is_empty();
        let warned = reports.iter().flat_map(|report| &report.warnings).filter_map(Assumption::most);
        let mut largest: Vec<Assumption> =
            is_open.then(Assumption::largest).into_iter().chain(warned).collect();
        let are_largest = largest.len() == 1 && is_open && open.iter().all(|read| read.keeps_all_boxes());
        if largest.is_empty() || !args.assume.is_empty() || !matches!(self.verdict, Verdict::Fits { .. }) {
            return Ok(());
        }
        if are_largest {
            largest = vec![Assumption::least()];
        }
        output::progress(&format!(
            "values read from the GPU decide how much memory is needed; running again with the {} ones, to see how much",
            if are_largest { "smallest" } else { "largest" }
        ));
        let run = Run::of(args, &args.command, &target.with_more(0), session, &largest)?;
        let found = Outcome::of(&run.job, target)?;
        let ran = matches!(found.verdict, Verdict::Fits { .. } | Verdict::Grows(_) | Verdict::RunsOut(_));
        // A line whose largest value is unknown got zero again.
        let is_changed =
            found.reports.iter().flat_map(|report| &report.reads).any(|read| read.assumed.is_some())
                || largest.len() > usize::from(is_open);
        if ran && is_changed && run.job.ended != Ended::Interrupted {
            let kept = if are_largest { &mut self.with_least } else { &mut self.with_largest };
            *kept = Some(Box::new(found));
        }
        Ok(())
    }
}
