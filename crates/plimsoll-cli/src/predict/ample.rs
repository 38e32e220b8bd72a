//! A second run with more memory than the GPU has, to find out how much memory a program needs that ran out of memory
//! ([`Need`]). The simulated GPU still reports its own size to the program, and a request whose failure the program
//! caught fails again.

use super::analysis::host::Node;
use super::analysis::need::Need;
use super::analysis::verdict::Verdict;
use super::answer::Outcome;
use super::args::PredictArgs;
use super::assume::Assumption;
use super::gpu::Target;
use super::launch::ended::Ended;
use super::launch::session::Session;
use super::render::cut_loops::cut_loops;
use super::run::Run;
use crate::exit::Failure;
use crate::output;

impl Outcome {
    /// Runs the program again with more memory if it ran out of memory, or if it caught the error and may have given up
    /// because of the error.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn find_need(
        &mut self,
        args: &PredictArgs,
        target: &Target,
        session: &Session,
        assumptions: &[Assumption],
    ) -> Result<(), Failure> {
        let Some(judged) = &self.judged else { return Ok(()) };
        let (failures, has_steps) = (judged.report.failures, judged.report.steps > 0);
        let after = match &self.verdict {
            Verdict::RunsOut(_) => failures.saturating_sub(1),
            Verdict::Unknown(_) if failures > 0 => 0,
            Verdict::Fits { caught, .. } if *caught > 0 && !has_steps => 0,
            _ => return Ok(()),
        };
        output::progress(&format!(
            "the program ran out of memory; running it again with more memory than {} has, to find out how much it needs",
            target.name
        ));
        let run = Run::of(args, &args.command, &target.with_more(after), session, assumptions)?;
        if run.job.ended == Ended::Interrupted {
            return Ok(());
        }
        let mut ample = Outcome::of(&run.job, target)?;
        // The run with more memory gets further, so it may also need more host memory.
        if ample.host.as_ref().map(Node::must_bytes) > self.host.as_ref().map(Node::must_bytes) {
            self.host = ample.host.take();
        }
        let Some(judged) = ample.judged else { return Ok(()) };
        if matches!(self.verdict, Verdict::Fits { .. }) {
            if judged.report.steps == 0 {
                return Ok(());
            }
            self.gave_up();
        }
        let is_well = matches!(ample.verdict, Verdict::Fits { .. } | Verdict::Grows(_));
        let end_bytes = ample.growth.as_ref().and_then(|growth| growth.end_bytes);
        let (peaks, capacity_bytes) =
            (judged.peaks, target.charged(judged.peaks.outside_bytes).capacity_bytes());
        // If the process's total memory peaked at a different moment than PyTorch's memory, the program needs the
        // process's peak.
        let is_apart = end_bytes.is_none() && peaks.peaks_apart();
        let is_more = peaks.allocated_bytes > capacity_bytes;
        let measured_bytes = match (is_apart, is_more) {
            (true, _) => peaks.counted_bytes() + peaks.outside_bytes.unwrap_or(0),
            (_, true) => peaks.allocated_bytes,
            _ => peaks.reserved_bytes,
        };
        let offered_bytes = if is_apart { target.limit_bytes() } else { capacity_bytes };
        let bytes = measured_bytes.max(end_bytes.unwrap_or(0));
        let more_bytes = bytes.saturating_sub(offered_bytes);
        if more_bytes > 0 {
            let cut = cut_loops(&ample.reports);
            let growth = ample.growth;
            self.need = Some(Need { judged, bytes, more_bytes, is_least: !is_well, growth, cut });
        }
        Ok(())
    }
}
