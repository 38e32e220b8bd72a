//! `--optimizer`: the optimizers of a classifier, and those of a language model.

use clap::ValueEnum;
use plimsoll::Tensor;
use plimsoll::optim::{self, AdamOptions, SgdOptions};

use super::techniques::Techniques;

/// The optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Optimizer {
    /// Stochastic gradient descent with momentum 0.9
    Sgd,
    /// Adam
    Adam,
}

impl Optimizer {
    /// The default learning rate.
    pub(crate) fn default_lr(self) -> f64 {
        match self {
            Optimizer::Sgd => 0.03,
            Optimizer::Adam => 0.001,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Optimizer::Sgd => "sgd",
            Optimizer::Adam => "adam",
        }
    }

    /// An optimizer of these parameters.
    pub(crate) fn build(
        self,
        parameters: Vec<Tensor>,
        lr: f64,
        techniques: &Techniques,
    ) -> plimsoll::Result<Box<dyn optim::Optimizer>> {
        match self {
            Optimizer::Sgd => {
                techniques.optimizer(parameters, SgdOptions { lr, momentum: 0.9, ..SgdOptions::default() })
            }
            Optimizer::Adam => techniques.optimizer(parameters, AdamOptions { lr, ..AdamOptions::default() }),
        }
    }
}

/// The optimizer of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LanguageOptimizer {
    /// AdamW
    Adamw,
    /// AdamW with its moments in 8 bits, as in bitsandbytes: 2 bytes of state for each weight of a large matrix instead of 8
    Adamw8bit,
}

/// From 1 to 0 along half a cosine, over `horizon` steps.
pub(crate) fn cosine(step: u64, horizon: u64) -> f64 {
    let done = step as f64 / horizon as f64;
    0.5 * (1.0 + (std::f64::consts::PI * done).cos())
}

/// Reads a learning rate.
pub(crate) fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("a learning rate must be 0 or more".to_owned()),
    }
}
