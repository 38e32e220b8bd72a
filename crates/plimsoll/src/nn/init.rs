//! Initial values of parameters: the rules with which layers are built, and `torch.nn.init`'s functions for tensors that exist.
//!
//! [`Init`] is a rule, which a [`Scope`](super::Scope) draws from the stream of a parameter's path. The functions overwrite a tensor in
//! place, without a graph, also if it requires a gradient. They draw from the generator of its device
//! ([`Device::manual_seed`](crate::Device::manual_seed)).
//!
//! ```
//! use plimsoll::Device;
//! use plimsoll::nn::init::{self, Fan, Gain};
//! use plimsoll::nn::{Linear, Scope};
//! let fc = Linear::new(&Scope::new(&Device::cpu(), 1), 64, 32)?;
//! init::kaiming_normal_(fc.weight(), Fan::Out, Gain::ReLU)?;
//! init::zeros_(fc.bias().unwrap())?;
//! # Ok::<(), plimsoll::Error>(())
//! ```

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::op::RandomStream;
use plimsoll_tensor::{DType, Device, Error, Result, Tensor, linalg, no_grad};

/// A rule for initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All this value.
    Constant(f64),
    /// Uniformly distributed from `-bound` up to `bound`.
    Uniform(f64),
    /// Normally distributed with mean 0 and this standard deviation.
    Normal(f64),
}

impl Init {
    /// PyTorch's default for the weight and bias of `Linear` and `Conv2d`: uniform within ±`1/sqrt(fan_in)`, where `fan_in` is
    /// the number of inputs of one output. (`reset_parameters` of both layers: `kaiming_uniform_(a=sqrt(5))` has the bound
    /// `sqrt(6 / ((1 + 5) fan_in))`, the bias the same.)
    pub fn default_for(fan_in: usize) -> Init {
        Init::Uniform(if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() })
    }

    /// `torch.nn.init.xavier_uniform_` of a matrix: uniform within ±`sqrt(6 / (inputs + outputs))`.
    pub fn xavier_uniform(inputs: usize, outputs: usize) -> Init {
        Init::Uniform((6.0 / (inputs + outputs).max(1) as f64).sqrt())
    }

    /// `torch.nn.init.xavier_normal_` of a matrix: normal with a standard deviation of `sqrt(2 / (inputs + outputs))`.
    pub fn xavier_normal(inputs: usize, outputs: usize) -> Init {
        Init::Normal((2.0 / (inputs + outputs).max(1) as f64).sqrt())
    }

    /// `torch.nn.init.kaiming_uniform_` for ReLU: uniform within ±`sqrt(6 / fan)`, where `fan` is the number of inputs of one
    /// output (`fan_in`), or of outputs of one input (`fan_out`).
    pub fn kaiming_uniform(fan: usize) -> Init {
        Init::Uniform((6.0 / fan.max(1) as f64).sqrt())
    }

    /// `torch.nn.init.kaiming_normal_` for ReLU: normal with a standard deviation of `sqrt(2 / fan)`.
    pub fn kaiming_normal(fan: usize) -> Init {
        Init::Normal((2.0 / fan.max(1) as f64).sqrt())
    }

    pub(super) fn fill(self, tensor: &Tensor, from: impl Into<Option<RandomStream>>) -> Result<()> {
        let from = from.into();
        match self {
            Init::Zeros => tensor.fill_(0.0),
            Init::Ones => tensor.fill_(1.0),
            Init::Constant(value) => tensor.fill_(value),
            Init::Uniform(bound) => tensor.uniform_(-bound, bound, from),
            Init::Normal(std) => tensor.normal_(0.0, std, from),
        }
    }
}

/// The dimension that sets the scale of a weight `[outputs, inputs, …]`: `mode` of `kaiming_uniform_` in PyTorch.
///
/// ```
/// use plimsoll::nn::init::{self, Fan, Gain};
/// use plimsoll::{Device, Tensor};
/// let weight = Tensor::zeros(&[8, 3, 5, 5], &Device::cpu())?;
/// init::kaiming_uniform_(&weight, Fan::In, Gain::ReLU)?; // a fan of 3 · 5 · 5
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The number of inputs of one output: keeps the variance in the forward pass.
    In,
    /// The number of outputs of one input: keeps the variance in the backward pass.
    Out,
}

/// The function that follows a layer; it decides by how much initial values are scaled.
///
/// ```
/// use plimsoll::nn::init::{Gain, calculate_gain};
/// assert_eq!(calculate_gain(Gain::Tanh), 5.0 / 3.0);
/// assert_eq!(calculate_gain(Gain::LeakyReLU(0.0)), 2f64.sqrt());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gain {
    /// None, for layers such as linear layers and convolutions without a function.
    Linear,
    /// `sigmoid`.
    Sigmoid,
    /// `tanh`.
    Tanh,
    /// `relu`.
    ReLU,
    /// `leaky_relu`, with its negative slope.
    LeakyReLU(f64),
    /// `selu`.
    SELU,
}

