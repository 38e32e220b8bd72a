//! Dropout as a layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Error, Result, Tensor};

use super::{Mode, Module, Scope};
use crate::members;

/// While training, each element is zero with probability `p`, and what is left is scaled by `1 / (1 - p)`. As
/// `torch.nn.Dropout`; it keeps a seed for the backward pass, not a mask.
///
/// ```
/// use plimsoll::nn::{Dropout, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let dropout = Dropout::new(&Scope::new(&device, 1), 0.5)?;
/// let x = Tensor::ones(&[1000], &device)?;
/// let kept = dropout.forward(&x)?.sum()?.item::<f32>()? / 2.0;
/// assert!((400.0..600.0).contains(&kept));
/// dropout.eval();
/// assert_eq!(dropout.forward(&x)?.to_vec::<f32>()?, [1.0; 1000]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    label: LabelId,
    p: f64,
    mode: Mode,
}

impl Dropout {
    /// With the probability of dropping an element.
    ///
    /// # Errors
    /// A probability outside 0 to 1.
    pub fn new(scope: &Scope, p: f64) -> Result<Dropout> {
        if !(0.0..=1.0).contains(&p) {
            let message = format!("{p} is not a probability: use 0 to 1");
            return Err(Error::Argument { op: "dropout", message });
        }
        Ok(Dropout { label: scope.label(), p, mode: Mode::default() })
    }

    /// Whether it drops: while training.
    pub fn is_training(&self) -> bool {
        self.mode.is_training()
    }

    /// Whether the next forward pass drops anything: while training, with a probability above 0.
    pub(crate) fn is_dropping(&self) -> bool {
        self.p > 0.0 && self.mode.is_training()
    }

    /// The input, dropped, plus `residual`, in one pass.
    ///
    /// # Errors
    /// Shapes or types that differ; out of memory.
    pub fn forward_add(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        if !self.is_dropping() {
            return residual + input;
        }
        input.dropout_add(residual, self.p, true)
    }
}

impl Module for Dropout {
    members!(mode);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        if !self.is_dropping() {
            return Ok(input.clone());
        }
        input.dropout(self.p, true)
    }
}
