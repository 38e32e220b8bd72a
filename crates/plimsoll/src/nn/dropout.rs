//! Dropout as a layer: of elements, of channels, and alpha dropout, which preserves mean and variance.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Error, Result, Tensor};

use super::{Mode, Module, Scope};
use crate::members;

/// While training, each element becomes zero with probability `p`, and the others are scaled by `1 / (1 - p)`. Like
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
    /// A layer with this probability of dropping an element.
    ///
    /// # Errors
    /// If a probability is outside 0 to 1.
    pub fn new(scope: &Scope, p: f64) -> Result<Dropout> {
        probability("dropout", p)?;
        Ok(Dropout { label: scope.label(), p, mode: Mode::default() })
    }

    /// Whether the layer is in training mode, in which it drops elements.
    pub fn is_training(&self) -> bool {
        self.mode.is_training()
    }

    /// Whether the next forward pass drops anything: while training, with a probability above 0.
    pub(crate) fn is_dropping(&self) -> bool {
        self.p > 0.0 && self.mode.is_training()
    }

    /// Applies dropout to `input` and adds `residual`, in one pass.
    ///
    /// # Errors
    /// If the shapes or types differ, or memory runs out.
    #[track_caller]
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

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        if !self.is_dropping() {
            return Ok(input.clone());
        }
        input.dropout(self.p, true)
    }
}

fn probability(op: &'static str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::Argument { op, message: format!("{p} is not a probability: use 0 to 1") })
}

/// While training, each channel of each example becomes zero with probability `p`, and the others are scaled by `1 / (1 - p)`:
/// [`Dropout1d`], [`Dropout2d`], [`Dropout3d`], for inputs with `D` spatial dimensions, with or without a batch. It saves one
/// number for each channel.
///
/// ```
/// use plimsoll::nn::{Dropout2d, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let dropout = Dropout2d::new(&Scope::new(&device, 1), 0.5)?;
/// let y = dropout.forward(&Tensor::ones(&[4, 8, 3, 3], &device)?)?;
/// let values = y.to_vec::<f32>()?;
/// assert!(values.chunks(9).all(|channel| channel == [0.0; 9] || channel == [2.0; 9]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChannelDropout<const D: usize> {
    label: LabelId,
    p: f64,
    mode: Mode,
}

/// Like `torch.nn.Dropout1d`.
pub type Dropout1d = ChannelDropout<1>;
/// Like `torch.nn.Dropout2d`.
pub type Dropout2d = ChannelDropout<2>;
/// Like `torch.nn.Dropout3d`.
pub type Dropout3d = ChannelDropout<3>;

impl<const D: usize> ChannelDropout<D> {
    /// A layer with this probability of dropping a channel.
    ///
    /// # Errors
    /// If a probability is outside 0 to 1.
    pub fn new(scope: &Scope, p: f64) -> Result<Self> {
        probability("dropout", p)?;
        Ok(ChannelDropout { label: scope.label(), p, mode: Mode::default() })
    }
}

impl<const D: usize> Module for ChannelDropout<D> {
    members!(mode);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        // PyTorch's `Dropout2d` treats an input of three dimensions as a batch.
        let lead = match input.rank() {
            rank if rank == D + 2 || (D == 2 && rank == 3) => 2,
            rank if rank == D + 1 => 1,
            _ => {
                let message = format!(
                    "{:?}: needs [batch, channels, …] with {D} dimensions after the channels",
                    input.shape()
                );
                return Err(Error::Shape { op: "dropout", message });
            }
        };
        if self.p == 0.0 || !self.mode.is_training() {
            return Ok(input.clone());
        }
        let mut shape = input.shape().to_vec();
        shape[lead..].fill(1);
        let kept = Tensor::full(&shape, 1.0, input.dtype(), input.device())?.dropout(self.p, true)?;
        input.mul(&kept)
    }
}

/// Dropout for networks of [`SELU`](super::SELU): dropped elements become SELU's lowest value, and mean and variance are
/// preserved. Like `torch.nn.AlphaDropout`.
#[derive(Clone, Debug)]
pub struct AlphaDropout {
    label: LabelId,
    p: f64,
    mode: Mode,
}

impl AlphaDropout {
    /// A layer with this probability of dropping an element.
    ///
    /// # Errors
    /// If a probability is outside 0 to 1.
    pub fn new(scope: &Scope, p: f64) -> Result<AlphaDropout> {
        probability("alpha_dropout", p)?;
        Ok(AlphaDropout { label: scope.label(), p, mode: Mode::default() })
    }
}

impl Module for AlphaDropout {
    members!(mode);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        const LOWEST: f64 = -1.758_099_340_847_376_6;
        let _owner = Span::layer(self.label);
        if self.p == 0.0 || !self.mode.is_training() {
            return Ok(input.clone());
        }
        if self.p == 1.0 {
            return input.mul_scalar(0.0);
        }
        let keep = 1.0 - self.p;
        let scale = 1.0 / ((LOWEST * LOWEST * self.p + 1.0) * keep).sqrt();
        // 1 where an element is kept.
        let kept = Tensor::full(input.shape(), keep, input.dtype(), input.device())?.bernoulli()?;
        let (by, p) = (-LOWEST * scale, self.p);
        let shift = kept.affine(by, by * (p - 1.0))?;
        input.mul(&kept)?.mul_scalar(scale)?.add(&shift)
    }
}
