//! What a job does to take less memory: [`Techniques`], and what each of them saves.

use plimsoll::SimConfig;
use plimsoll::checkpoint::Budget;
use serde_json::{Value, json};

use super::job::Job;
use super::simulated::{Simulated, simulated};
use crate::bytes;

/// The techniques that are options of every training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Techniques {
    /// What the blocks may keep for the backward pass.
    pub(crate) activations: Option<Budget>,
    /// The number of parts of a batch, one after the other.
    pub(crate) accumulate: usize,
}

impl Techniques {
    /// The options that choose these techniques.
    pub(crate) fn options(&self) -> Vec<String> {
        let activations = self.activations.map(|budget| match budget {
            Budget::Bytes(most) => format!("--activations {}", bytes::exact(most)),
            _ => "--activations auto".to_owned(),
        });
        let accumulate = (self.accumulate > 1).then(|| format!("--accumulate {}", self.accumulate));
        activations.into_iter().chain(accumulate).collect()
    }

    /// These techniques without each one of them, with its option, and how a Rust program uses it.
    fn without_each(&self) -> Vec<(String, String, Techniques)> {
        let mut all = Vec::new();
        let named = |techniques: Techniques| techniques.options().concat();
        if let Some(budget) = self.activations {
            let only = Techniques { accumulate: 1, ..*self };
            let code = match budget {
                Budget::Bytes(most) => format!("model.checkpoint_within(Budget::Bytes({most}));"),
                _ => "model.checkpoint_within(Budget::Auto);".to_owned(),
            };
            all.push((named(only), code, Techniques { activations: None, ..*self }));
        }
        if self.accumulate > 1 {
            let only = Techniques { activations: None, ..*self };
            let code =
                "(loss * (part_rows / batch_rows))?.backward()?; for each part, then optimizer.step()?;";
            let code = code.to_owned();
            all.push((named(only), code, Techniques { accumulate: 1, ..*self }));
        }
        all
    }
}

/// Reads `--activations`: a size, or `auto`.
pub(super) fn budget(text: &str) -> Result<Budget, String> {
    match text {
        "auto" => Ok(Budget::Auto),
        size => bytes::parse_positive(size).map(Budget::Bytes).map_err(|why| format!("{why}; or `auto`")),
    }
}

/// What a technique saves and costs, compared with the same job without it.
pub(crate) struct Saving {
    /// The option that chooses it.
    pub(crate) option: String,
    /// How a Rust program uses it.
    pub(crate) in_rust: String,
    /// Reserved bytes at the peak with all techniques, and without this one.
    pub(crate) reserved_bytes: [u64; 2],
    /// A step's estimated time, divided by that without this one.
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
            "saved_bytes": self.saved_bytes(),
            "reserved_bytes": self.reserved_bytes[0],
            "reserved_bytes_without": self.reserved_bytes[1],
            "times_as_long": self.times_as_long,
        })
    }
}

/// What each of the job's techniques saves, from runs of some steps on a simulated device without a limit. A technique without which
/// the job cannot run, because the others need it, is left out.
pub(super) fn savings(job: &mut Job, sim: &SimConfig) -> Vec<Saving> {
    let techniques = job.techniques;
    let without = techniques.without_each();
    let mut savings = Vec::new();
    if without.is_empty() {
        return savings;
    }
    let Ok(all) = simulated(job, sim, None) else { return savings };
    for (option, in_rust, others) in without {
        job.techniques = others;
        let result = simulated(job, sim, None);
        job.techniques = techniques;
        let Ok(Simulated { reserved_bytes, step_s, .. }) = result else { continue };
        let reserved_bytes = [all.reserved_bytes, reserved_bytes];
        savings.push(Saving { option, in_rust, reserved_bytes, times_as_long: all.step_s / step_s });
    }
    savings
}
