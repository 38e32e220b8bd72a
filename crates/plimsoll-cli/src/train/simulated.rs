//! A job on a simulated device of any size: [`run_on`], and a few steps of it: [`simulated`].

use plimsoll::fit::Simulated;
use plimsoll::{Device, SimConfig};

use super::job::{Error, Job, Outcome};
use super::stop::Stop;

/// Steps of a run: after the first ones, optimizer state exists and units are gathered ahead.
const STEPS: u64 = 4;
/// The GPU by which the time of a step is compared if the device's own rates are unknown.
const TIMED: &str = "H200";

/// Runs the whole job on a device like `sim`, of any size, that reserves at most `limit` bytes.
///
/// # Errors
/// The errors of the job, such as out of memory.
pub(super) fn run_on(job: &Job, sim: &SimConfig, limit: Option<u64>) -> Result<Outcome, Error> {
    let mut sim = sim.clone();
    sim.capacity_bytes = u64::MAX / 4;
    let device = Device::sim(sim);
    device.set_memory_limit(limit);
    job.run(&device, &mut (), None, &Stop::default())
}

/// The memory and time that a few steps of the job, and its test, need on a device like `sim` that reserves at most
/// `limit` bytes. The time is that of a step.
///
/// # Errors
/// The errors of the job, such as out of memory.
pub(super) fn simulated(job: &mut Job, sim: &SimConfig, limit: Option<u64>) -> Result<Simulated, Error> {
    let length = job.length;
    job.length.steps = Some(length.steps.map_or(STEPS, |steps| steps.min(STEPS)));
    let result = measured(job, sim, limit);
    job.length = length;
    result
}

fn measured(job: &Job, sim: &SimConfig, limit: Option<u64>) -> Result<Simulated, Error> {
    let Outcome { memory, estimated_step, .. } = run_on(job, sim, limit)?;
    let step = match estimated_step {
        Some(step) => Some(step),
        None => run_on(job, &SimConfig::like(TIMED)?, None)?.estimated_step,
    };
    Ok(Simulated {
        allocated_bytes: memory.peak_allocated_bytes,
        reserved_bytes: memory.peak_reserved_bytes,
        outside_bytes: memory.outside_bytes.unwrap_or(0),
        seconds: step.map_or(0.0, |step| step.as_secs_f64()),
    })
}
