//! The smallest memory limit under which a job runs, found by running it on the simulated device.
//!
//! It would be wrong to just add the missing bytes to the limit, because with more memory the allocator places all
//! later requests differently. So the job itself runs under one limit after another, and the printed limit is one under
//! which it succeeded. A run on the simulated device takes a fraction of a second, and stops when epochs begin to
//! repeat (Note [Repeating epochs] in `run.rs`).

use plimsoll::SimConfig;

use super::job::{Error, Job};
use super::simulated::run_on;

/// Reserved bytes are multiples of this, so there is no need to try limits in between.
pub(crate) const GRAIN_BYTES: u64 = 2 << 20;

/// A limit that was tested, and the job's reserved bytes under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Smallest {
    /// The job succeeds with this limit and fails with [`GRAIN_BYTES`] less.
    pub(crate) limit_bytes: u64,
    /// Whether the device itself has that much memory.
    pub(crate) fits_device: bool,
    /// How many limits were tried.
    pub(crate) tried: u32,
}

/// The smallest limit for `job` on a device like `sim` of any size; `None` if the job fails for a reason other than
/// memory.
pub(crate) fn limit(job: &Job, sim: &SimConfig, capacity_bytes: u64) -> Option<Smallest> {
    let mut tried = 0;
    let mut passes = |limit: u64| {
        tried += 1;
        passes(job, sim, limit).is_ok_and(|passes| passes)
    };
    let mut enough = reserved(job, sim).ok()?.next_multiple_of(GRAIN_BYTES);
    // A limit of zero certainly fails.
    let mut too_little = 0;
    while enough - too_little > GRAIN_BYTES {
        let middle = too_little + (enough - too_little) / (2 * GRAIN_BYTES) * GRAIN_BYTES;
        if passes(middle) { enough = middle } else { too_little = middle }
    }
    Some(Smallest { limit_bytes: enough, fits_device: enough <= capacity_bytes, tried: tried + 1 })
}

/// Whether the whole job runs with this limit on a device like `sim` of any size.
///
/// # Errors
/// The errors of the job, except out of memory.
pub(super) fn passes(job: &Job, sim: &SimConfig, limit: u64) -> Result<bool, Error> {
    match run_on(job, sim, Some(limit)) {
        Ok(_) => Ok(true),
        Err(Error::Tensor(error)) if error.out_of_memory().is_some() => Ok(false),
        Err(other) => Err(other),
    }
}

/// The bytes that the whole job reserves without a limit: as many as it can ever use, so it succeeds with a limit of that size.
///
/// # Errors
/// The errors of the job.
pub(super) fn reserved(job: &Job, sim: &SimConfig) -> Result<u64, Error> {
    Ok(run_on(job, sim, None)?.memory.peak_reserved_bytes)
}
