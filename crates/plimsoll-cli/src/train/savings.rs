//! What each technique of a job saves: [`savings`].

use plimsoll::SimConfig;
use plimsoll::fit::{Numbers, Simulated};
use serde_json::{Value, json};

use super::job::Job;
use super::simulated::simulated;

/// What a technique saves and costs, compared with the same job without it.
pub(crate) struct Saving {
    /// The option that chooses the technique.
    pub(crate) option: String,
    /// How a Rust program uses the technique.
    pub(crate) in_rust: String,
    /// How much it changes losses and parameters.
    pub(crate) numbers: Numbers,
    /// Reserved bytes at the peak with all techniques, and without this technique.
    pub(crate) reserved_bytes: [u64; 2],
    /// A step's estimated time, divided by the time without this technique.
    pub(crate) times_as_long: f64,
}

impl Saving {
    pub(crate) fn saved_bytes(&self) -> i64 {
        self.reserved_bytes[1] as i64 - self.reserved_bytes[0] as i64
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "option": self.option,
            "in_rust": self.in_rust,
            "numbers": self.numbers.name(),
            "saved_bytes": self.saved_bytes(),
            "reserved_bytes": self.reserved_bytes[0],
            "reserved_bytes_without": self.reserved_bytes[1],
            "times_as_long": self.times_as_long,
        })
    }
}

/// What each of the job's techniques saves, from runs of some steps on a simulated device without a limit. If the other
/// techniques need a technique, so that the job cannot run without it, it is left out.
pub(super) fn savings(job: &mut Job, sim: &SimConfig) -> Vec<Saving> {
    let techniques = job.techniques;
    let mut savings = Vec::new();
    if techniques.iter().next().is_none() {
        return savings;
    }
    let Ok(all) = simulated(job, sim, None) else { return savings };
    for technique in techniques.iter() {
        job.techniques = techniques.without(technique);
        let result = simulated(job, sim, None);
        job.techniques = techniques;
        let Ok(Simulated { reserved_bytes, seconds, .. }) = result else { continue };
        savings.push(Saving {
            option: technique.options(&techniques).join(" "),
            in_rust: technique.code(&techniques),
            numbers: technique.numbers(),
            reserved_bytes: [all.reserved_bytes, reserved_bytes],
            times_as_long: all.seconds / seconds,
        });
    }
    savings
}
