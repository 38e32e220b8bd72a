//! `--fit SIZE`: finds the fastest techniques with which a job needs at most that much memory. They are found by
//! simulated runs of a few steps each.

use plimsoll::checkpoint::Budget;
use plimsoll::fit::{self, FitOptions, Fitted};
use plimsoll::{Bytes, SimConfig};
use plimsoll_trace::render::words::counted;

use super::job::{Error, Job};
use super::simulated::simulated;
use super::smallest;
use super::techniques::{Chosen, Techniques, options};
use crate::exit::{Exit, Failure};
use crate::output;

/// If the first steps fit but a later one does not, the search is repeated with this fraction of the limit, at most
/// this many times.
const LESS: (f64, u32) = (0.97, 5);

/// Sets the job's techniques to the fastest with which it reserves at most `limit` bytes on a device like `sim`.
///
/// # Errors
/// If nothing fits, with the least memory that the job needs; also the errors of the job.
pub(super) fn fit(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Chosen, Failure> {
    output::progress(&format!("looking for the fastest way to train within {}", Bytes(limit)));
    let free = simulated(job, sim, None)?;
    let (mut within, mut runs) = (limit, 1);
    for _ in 0..LESS.1 {
        let Some(found) = search(job, sim, within)? else { break };
        job.techniques = found.techniques;
        runs += found.runs + 1;
        if smallest::passes(job, sim, limit)? {
            let times_as_long = found.takes.seconds / free.seconds.max(f64::MIN_POSITIVE);
            output::progress(&chosen(&found, runs, times_as_long));
            return Ok(Chosen { limit_bytes: limit, runs, times_as_long });
        }
        within = (within as f64 * LESS.0) as u64;
    }
    Err(too_small(job, sim, limit)?)
}

/// [`fit`] on several ranks: the first rank searches, and all ranks use its result, because all must recompute the same
/// blocks.
///
/// # Errors
/// The errors of [`fit`] on the first rank; also if a rank is lost.
pub(super) fn fit_all(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Chosen, Failure> {
    let is_first = job.group.rank() == 0;
    let own = if is_first { Some(fit(job, sim, limit)?) } else { None };
    let Techniques { activations, accumulate, offload } = job.techniques;
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
    job.techniques = Techniques { activations, offload, accumulate: number(2) as usize };
    Ok(own.unwrap_or(Chosen { limit_bytes: limit, runs: 0, times_as_long: 1.0 }))
}

fn chosen(found: &Fitted, runs: u32, times_as_long: f64) -> String {
    let options = options(&found.techniques);
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

/// The fastest techniques with which some steps of the job reserve at most `limit` bytes. Does not change the job's own
/// techniques.
pub(super) fn search(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Option<Fitted>, Failure> {
    let before = job.techniques;
    let options = FitOptions {
        has_blocks: job.can_checkpoint(),
        offload: before.offload,
        most_parts: job.parts(),
        has_exact_parts: job.task.has_exact_parts(),
    };
    let found = fit::search(limit, options, |techniques| {
        job.techniques = *techniques;
        match simulated(job, sim, Some(limit)) {
            Ok(takes) => Ok(Some(takes)),
            Err(Error::Tensor(error)) if fit::is_too_little(&error) => Ok(None),
            Err(other) => Err(other.into()),
        }
    });
    job.techniques = before;
    found
}

/// The failure of a job that does not fit, with the lowest need that was found.
fn too_small(job: &mut Job, sim: &SimConfig, limit: u64) -> Result<Failure, Failure> {
    let activations = job.can_checkpoint().then_some(Budget::Auto);
    let offload = job.techniques.offload;
    job.techniques = Techniques { activations, offload, accumulate: job.parts() };
    let options = options(&job.techniques).join(" ");
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
