//! Muon.

use plimsoll_tensor::op::{LrAdjustment, MuonStep, Rule};
use plimsoll_tensor::{Error, Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// How the learning rate depends on the shape of a matrix: PyTorch's `adjust_lr_fn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// Multiplied by the square root of rows over columns, if that is above 1; PyTorch's default.
    #[default]
    Original,
    /// Multiplied by 0.2 times the square root of the larger dimension, so that updates are as large as AdamW's.
    #[serde(rename = "match_rms_adamw")]
    MatchRmsAdamW,
    /// Multiplied by the square root of rows over columns.
    SpectralUnclamped,
}

/// The settings of [`Muon`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MuonOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decoupled weight decay: each step shrinks parameters by this multiple of the learning rate.
    pub weight_decay: f64,
    /// Momentum factor.
    pub momentum: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Coefficients of the Newton–Schulz polynomial.
    pub ns_coefficients: (f64, f64, f64),
    /// Lower bound of the norm that the update is divided by.
    pub eps: f64,
    /// Newton–Schulz iterations; below 100.
    pub ns_steps: u32,
    /// How the learning rate depends on the shape; `None` is [`AdjustLr::Original`].
    pub adjust_lr_fn: Option<AdjustLr>,
}

impl Default for MuonOptions {
    fn default() -> MuonOptions {
        MuonOptions {
            lr: 1e-3,
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: (3.4445, -4.7750, 2.0315),
            eps: 1e-7,
            ns_steps: 5,
            adjust_lr_fn: None,
        }
    }
}

/// Muon: updates by the nearly orthogonalized momentum, for the matrices of hidden layers. Like `torch.optim.Muon`. Use AdamW for
/// embeddings, biases and norms.
///
/// ```
/// use plimsoll::optim::{Muon, MuonOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let w = Tensor::zeros(&[4, 4], &device)?.requires_grad_(true)?;
/// w.set_grad(Some(Tensor::randn(&[4, 4], &device)?))?;
/// Muon::new(vec![w.clone()], MuonOptions { lr: 1.0, ..MuonOptions::default() }).step()?;
/// let singular_values_squared: f32 = w.to_vec::<f32>()?.iter().map(|x| x * x).sum();
/// assert!(singular_values_squared > 1.0 && singular_values_squared < 9.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Muon = OptimizerOf<MuonOptions>;

impl Algorithm for MuonOptions {
    const NAME: &'static str = "muon";
    const COUNTS_STEPS: bool = false;

    fn check(&self) -> Result<()> {
        for (name, value) in
            [("lr", self.lr), ("momentum", self.momentum), ("weight_decay", self.weight_decay)]
        {
            require_not_negative("muon", name, value)?;
        }
        require("muon", self.ns_steps < 100, "ns_steps", f64::from(self.ns_steps), "below 100")
    }

    fn check_parameter(&self, parameter: &Tensor) -> Result<()> {
        if parameter.rank() == 2 {
            return Ok(());
        }
        let message = format!(
            "{} has shape {:?}; Muon supports only matrices: give the other parameters to AdamW",
            parameter.label(),
            parameter.shape()
        );
        Err(Error::Argument { op: "muon", message })
    }

    scheduled!(lr, momentum);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        vec![StateTensor::zeros("momentum_buffer", shape)]
    }

    fn rule(&self) -> Option<Rule> {
        let MuonOptions { lr, weight_decay, momentum, nesterov, eps, .. } = *self;
        let adjustment = match self.adjust_lr_fn.unwrap_or_default() {
            AdjustLr::Original => LrAdjustment::Original,
            AdjustLr::MatchRmsAdamW => LrAdjustment::MatchRmsAdamW,
            AdjustLr::SpectralUnclamped => LrAdjustment::SpectralUnclamped,
        };
        let (coefficients, iterations) = (self.ns_coefficients, self.ns_steps);
        Some(Rule::Muon(MuonStep {
            lr,
            weight_decay,
            momentum,
            nesterov,
            coefficients,
            eps,
            iterations,
            adjustment,
        }))
    }
}
