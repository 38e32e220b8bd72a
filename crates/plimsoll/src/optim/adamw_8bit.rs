//! AdamW with its moments in 8 bits: [`AdamW8bit`].

use plimsoll_tensor::op::{AdamW8bitStep, Rule};
use plimsoll_tensor::{DType, Error, Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require_betas, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`AdamW8bit`], with the defaults of bitsandbytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW8bitOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running averages of the gradient and of its square; each in [0, 1).
    pub betas: (f64, f64),
    /// Epsilon added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay: each step shrinks parameters by this multiple of the learning rate.
    pub weight_decay: f64,
    /// Parameters with fewer elements have moments in 32 bits. State dicts of bitsandbytes do not have this option, so loading one
    /// keeps it.
    pub min_8bit_size: usize,
}

impl Default for AdamW8bitOptions {
    fn default() -> AdamW8bitOptions {
        AdamW8bitOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 1e-2, min_8bit_size: 4096 }
    }
}

/// AdamW with both moments in 8 bits: 2.03 bytes of state for each element of a parameter instead of 8. Like
/// `bitsandbytes.optim.AdamW8bit`: each block of 256 elements stores its largest magnitude, and each element stores the
/// index of the nearest fraction of it in a map of 256 values. Blocks consist of consecutive elements of the parameter
/// in row-major order.
///
/// State dicts have the names and values of bitsandbytes (`state1`, `qmap1`, `absmax1`, …), so each loads the other's:
/// [`PtFile::optimizer_state`](crate::serialize::PtFile::optimizer_state) reads a file of `torch.save`. A parameter in 16 bits is
/// rounded once in a step, not after the update and again after the decay; `float64` is refused, and so are sharded parameters.
///
/// ```
/// use plimsoll::optim::{AdamW8bit, AdamW8bitOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let w = Tensor::ones(&[64, 64], &device)?.requires_grad_(true)?;
/// let mut adamw = AdamW8bit::new(vec![w.clone()], AdamW8bitOptions { lr: 0.5, ..AdamW8bitOptions::default() });
/// w.square()?.sum()?.backward()?;
/// adamw.step()?; // moves by the learning rate, then shrinks to 0.995 of that
/// assert!(w.to_vec::<f32>()?.iter().all(|x| (x - 0.4975).abs() < 1e-6));
/// let bytes: u64 = ["state1", "state2", "absmax1", "absmax2"]
///     .map(|name| adamw.state_dict().state[&0].tensors[name].storage_bytes())
///     .iter()
///     .sum();
/// assert_eq!(bytes, 2 * 4096 + 2 * 16 * 4);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type AdamW8bit = OptimizerOf<AdamW8bitOptions>;

impl AdamW8bitOptions {
    fn step(&self) -> AdamW8bitStep {
        let AdamW8bitOptions { lr, betas: (beta1, beta2), eps, weight_decay, min_8bit_size } = *self;
        AdamW8bitStep { lr, beta1, beta2, eps, weight_decay, min_8bit_size }
    }
}

impl Algorithm for AdamW8bitOptions {
    const NAME: &'static str = "adamw8bit";
    const WHOLE: bool = true;

    fn check(&self) -> Result<()> {
        require_not_negative(Self::NAME, "lr", self.lr)?;
        require_not_negative(Self::NAME, "eps", self.eps)?;
        require_not_negative(Self::NAME, "weight_decay", self.weight_decay)?;
        require_betas(Self::NAME, self.betas)
    }

    fn check_parameter(&self, parameter: &Tensor) -> Result<()> {
        if parameter.dtype() != DType::F64 {
            return Ok(());
        }
        let message = format!("{} is float64; use AdamW, or float32", parameter.label());
        Err(Error::argument(Self::NAME, message))
    }

    scheduled!(lr, betas.0);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        let rule = Rule::AdamW8bit(self.step());
        let names = ["state1", "state2", "absmax1", "absmax2"];
        let shapes = rule.state_shapes(shape);
        let tensor = |nth: usize| StateTensor {
            dtype: rule.state_dtype(nth, shape),
            ..StateTensor::zeros(names[nth], &shapes[nth])
        };
        (0..shapes.len()).map(tensor).collect()
    }

    fn constants(&self, shape: &[usize]) -> Vec<(&'static str, &'static [f32])> {
        let maps = if self.step().is_8bit(shape) { &AdamW8bitStep::maps()[..] } else { &[] };
        ["qmap1", "qmap2"].into_iter().zip(maps.iter().copied()).collect()
    }

    fn rule(&self) -> Option<Rule> {
        Some(Rule::AdamW8bit(self.step()))
    }
}
