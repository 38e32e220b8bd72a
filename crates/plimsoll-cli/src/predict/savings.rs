//! Further runs with lines that free memory that is live at the peak but not needed there ([`Savings`]). The printed
//! peaks are those of these runs. In the program's view of the file system, its source contains the lines, as if they
//! were pasted.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::analysis::verdict::Verdict;
use super::analysis::waste::{Freed, Saving, Savings, replaced};
use super::answer::Outcome;
use super::args::PredictArgs;
use super::gpu::Target;
use super::launch::ended::Ended;
use super::launch::session::Session;
use super::run::Run;
use crate::output;
use crate::protocol::Waste;

/// If the first run took longer than this, there is no further one.
const LONGEST: Duration = Duration::from_secs(60);

/// The maximum number of rows to try.
const MOST: usize = 4;

/// A line that lowers the peak by less than the peak divided by this is left out.
const LEAST_PART: u64 = 100;

/// Less than this is not worth a run.
const LEAST_BYTES: u64 = 8 << 20;

impl Outcome {
    /// Runs the program again with the lines that free memory, all of them and each alone, if it reports such memory and
    /// its first run took no longer than [`LONGEST`].
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
        let least_bytes = (before_bytes / LEAST_PART).max(LEAST_BYTES);
        let rows = judged.report.waste.iter().filter(|row| row.bytes >= least_bytes).take(MOST);
        let rows: Vec<Waste> = rows.cloned().collect();
        if rows.is_empty() {
            return;
        }
        let is_tried = took <= LONGEST && !args.writes.allow_writes;
        let trials = Trials {
            args,
            target,
            session,
            most_bytes: before_bytes.saturating_sub(least_bytes),
            began: Instant::now(),
            is_interrupted: Cell::new(false),
        };
        if is_tried {
            output::progress("some memory at the peak is not read again; running again without it");
        }
        let found = if is_tried { trials.rows(&rows) } else { Some((untried(&rows), None)) };
        self.savings = found.map(|(rows, together)| Savings { before_bytes, rows, together });
    }
}

fn untried(rows: &[Waste]) -> Vec<Saving> {
    rows.iter().map(|waste| Saving { waste: waste.clone(), alone_bytes: None }).collect()
}

/// Runs of the program with additional lines.
struct Trials<'a> {
    args: &'a PredictArgs,
    target: &'a Target,
    session: &'a Session,
    /// The highest peak that counts as a gain.
    most_bytes: u64,
    began: Instant,
    /// Whether the user has ended a run; if so, no other follows.
    is_interrupted: Cell<bool>,
}

impl Trials<'_> {
    /// The rows that lower the peak, and the peaks with all of them; `None` if there are none.
    fn rows(&self, rows: &[Waste]) -> Option<(Vec<Saving>, Option<Freed>)> {
        let all: Vec<&Waste> = rows.iter().collect();
        let together = self.run(&all);
        if let [waste] = rows {
            let alone_bytes = Some(together?.allocated_bytes);
            return Some((vec![Saving { waste: waste.clone(), alone_bytes }], together));
        }
        let alone = |waste: &Waste| {
            let freed = if self.began.elapsed() < LONGEST { self.run(&[waste]) } else { None };
            (Saving { waste: waste.clone(), alone_bytes: freed.map(|it| it.allocated_bytes) }, freed)
        };
        let gains: Vec<(Saving, Option<Freed>)> = rows.iter().map(alone).collect();
        let single: Vec<&(Saving, Option<Freed>)> = gains.iter().filter(|it| it.1.is_some()).collect();
        // Lines that gain nothing alone may do so together, for example those for two names of one tensor.
        let without = match &single[..] {
            [] => None,
            [one] => one.1,
            some if some.len() == rows.len() => together,
            some => self.run(&some.iter().map(|it| &it.0.waste).collect::<Vec<_>>()),
        };
        let level = |freed: Option<Freed>| freed.map_or(u64::MAX, |it| it.allocated_bytes);
        let is_enough = level(without) <= level(together);
        let rows = |kept: Vec<&(Saving, Option<Freed>)>| kept.into_iter().map(|it| it.0.clone()).collect();
        match (without, together) {
            (Some(freed), _) if is_enough => Some((rows(single), Some(freed))),
            (_, Some(freed)) => Some((rows(gains.iter().collect()), Some(freed))),
            _ => None,
        }
    }

    /// The peaks with these lines; `None` if they gain nothing, or the program fails with them.
    fn run(&self, lines: &[&Waste]) -> Option<Freed> {
        if self.is_interrupted.get() {
            return None;
        }
        let mut args = self.args.clone();
        args.writes.replaced = replaced(lines).ok()?;
        args.quiet = true;
        let run = |target: &Target| {
            let run = Run::of(&args, &args.command, target, self.session, &args.assume).ok()?;
            self.is_interrupted.set(run.job.ended == Ended::Interrupted);
            Outcome::of(&run.job, target).ok()
        };
        let mut found = run(self.target)?;
        let fits = matches!(found.verdict, Verdict::Fits { .. } | Verdict::Grows(_));
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