/// The factor of initial values for a layer that is followed by this function. Like `torch.nn.init.calculate_gain`.
pub fn calculate_gain(of: Gain) -> f64 {
    match of {
        Gain::Linear | Gain::Sigmoid => 1.0,
        Gain::Tanh => 5.0 / 3.0,
        Gain::ReLU => 2f64.sqrt(),
        Gain::LeakyReLU(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        Gain::SELU => 0.75,
    }
}

/// The numbers of inputs of an output, and of outputs of an input, of a weight `[outputs, inputs, …]`.
fn fans(op: &'static str, tensor: &Tensor) -> Result<(usize, usize)> {
    let &[outputs, inputs, ref kernel @ ..] = tensor.shape() else {
        let message = format!("{:?} has no fan: needs [outputs, inputs, …]", tensor.shape());
        return Err(Error::shape(op, message));
    };
    let places: usize = kernel.iter().product();
    Ok((inputs * places, outputs * places))
}

#[track_caller]
fn fill(tensor: &Tensor, with: Init) -> Result<()> {
    let _entry = Entry::here();
    no_grad(|| with.fill(tensor, None))
}

/// Uniformly distributed values from `low` up to `high`. Like `torch.nn.init.uniform_`.
///
/// # Errors
/// If the type is not floating-point.
#[track_caller]
pub fn uniform_(tensor: impl AsRef<Tensor>, low: f64, high: f64) -> Result<()> {
    let _entry = Entry::here();
    no_grad(|| tensor.as_ref().uniform_(low, high, None))
}

/// Normally distributed values. Like `torch.nn.init.normal_`.
///
/// # Errors
/// If the type is not floating-point.
#[track_caller]
pub fn normal_(tensor: impl AsRef<Tensor>, mean: f64, std: f64) -> Result<()> {
    let _entry = Entry::here();
    no_grad(|| tensor.as_ref().normal_(mean, std, None))
}

/// One value everywhere. Like `torch.nn.init.constant_`.
///
/// # Errors
/// If the device reports an error.
#[track_caller]
pub fn constant_(tensor: impl AsRef<Tensor>, value: f64) -> Result<()> {
    fill(tensor.as_ref(), Init::Constant(value))
}

/// Zeros. Like `torch.nn.init.zeros_`.
///
/// # Errors
/// If the device reports an error.
#[track_caller]
pub fn zeros_(tensor: impl AsRef<Tensor>) -> Result<()> {
    fill(tensor.as_ref(), Init::Zeros)
}

/// Ones. Like `torch.nn.init.ones_`.
///
/// # Errors
/// If the device reports an error.
#[track_caller]
pub fn ones_(tensor: impl AsRef<Tensor>) -> Result<()> {
    fill(tensor.as_ref(), Init::Ones)
}

/// Ones on the diagonal of a matrix, zeros elsewhere. Like `torch.nn.init.eye_`.
///
/// # Errors
/// If the tensor is not a matrix.
#[track_caller]
pub fn eye_(tensor: impl AsRef<Tensor>) -> Result<()> {
    let (_entry, tensor) = (Entry::here(), tensor.as_ref());
    if tensor.rank() != 2 {
        return Err(Error::shape("eye_", format!("{:?}: needs a matrix", tensor.shape())));
    }
    no_grad(|| {
        tensor.zero_()?;
        tensor.fill_diagonal_(1.0)
    })
}

/// Uniform within ±`gain · sqrt(6 / (fan in + fan out))`. Like `torch.nn.init.xavier_uniform_`, whose `gain` is 1 by default.
///
/// # Errors
/// If the tensor has fewer than two dimensions, or its type is not floating-point.
#[track_caller]
pub fn xavier_uniform_(tensor: impl AsRef<Tensor>, gain: f64) -> Result<()> {
    let tensor = tensor.as_ref();
    let (fan_in, fan_out) = fans("xavier_uniform_", tensor)?;
    fill(tensor, Init::Uniform(gain * (6.0 / (fan_in + fan_out).max(1) as f64).sqrt()))
}

/// Normal with a standard deviation of `gain · sqrt(2 / (fan in + fan out))`. Like `torch.nn.init.xavier_normal_`, whose `gain` is
/// 1 by default.
///
/// # Errors
/// The same errors as [`xavier_uniform_`].
#[track_caller]
pub fn xavier_normal_(tensor: impl AsRef<Tensor>, gain: f64) -> Result<()> {
    let tensor = tensor.as_ref();
    let (fan_in, fan_out) = fans("xavier_normal_", tensor)?;
    fill(tensor, Init::Normal(gain * (2.0 / (fan_in + fan_out).max(1) as f64).sqrt()))
}

/// The standard deviation of He's initial values.
fn kaiming(op: &'static str, tensor: &Tensor, mode: Fan, gain: Gain) -> Result<f64> {
    let (fan_in, fan_out) = fans(op, tensor)?;
    let fan = if mode == Fan::In { fan_in } else { fan_out };
    Ok(calculate_gain(gain) / (fan.max(1) as f64).sqrt())
}

/// Uniform within ±`gain · sqrt(3 / fan)`. Like `torch.nn.init.kaiming_uniform_`, whose defaults are `Fan::In` and
/// `Gain::LeakyReLU(0.0)`.
///
/// # Errors
/// The same errors as [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_uniform_(tensor: impl AsRef<Tensor>, mode: Fan, gain: Gain) -> Result<()> {
    let tensor = tensor.as_ref();
    let std = kaiming("kaiming_uniform_", tensor, mode, gain)?;
    fill(tensor, Init::Uniform(3f64.sqrt() * std))
}

