//! More runs, with added lines that free memory that is live at the peak but not needed there ([`Savings`]). The
//! printed peaks are measured in these runs. The program sees its own source with these lines, as if the user had
//! pasted them.

use std::time::{Duration, Instant};

use super::analysis::verdict::Verdict;
use super::analysis::waste::{Freed, LONGEST, Saving, Savings, least_bytes, replaced, worthwhile};
use super::answer::Outcome;
use super::args::PredictArgs;
use super::gpu::Target;
use super::launch::ended::Ended;
use super::launch::session::Session;
use super::run::Run;
use crate::output;
use crate::protocol::Waste;

impl Outcome {
    /// If the program has memory at the peak that it does not need, and its first run took no longer than [`LONGEST`]:
    /// runs the program again with the lines that free this memory, with all lines together and with each line alone.
    pub(super) fn find_savings(
        &mut self,
        args: &PredictArgs,
        target: &Target,
        session: &Session,
        took: Duration,
    ) {
        let is_known = matches!(self.verdict, Verdict::Fits { .. } | Verdict::RunsOut(_) | Verdict::Grows(_));
        let Some(judged) = self.measured().filter(|_| is_known) else { return };
        let before_bytes = judged.peaks.allocated_bytes;
        let rows = worthwhile(&judged.report.waste, before_bytes);
        if rows.is_empty() {
            return;
        }
        if took > LONGEST || args.writes.allow_writes {
            let rows = rows.into_iter().map(|waste| Saving { waste, alone: None }).collect();
            self.savings = Some(Savings { before_bytes, rows, together: None });
            return;
        }
        output::progress(
            "some memory that is live at the peak is never read again; running again with lines that free it",
        );
        let mut trials = Trials {
            args,
            target,
            session,
            before_bytes,
            most_bytes: before_bytes.saturating_sub(least_bytes(before_bytes)),
            began: Instant::now(),
            is_interrupted: false,
        };
        let found = trials.rows(&rows);
        self.savings = found.map(|(rows, together)| Savings { before_bytes, rows, together: Some(together) });
    }
}

/// Runs with added lines.
struct Trials<'a> {
    args: &'a PredictArgs,
    target: &'a Target,
    session: &'a Session,
    /// The peak without new lines.
    before_bytes: u64,
    /// If a run's peak is higher than this, the run's lines do not count as a saving.
    most_bytes: u64,
    began: Instant,
    /// Whether the user has ended a run. If so, there are no more runs.
    is_interrupted: bool,
}

impl Trials<'_> {
    /// Tries these rows. Returns the rows that lower the peak, and the peaks with the lines of all of them; `None` if
    /// no row lowers the peak.
    fn rows(&mut self, rows: &[Waste]) -> Option<(Vec<Saving>, Freed)> {
        let all: Vec<&Waste> = rows.iter().collect();
        let together = self.run(&all);
        let before_bytes = self.before_bytes;
        let saving = |waste: &Waste, alone: Option<Freed>| {
            // The program may have been examined before its highest peak.
            let freed_bytes = alone.map_or(0, |freed| before_bytes - freed.allocated_bytes);
            Saving { waste: Waste { bytes: waste.bytes.max(freed_bytes), ..waste.clone() }, alone }
        };
        if let [waste] = rows {
            return Some((vec![saving(waste, together)], together?));
        }
        let alone = |waste: &Waste| {
            let alone = if self.began.elapsed() < LONGEST { self.run(&[waste]) } else { None };
            saving(waste, alone)
        };
        let rows: Vec<Saving> = rows.iter().map(alone).collect();
        let single: Vec<&Saving> = rows.iter().filter(|row| row.alone.is_some()).collect();
        // Lines that save nothing alone may save memory together, for example if two names refer to one tensor.
        let without = match &single[..] {
            [] => None,
            [one] => one.alone,
            some if some.len() == rows.len() => together,
            some => self.run(&some.iter().map(|row| &row.waste).collect::<Vec<_>>()),
        };
        let level = |freed: Option<Freed>| freed.map_or(u64::MAX, |it| it.allocated_bytes);
        match (without, together) {
            (Some(freed), _) if level(without) <= level(together) => {
                Some((single.into_iter().cloned().collect(), freed))
            }
            (_, Some(freed)) => Some((rows, freed)),
            _ => None,
        }
    }

    /// Runs the program with these lines. Returns the peaks; `None` if the lines save nothing, or the program fails
    /// with them.
    fn run(&mut self, lines: &[&Waste]) -> Option<Freed> {
        if self.is_interrupted {
            return None;
        }
        let mut args = self.args.clone();
        args.writes.replaced = replaced(lines).ok()?;
        args.quiet = true;
        let mut run = |target: &Target| {
            let run = Run::of(&args, &args.command, target, self.session, &args.assume).ok()?;
            self.is_interrupted = run.job.ended == Ended::Interrupted;
            Outcome::of(&run.job, target).ok()
        };
        let mut found = run(self.target)?;
        let fits = matches!(found.verdict, Verdict::Fits { .. });
        if matches!(found.verdict, Verdict::RunsOut(_)) {
            found = run(&self.target.with_more(0))?;
        }
        if !matches!(found.verdict, Verdict::Fits { .. } | Verdict::Grows(_) | Verdict::RunsOut(_)) {
            return None;
        }
        let peaks = found.judged?.peaks;
        let (allocated_bytes, reserved_bytes) = (peaks.allocated_bytes, peaks.reserved_bytes);
        (allocated_bytes <= self.most_bytes).then_some(Freed { allocated_bytes, reserved_bytes, fits })
    }
}
