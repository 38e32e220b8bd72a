//! One process's measurement of a training step: [`Measured`].

use serde::{Deserialize, Serialize};

/// What one process measured. The fields are those of the peers' line, so that any of them can be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Who.
    #[serde(default)]
    pub(crate) peer: String,
    /// What.
    #[serde(default)]
    pub(crate) model: String,
    /// Median of the timed steps, milliseconds.
    pub(crate) ms: f64,
    /// The fastest of them.
    pub(crate) ms_min: f64,
    /// Images or tokens per second at the median.
    #[serde(default)]
    pub(crate) per_s: f64,
    /// Peak resident memory, MiB.
    #[serde(default)]
    pub(crate) hwm_mib: f64,
    /// The same before any work.
    #[serde(default)]
    pub(crate) hwm_start_mib: f64,
    /// Loss of the first step.
    #[serde(default)]
    pub(crate) loss_first: f64,
    /// Loss of the last step.
    #[serde(default)]
    pub(crate) loss_last: f64,
    /// Numbers in the model.
    #[serde(default)]
    pub(crate) params: u64,
}
