//! One process's measurement of a training step: [`Measured`].

use serde::{Deserialize, Serialize};

/// The measurement of one process. The fields have the names of the JSON line that peers print, so that it
/// can be parsed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The peer's name.
    #[serde(default)]
    pub(crate) peer: String,
    /// The model's name.
    #[serde(default)]
    pub(crate) model: String,
    /// Median of the timed steps, milliseconds.
    pub(crate) ms: f64,
    /// The fastest of the timed steps.
    pub(crate) ms_min: f64,
    /// Images or tokens per second at the median.
    #[serde(default)]
    pub(crate) per_s: f64,
    /// Peak resident memory, MiB.
    #[serde(default)]
    pub(crate) hwm_mib: f64,
    /// Peak resident memory before any work.
    #[serde(default)]
    pub(crate) hwm_start_mib: f64,
    /// Loss of the first step.
    #[serde(default)]
    pub(crate) loss_first: f64,
    /// Loss of the last step.
    #[serde(default)]
    pub(crate) loss_last: f64,
    /// The number of parameter elements in the model.
    #[serde(default)]
    pub(crate) params: u64,
}
