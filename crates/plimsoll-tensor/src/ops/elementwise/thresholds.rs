//! Activations with a threshold, which are more rows of the table in `unary.rs`, and two with two operands, `prelu` and
//! `glu`.

use super::activations::softplus;
use super::real::Real;
use super::unary::{Reads, Row, Types, Unary, case, unary};
use crate::dispatch::call_one;
use crate::error::{Error, Result};
use crate::operator::Autocast;
use crate::ops::dim_index;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// The absolute value.
#[inline(always)]
fn magnitude<R: Real>(x: R) -> R {
    x.at_most(R::of(0.0), -x, x)
}

unary! {
    /// `x`, or 0 if within `lambda` of 0. Like `torch.nn.functional.hardshrink`.
    pub hardshrink => Hardshrink { lambda } over Apart of FloatsOnly {
        |x| magnitude(x).at_most(lambda, R::of(0.0), x),
        reads Input,
        |g, x| magnitude(x).at_most(lambda, R::of(0.0), g)
    }

    /// `x` moved towards 0 by `lambda`, or 0 if it is closer than that. Like `torch.nn.functional.softshrink`.
    pub softshrink => Softshrink { lambda } over Apart of FloatsOnly {
        |x| magnitude(x).at_most(lambda, R::of(0.0), x.at_most(R::of(0.0), x + lambda, x - lambda)),
        reads Input,
        |g, x| magnitude(x).at_most(lambda, R::of(0.0), g)
    }

    /// `x` if above `threshold`, otherwise `value`. Like `torch.nn.functional.threshold`.
    pub threshold => Threshold { threshold, value } over Apart of Numbers {
        |x| x.at_most(threshold, value, x),
        reads Input,
        |g, x| { let _ = value; x.at_most(threshold, R::of(0.0), g) }
    }

    /// `x` where positive, otherwise `alpha · (e^(x / alpha) - 1)`. Like `torch.nn.functional.celu`.
    pub celu => Celu { alpha } over Apart of FloatsOnly {
        |x| x.at_most(R::of(0.0), alpha * (x.at_most(R::of(0.0), x, R::of(0.0)) / alpha).exp_m1(), x),
        reads Input,
        |g, x| x.at_most(R::of(0.0), g * (x.at_most(R::of(0.0), x, R::of(0.0)) / alpha).exp(), g)
    }

    /// `ln(1 + e^(beta · x)) / beta`, but `x` where `beta · x` is above `threshold`. PyTorch's default is 20. Like
    /// `torch.nn.functional.softplus`; [`Tensor::softplus`] has a `beta` of 1 and no threshold.
    pub softplus_with => SoftplusWith { beta, threshold } over Any of FloatsOnly autocast Full {
        |x| (x * beta).at_most(threshold, softplus(x * beta) / beta, x),
        reads Input,
        |g, x| (x * beta).at_most(threshold, g * (x * beta).sigmoid(), g)
    }

    /// `x / (1 + |x|)`. Like `torch.nn.functional.softsign`.
    pub softsign => Softsign over Apart of Floats {
        |x| x / (R::of(1.0) + magnitude(x)),
        reads Input,
        // Infinity times 0 is NaN, so the gradient there is NaN, as in PyTorch.
        |g, x| (g + x * R::of(0.0)) / ((R::of(1.0) + magnitude(x)) * (R::of(1.0) + magnitude(x)))
    }

    /// `x - tanh(x)`. Like `torch.nn.functional.tanhshrink`.
    pub tanhshrink => Tanhshrink over Any of Floats {
        |x| x - x.tanh(), reads Input, |g, x| g * x.tanh() * x.tanh()
    }
}

impl Tensor {
    /// `x` clamped to between 0 and 6. Like `torch.nn.functional.relu6`.
    ///
    /// # Errors
    /// If the tensor is `bool`, or memory runs out.
    #[track_caller]
    pub fn relu6(&self) -> Result<Tensor> {
        self.hardtanh(0.0, 6.0)
    }

    /// `x` where positive, otherwise `x` times a weight. There is one weight for all channels, or one for each
    /// (dimension 1). It saves the input and the weight. Like `torch.nn.functional.prelu`.
    ///
    /// # Errors
    /// If the weight is not a vector with one element or with one per channel, the dtypes differ, or memory runs out.
    #[track_caller]
    pub fn prelu(&self, weight: impl AsRef<Tensor>) -> Result<Tensor> {
        let weight = weight.as_ref();
        const NAME: &str = "prelu";
        let channels = if self.rank() < 2 { 1 } else { self.shape()[1] };
        if weight.numel() != 1 && (weight.numel() != channels || weight.rank() != 1) {
            let message = format!(
                "a weight {:?} does not match {channels} channels of {:?}",
                weight.shape(),
                self.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        if weight.dtype() != self.dtype() {
            return Err(Error::DType { op: NAME, expected: self.dtype().name(), got: weight.dtype() });
        }
        let mut shape = vec![1usize; self.rank()];
        if weight.numel() != 1 {
            shape[1] = channels;
        }
        self.leaky_by(&weight.reshape(shape.as_slice())?)
    }

    /// The first half of a dimension, times the sigmoid of the second half. Like `torch.nn.functional.glu`.
    ///
    /// # Errors
    /// If a dimension is out of range or has an odd size, or memory runs out.
    #[track_caller]
    pub fn glu(&self, dim: isize) -> Result<Tensor> {
        let at = dim_index("glu", dim, self.rank())?;
        let size = self.shape()[at];
        if size % 2 == 1 {
            let message =
                format!("dimension {at} of {:?} has an odd size, so it cannot be halved", self.shape());
            return Err(Error::shape("glu", message));
        }
        let half = size / 2;
        self.narrow(dim, 0, half)?.mul(&self.narrow(dim, half, half)?.sigmoid()?)
    }

    /// The softmax of `-x` along a dimension. Like `torch.nn.functional.softmin`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::softmax`].
    #[track_caller]
    pub fn softmin(&self, dim: isize) -> Result<Tensor> {
        self.neg()?.softmax(dim)
    }

    /// A sample of the Gumbel-softmax distribution with these logits along a dimension. With `hard`, a one-hot vector that has
    /// the gradient of the soft sample. Like `torch.nn.functional.gumbel_softmax`.
    ///
    /// # Errors
    /// If `tau` is not positive; also the errors of [`Tensor::softmax`].
    #[track_caller]
    pub fn gumbel_softmax(&self, tau: f64, hard: bool, dim: isize) -> Result<Tensor> {
        if tau.is_nan() || tau <= 0.0 {
            return Err(Error::argument("gumbel_softmax", format!("tau is {tau}; it must be above 0")));
        }
        let noise = self.empty_like()?;
        noise.exponential_(1.0, None)?;
        let soft = self.sub(&noise.log()?)?.div_scalar(tau)?.softmax(dim)?;
        if !hard {
            return Ok(soft);
        }
        let (_, place) = soft.detach().max_keepdim(dim)?;
        let one = Tensor::full(&[], 0.0, soft.dtype(), soft.device())?.expand(soft.shape())?;
        let hard = one.scatter_value(dim, &place, 1.0)?;
        hard.sub(soft.detach())?.add(&soft)
    }
}
