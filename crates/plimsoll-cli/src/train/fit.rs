//! `--fit SIZE`: finds the fastest techniques with which a job needs at most that much memory. They are found by
//! simulated runs of a few steps each.

use plimsoll::fit::{self, FitOptions, Fitted, Numbers, Searched, Simulated};
use plimsoll::{Bytes, SimConfig};
use plimsoll_trace::render::words::counted;

use super::job::{Error, Job};
use super::simulated::simulated;
use super::smallest;
use super::techniques::{Chosen, Techniques};
use crate::exit::{Exit, Failure};
use crate::output;

/// If the first steps fit but a later one does not, the search is repeated with this fraction of the limit, at most
/// this many times.
const LESS: (f64, u32) = (0.97, 5);

/// The size of the message in which the first rank sends techniques: ranks exchange messages of the same size.
const MESSAGE: usize = 512;

/// Sets the job's techniques to the fastest with which it reserves at most `limit` bytes on a device like `sim`.
///
/// # Errors
/// If nothing fits, with the least memory that the job needs; also the errors of the job.
pub(super) fn fit(job: &mut Job, sim: &SimConfig, limit: u64, numbers: Numbers) -> Result<Chosen, Failure> {
    output::progress(&format!("looking for the fastest way to train within {}", Bytes(limit)));
    let base = job.techniques;
    let (mut within, mut runs) = (limit, Runs::default());
    loop {
        let searched = runs.search(job, sim, within, numbers)?;
        let least = searched.least().map(|tried| tried.techniques);
        let Some(found) = searched.fitted().filter(|_| runs.searches <= LESS.1) else {
            job.techniques = least.unwrap_or(base);
            return Err(too_small(job, sim, limit)?);
        };
        job.techniques = found.techniques;
        if smallest::passes(job, sim, limit)? {
            let free_s = runs.seconds(&base).unwrap_or(found.takes.seconds);
            let times_as_long = found.takes.seconds / free_s.max(f64::MIN_POSITIVE);
            let runs = runs.count + runs.searches;
            output::progress(&sentence(&found, &base, runs, times_as_long));
            return Ok(Chosen { limit_bytes: limit, runs, times_as_long, base, tried: found.tried });
        }
        job.techniques = base;
        within = (within as f64 * LESS.0) as u64;
    }
}

/// [`fit`] on several ranks: the first rank searches, and all ranks use its result, because all must recompute the same
/// blocks.
///
/// # Errors
/// The errors of [`fit`] on the first rank; also if a rank is lost.
pub(super) fn fit_all(
    job: &mut Job,
    sim: &SimConfig,
    limit: u64,
    numbers: Numbers,
) -> Result<Chosen, Failure> {
    let (is_first, base) = (job.group.rank() == 0, job.techniques);
    let own = if is_first { Some(fit(job, sim, limit, numbers)?) } else { None };
    let damaged =
        |why: serde_json::Error| Failure::new(Exit::RankLost, format!("techniques of --fit: {why}"));
    let mut message = serde_json::to_vec(&job.techniques).map_err(damaged)?;
    message.resize(MESSAGE, b' ');
    let all = job.group.all_gather_bytes(&message, "techniques of --fit")?;
    job.techniques = serde_json::from_slice(&all[0]).map_err(damaged)?;
    Ok(own.unwrap_or(Chosen { limit_bytes: limit, runs: 0, times_as_long: 1.0, base, tried: Vec::new() }))
}

/// The simulated runs of a job: those without a limit serve all searches.
#[derive(Default)]
pub(super) struct Runs {
    known: Vec<(Techniques, Option<Simulated>)>,
    /// The number of runs.
    count: u32,
    /// The number of searches.
    searches: u32,
}

impl Runs {
    /// The sets of techniques with which some steps of the job reserve at most `limit` bytes, the fastest first, and
    /// others that were tried. Does not change the job's own techniques, which all sets contain.
    ///
    /// # Errors
    /// The errors of the job, except out of memory.
    pub(super) fn search(
        &mut self,
        job: &mut Job,
        sim: &SimConfig,
        limit: u64,
        numbers: Numbers,
    ) -> Result<Searched, Failure> {
        self.search_of(job, sim, limit, &job.fit_options(numbers))
    }

    /// [`Runs::search`] with these options.
    ///
    /// # Errors
    /// The errors of the job, except out of memory.
    pub(super) fn search_of(
        &mut self,
        job: &mut Job,
        sim: &SimConfig,
        limit: u64,
        options: &FitOptions,
    ) -> Result<Searched, Failure> {
        self.searches += 1;
        let before = job.techniques;
        let found = fit::search(limit, options, |techniques, limit| {
            job.techniques = *techniques;
            self.run(job, sim, limit)
        });
        job.techniques = before;
        Ok(found?)
    }

    /// The memory and time of some steps of the job; `None` if they need more than `limit` bytes, including the memory outside
    /// of the allocator.
    ///
    /// # Errors
    /// The errors of the job, except out of memory.
    pub(super) fn within(
        &mut self,
        job: &mut Job,
        sim: &SimConfig,
        limit: u64,
    ) -> Result<Option<Simulated>, Failure> {
        let Some(takes) = self.run(job, sim, None)? else { return Ok(None) };
        let limit = limit.saturating_sub(takes.outside_bytes);
        if takes.reserved_bytes <= limit {
            return Ok(Some(takes));
        }
        // The allocator returns cached memory when it runs out.
        let is_hopeless = takes.allocated_bytes > limit;
        Ok(if is_hopeless { None } else { self.run(job, sim, Some(limit))? })
    }

    /// The memory and time of some steps of the job; `None` if it runs out of memory.
    ///
    /// # Errors
    /// The errors of the job, except out of memory.
    pub(super) fn run(
        &mut self,
        job: &mut Job,
        sim: &SimConfig,
        limit: Option<u64>,
    ) -> Result<Option<Simulated>, Error> {
        let known = self.known.iter().find(|(techniques, _)| *techniques == job.techniques);
        if let (Some((_, takes)), None) = (known, limit) {
            return Ok(*takes);
        }
        self.count += 1;
        let takes = match simulated(job, sim, limit) {
            Ok(takes) => Some(takes),
            Err(Error::Tensor(error)) if fit::is_too_little(&error) => None,
            Err(other) => return Err(other),
        };
        if limit.is_none() {
            self.known.push((job.techniques, takes));
        }
        Ok(takes)
    }

    /// The time of a step with these techniques, if it is known.
    fn seconds(&self, techniques: &Techniques) -> Option<f64> {
        self.known.iter().find(|(known, _)| known == techniques)?.1.map(|takes| takes.seconds)
    }
}

fn sentence(found: &Fitted, base: &Techniques, runs: u32, times_as_long: f64) -> String {
    let added = found.techniques.beyond(base);
    if added.iter().next().is_none() {
        return format!("fits as it is: {} reserved", Bytes(found.takes.reserved_bytes));
    }
    let change = 100.0 * (times_as_long - 1.0);
    format!(
        "chosen of {}: {}, with which a step takes about {:.1} % {} than with enough memory, numbers {}",
        counted(u64::from(runs), "simulated run"),
        added.options().join(" "),
        change.abs(),
        if change < 0.0 { "less" } else { "longer" },
        added.numbers().name()
    )
}

/// The failure of a job that does not fit, with the lowest need that was found.
fn too_small(job: &Job, sim: &SimConfig, limit: u64) -> Result<Failure, Failure> {
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
