//! What a training reports: [`Progress`] within an epoch, [`EpochMetrics`] after it, and [`Fitted`] at the end.

use std::fmt;
use std::time::Duration;

use plimsoll_tensor::Bytes;
use serde_json::{Value, json};

use crate::memory::Report;

/// The progress of an epoch. Displays as one line.
///
/// ```
/// use plimsoll::Progress;
/// # let progress = Progress::default();
/// assert!(progress.to_string().starts_with("epoch 0/0, step 0/0"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// The number of epochs.
    pub epochs: u64,
    /// Steps of this epoch.
    pub step: u64,
    /// The number of steps in an epoch.
    pub steps: u64,
    /// The loss of the last step, if the device has values.
    pub loss: Option<f64>,
    /// Samples per second, since the training began or resumed.
    pub samples_per_second: f64,
    /// Bytes that tensors use.
    pub allocated_bytes: u64,
    /// The most bytes that the device had reserved.
    pub peak_reserved_bytes: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { epoch, epochs, step, steps, .. } = self;
        write!(f, "epoch {epoch}/{epochs}, step {step}/{steps}")?;
        if let Some(loss) = self.loss {
            write!(f, ", loss {loss:.4}")?;
        }
        let reserved = Bytes(self.peak_reserved_bytes);
        write!(f, ", {:.0} samples/s, at most {reserved} reserved", self.samples_per_second)
    }
}

/// The metrics of an epoch. Displays as one line.
///
/// ```
/// use plimsoll::EpochMetrics;
/// # let epoch = EpochMetrics::default();
/// assert_eq!(epoch.metric("val_accuracy"), None); // nothing was validated
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EpochMetrics {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// The mean training loss (`loss`), then the metrics of the validation (`val_` and their names). Empty on a device without
    /// values.
    pub metrics: Vec<(String, f64)>,
    /// Whether this is the best epoch so far.
    pub is_best: bool,
    /// The time that the epoch took in this process, with validation.
    pub elapsed: Duration,
}

impl EpochMetrics {
    /// The metric of this name.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// As JSON, which has no NaN: each value is written as its bits.
    pub(super) fn to_json(&self) -> Value {
        let metrics: Vec<Value> =
            self.metrics.iter().map(|(name, value)| json!([name, value.to_bits()])).collect();
        json!({ "epoch": self.epoch, "metrics": metrics, "is_best": self.is_best, "seconds": self.elapsed.as_secs_f64() })
    }

    /// Reads what [`EpochMetrics::to_json`] wrote.
    pub(super) fn of_json(value: &Value) -> Option<EpochMetrics> {
        let metric = |pair: &Value| Some((pair[0].as_str()?.to_owned(), f64::from_bits(pair[1].as_u64()?)));
        Some(EpochMetrics {
            epoch: value["epoch"].as_u64()?,
            metrics: value["metrics"].as_array()?.iter().map(metric).collect::<Option<_>>()?,
            is_best: value["is_best"].as_bool()?,
            elapsed: Duration::try_from_secs_f64(value["seconds"].as_f64()?).ok()?,
        })
    }
}

impl fmt::Display for EpochMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}: ", self.epoch)?;
        self.metrics.iter().try_for_each(|(name, value)| write!(f, "{name} {value:.4}, "))?;
        write!(
            f,
            "{:.1} s{}",
            self.elapsed.as_secs_f64(),
            if self.is_best { ", the best so far" } else { "" }
        )
    }
}

/// A finished training. Displays as a line about the training, then the account of memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fitted {
    /// All epochs, also those before the checkpoint that the training resumed from.
    pub epochs: Vec<EpochMetrics>,
    /// The number of steps in all epochs.
    pub steps: u64,
    /// Whether training ended early because no epoch was better.
    pub stopped_early: bool,
    /// The time in this process.
    pub elapsed: Duration,
    /// The memory at its peak, by category and owner.
    pub memory: Report,
}

impl Fitted {
    /// The best epoch by the monitored metric. `None` if no epoch has one.
    pub fn best(&self) -> Option<&EpochMetrics> {
        self.epochs.iter().rev().find(|epoch| epoch.is_best)
    }
}

impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.stopped_early { "stopped early after" } else { "trained" };
        let (epochs, seconds) = (self.epochs.len(), self.elapsed.as_secs_f64());
        write!(f, "{how} {epochs} epochs, {} steps, in {seconds:.1} s", self.steps)?;
        if let Some(last) = self.epochs.last() {
            last.metrics.iter().enumerate().try_for_each(|(at, (name, value))| {
                write!(f, "{} {name} {value:.4}", if at == 0 { ":" } else { "," })
            })?;
        }
        if let Some(best) = self.best() {
            write!(f, "; the best was epoch {}", best.epoch)?;
        }
        write!(f, "\n{}", self.memory)
    }
}
