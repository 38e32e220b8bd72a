//! `--fit SIZE`: the techniques with which a job takes at most that much memory and the least time. They are found by running
//! the job on the simulated device, some steps at a time.

use plimsoll::checkpoint::Budget;
use plimsoll::{Bytes, SimConfig};
use plimsoll_trace::render::words::counted;

use super::job::{Error, Job};
use super::simulated::{Simulated, simulated};
use super::smallest;
use super::techniques::{Fitted, Techniques};
use crate::exit::{Exit, Failure};
use crate::output;

/// The first budgets that are tried, as parts of the limit.
const PARTS: [f64; 12] = [0.95, 0.85, 0.75, 0.65, 0.55, 0.45, 0.35, 0.25, 0.18, 0.12, 0.06, 0.03];
/// How often the interval between a budget that fits and a larger one that does not is halved.
const HALVINGS: u32 = 5;

/// The fastest techniques that were found, and what the job takes with them.
pub(super) struct Found {
    pub(super) techniques: Techniques,
    pub(super) takes: Simulated,
    /// The number of simulated runs.
    pub(super) runs: u32,
}

struct Search<'a> {
    job: &'a mut Job,
    sim: &'a SimConfig,
    limit: u64,
    runs: u32,
    best: Option<(Techniques, Simulated)>,
}

/// If the first steps fit but a later one does not, the search is repeated with this part of the limit, so many times.
const LESS: (f64, u32) = (0.97, 5);

/// Sets the job's techniques to the fastest with which it reserves at most `limit` bytes on a device like `sim`.
///
/// # Errors
/// Nothing fits, with what the job needs at least; the errors of the job.
pub(super) fn fit(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Fitted, Failure> {
    output::progress(&format!("looking for the fastest way to train within {}", Bytes(limit)));
    let free = simulated(job, sim, None)?;
    let (mut within, mut runs) = (limit, 1);
    for _ in 0..LESS.1 {
        let Some(found) = search(job, sim, within)? else { break };
        job.techniques = found.techniques;
        runs += found.runs + 1;
        if smallest::passes(job, sim, limit)? {
            let times_as_long = found.takes.step_s / free.step_s.max(f64::MIN_POSITIVE);
            output::progress(&chosen(&found, runs, times_as_long));
            return Ok(Fitted { limit_bytes: limit, runs, times_as_long });
        }
        within = (within as f64 * LESS.0) as u64;
    }
    Err(too_small(job, sim, limit)?)
}

/// [`fit`] on several ranks: the first one searches, and all use what it found, since ranks must compute the same pieces again.
///
/// # Errors
/// The errors of [`fit`] on the first rank; a lost rank.
pub(super) fn fit_all(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Fitted, Failure> {
    let is_first = job.group.rank() == 0;
    let own = if is_first { Some(fit(job, sim, limit)?) } else { None };
    let Techniques { activations, accumulate } = job.techniques;
    let (kind, bytes) = match activations {
        None => (0, 0),
        Some(Budget::Bytes(bytes)) => (1, bytes),
        Some(_) => (2, 0),
    };
    let message = [kind, bytes, accumulate as u64].map(u64::to_le_bytes);
    let all = job.group.all_gather_bytes(message.as_flattened(), "techniques of --fit")?;
    let number = |i: usize| all[0][8 * i..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let activations = match number(0) {
        0 => None,
        1 => Some(Budget::Bytes(number(1))),
        _ => Some(Budget::Auto),
    };
    job.techniques = Techniques { activations, accumulate: number(2) as usize };
    Ok(own.unwrap_or(Fitted { limit_bytes: limit, runs: 0, times_as_long: 1.0 }))
}

fn chosen(found: &Found, runs: u32, times_as_long: f64) -> String {
    let options = found.techniques.options();
    if options.is_empty() {
        return format!("fits as it is: {} reserved", Bytes(found.takes.reserved_bytes));
    }
    format!(
        "chosen of {}: {}, with which a step takes about {:.1} % longer than with enough memory",
        counted(u64::from(runs), "simulated run"),
        options.join(" "),
        100.0 * (times_as_long - 1.0)
    )
}

/// The fastest techniques with which some steps of the job reserve at most `limit` bytes. The job keeps its own.
pub(super) fn search(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Option<Found>, Failure> {
    let before = job.techniques;
    let mut search = Search { job, sim, limit, runs: 0, best: None };
    let mut accumulate = 1;
    let parts = search.job.parts();
    loop {
        // Without batch statistics, parts of a batch give the same gradients. With them, they are the last resort.
        let is_needed = search.best.is_none() || search.job.task.has_exact_parts();
        if !is_needed || search.all_of(accumulate)? {
            break;
        }
        if accumulate == parts {
            break;
        }
        accumulate = (2 * accumulate).min(parts);
    }
    let Search { job, runs, best, .. } = search;
    job.techniques = before;
    Ok(best.map(|(techniques, takes)| Found { techniques, takes, runs }))
}

impl Search<'_> {
    /// Tries what fits with batches in this many parts. Returns whether more parts cannot be faster, because these fit without any
    /// other technique.
    fn all_of(&mut self, accumulate: usize) -> Result<bool, Failure> {
        if self.fits(Techniques { activations: None, accumulate })? {
            return Ok(true);
        }
        if !self.job.can_checkpoint() {
            return Ok(false);
        }
        let budget = |bytes: u64| Techniques { activations: Some(Budget::Bytes(bytes)), accumulate };
        // The largest budget that fits computes the least again.
        let (mut most, mut least) = (self.limit, 0);
        for part in PARTS {
            let bytes = (self.limit as f64 * part) as u64;
            if self.fits(budget(bytes))? {
                least = bytes;
                break;
            }
            most = bytes;
        }
        if least == 0 {
            self.fits(Techniques { activations: Some(Budget::Auto), accumulate })?;
            return Ok(false);
        }
        for _ in 0..HALVINGS {
            let middle = (least + (most - least) / 2).next_multiple_of(1 << 20).min(most);
            if self.fits(budget(middle))? { least = middle } else { most = middle }
        }
        Ok(false)
    }

    /// Whether the job fits with these techniques. If so, they may be the best so far.
    fn fits(&mut self, techniques: Techniques) -> Result<bool, Failure> {
        self.runs += 1;
        self.job.techniques = techniques;
        let takes = match simulated(self.job, self.sim, Some(self.limit)) {
            Ok(takes) => takes,
            Err(Error::Tensor(error)) if is_too_little(&error) => return Ok(false),
            Err(other) => return Err(other.into()),
        };
        if self.best.as_ref().is_none_or(|(_, best)| takes.step_s < best.step_s) {
            self.best = Some((techniques, takes));
        }
        Ok(true)
    }
}

/// Whether memory ran out, or a budget is below what any schedule keeps.
fn is_too_little(error: &plimsoll::Error) -> bool {
    error.out_of_memory().is_some()
        || matches!(error, plimsoll::Error::Argument { op: "checkpoint_sequential", .. })
}

/// The failure of a job that does not fit, with the least that was found.
fn too_small(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Failure, Failure> {
    let activations = job.can_checkpoint().then_some(Budget::Auto);
    job.techniques = Techniques { activations, accumulate: job.parts() };
    let options = job.techniques.options().join(" ");
    let needs = smallest::reserved(job, sim)?;
    let with = if options.is_empty() { String::new() } else { format!(" with {options}") };
    let message = format!(
        "does not fit in {}: it reserves {}{with}; try {}",
        Bytes(limit),
        Bytes(needs),
        job.task.smaller()
    );
    Ok(Failure::new(Exit::OutOfMemory, message))
}