/// Normal with a standard deviation of `gain / sqrt(fan)`. Like `torch.nn.init.kaiming_normal_`, with the defaults of
/// [`kaiming_uniform_`].
///
/// # Errors
/// The same errors as [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_normal_(tensor: impl AsRef<Tensor>, mode: Fan, gain: Gain) -> Result<()> {
    let tensor = tensor.as_ref();
    let std = kaiming("kaiming_normal_", tensor, mode, gain)?;
    fill(tensor, Init::Normal(std))
}

/// The error function, to about 1e-7.
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let series = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let exponent = series.iter().rev().fold(0.0, |sum, factor| sum * t + factor);
    let size = 1.0 - t * (exponent - x * x).exp();
    if x < 0.0 { -size } else { size }
}

/// Normally distributed values, none of them below `low` or above `high`. Like `torch.nn.init.trunc_normal_`, whose defaults are 0, 1,
/// -2 and 2.
///
/// # Errors
/// If `low` is not below `high`, the standard deviation is not positive, the type is not floating-point, or memory runs out.
#[track_caller]
pub fn trunc_normal_(tensor: impl AsRef<Tensor>, mean: f64, std: f64, low: f64, high: f64) -> Result<()> {
    let (_entry, tensor) = (Entry::here(), tensor.as_ref());
    if std.is_nan() || std <= 0.0 || low.is_nan() || high.is_nan() || low >= high {
        let message =
            format!("a deviation of {std}, from {low} to {high}: needs a positive one, and low < high");
        return Err(Error::argument("trunc_normal_", message));
    }
    // The uniform numbers whose quantiles are within the bounds.
    let place = |bound: f64| erf((bound - mean) / (std * 2f64.sqrt()));
    no_grad(|| {
        tensor.uniform_(place(low), place(high), None)?;
        tensor.erfinv_()?;
        tensor.mul_scalar_(std * 2f64.sqrt())?;
        tensor.add_scalar_(mean)?;
        tensor.clamp_(low, high)
    })
}

/// Rows (or columns, if there are fewer) that are orthogonal and have the length `gain`; dimensions after the first are flattened. Like
/// `torch.nn.init.orthogonal_`, whose `gain` is 1 by default. The host factors the matrix, for a GPU too.
///
/// # Errors
/// If the tensor has fewer than two dimensions, its type is not floating-point, or memory runs out.
#[track_caller]
pub fn orthogonal_(tensor: impl AsRef<Tensor>, gain: f64) -> Result<()> {
    let (_entry, tensor) = (Entry::here(), tensor.as_ref());
    if tensor.rank() < 2 {
        let message = format!("{:?}: needs two dimensions or more", tensor.shape());
        return Err(Error::shape("orthogonal_", message));
    }
    no_grad(|| {
        tensor.normal_(0.0, 1.0, None)?;
        if tensor.numel() == 0 || !tensor.device().has_values() {
            return Ok(());
        }
        let dtype = if tensor.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let drawn = tensor.detach().to_device(&Device::cpu())?.to_dtype(dtype)?.flatten(1, -1)?;
        let is_wide = drawn.shape()[0] < drawn.shape()[1];
        let (q, r) = linalg::qr(if is_wide { drawn.t()? } else { drawn })?;
        // With the signs of R, the result is uniformly distributed.
        let q = (q * r.diagonal(0, 0, 1)?.sign()?)?;
        let q = ((if is_wide { q.t()? } else { q }) * gain)?;
        tensor.copy_(q.reshape(tensor.shape())?.to_device(tensor.device())?)
    })
}
