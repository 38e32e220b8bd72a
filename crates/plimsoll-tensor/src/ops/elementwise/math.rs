//! Mathematical functions: further rows of the table in `unary.rs`.

use super::activations::Clamp;
use super::real::Real;
use super::unary::{Reads, Row, Types, Unary, case, unary};
use crate::dispatch::call_one;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::operator::Autocast;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// The sign as -1, 0 or 1; 0 for NaN.
#[inline(always)]
fn sign<R: Real>(x: R) -> R {
    let (zero, one) = (R::of(0.0), R::of(1.0));
    x.at_most(zero, x.equals(zero, zero, -one), (-x).at_most(zero, one, zero))
}

/// `e^x - 1` for negative `x`, otherwise 0.
#[inline(always)]
fn below<R: Real>(x: R) -> R {
    x.at_most(R::of(0.0), x, R::of(0.0)).exp_m1()
}

const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// Whether clamping integers to these bounds gives integers.
fn are_whole(low: f64, high: f64) -> bool {
    [low, high].iter().all(|bound| bound.is_infinite() || bound.fract() == 0.0)
}

unary! {
    /// Absolute value.
    pub abs => Absolute over Apart of Numbers in place abs_ {
        |x| x.at_most(R::of(0.0), -x, x), reads Input, |g, x| g * sign(x)
    }

    /// The sign as -1, 0 or 1.
    pub sign => Sign over Apart of All in place sign_ { |x| sign(x), reads Nothing, |g, v| g * R::of(0.0) }

    /// Sine of an angle in radians.
    pub sin => Sine over Any of Floats in place sin_ { |x| x.sin(), reads Input, |g, x| g * x.cos() }

    /// Cosine of an angle in radians.
    pub cos => Cosine over Any of Floats in place cos_ { |x| x.cos(), reads Input, |g, x| -g * x.sin() }

    /// Tangent of an angle in radians.
    pub tan => Tangent over Inside of Floats autocast Full in place tan_ {
        |x| x.tan(), reads Output, |g, y| g * (R::of(1.0) + y * y)
    }

    /// Arcsine, in radians.
    pub asin => ArcSine over Inside of Floats autocast Full in place asin_ {
        |x| x.asin(), reads Input, |g, x| g / (R::of(1.0) - x * x).sqrt()
    }

    /// Arccosine, in radians.
    pub acos => ArcCosine over Inside of Floats autocast Full in place acos_ {
        |x| x.acos(), reads Input, |g, x| -g / (R::of(1.0) - x * x).sqrt()
    }

    /// Arctangent, in radians.
    pub atan => ArcTangent over Any of Floats in place atan_ {
        |x| x.atan(), reads Input, |g, x| g / (R::of(1.0) + x * x)
    }

    /// Natural logarithm of `1 + x`, exact for small `x`.
    pub log1p => LogarithmOfOnePlus over Positive of Floats autocast Full in place log1p_ {
        |x| x.ln_1p(), reads Input, |g, x| g / (R::of(1.0) + x)
    }

    /// Logarithm to the base 2.
    pub log2 => BinaryLogarithm over Positive of Floats autocast Full in place log2_ {
        |x| x.ln() * R::of(std::f64::consts::LOG2_E), reads Input, |g, x| g * R::of(std::f64::consts::LOG2_E) / x
    }

    /// Logarithm to the base 10.
    pub log10 => DecimalLogarithm over Positive of Floats autocast Full in place log10_ {
        |x| x.ln() * R::of(std::f64::consts::LOG10_E), reads Input, |g, x| g * R::of(std::f64::consts::LOG10_E) / x
    }

    /// `e^x - 1`, exact for small `x`.
    pub expm1 => ExponentialLessOne over Any of Floats autocast Full in place expm1_ {
        |x| x.exp_m1(), reads Output, |g, y| g * (y + R::of(1.0))
    }

    /// `1 / √x`.
    pub rsqrt => ReciprocalRoot over Positive of Floats autocast Full in place rsqrt_ {
        |x| R::of(1.0) / x.sqrt(), reads Output, |g, y| g * R::of(-0.5) * y * y * y
    }

    /// The largest integer not above `x`. No gradient flows.
    pub floor => Floor over Apart of Numbers in place floor_ { |x| x.floor(), reads Nothing, |g, v| g * R::of(0.0) }

    /// The smallest integer not below `x`. No gradient flows.
    pub ceil => Ceiling over Apart of Numbers in place ceil_ { |x| x.ceil(), reads Nothing, |g, v| g * R::of(0.0) }

    /// The nearest integer, with ties to even. No gradient flows.
    pub round => Round over Apart of Numbers in place round_ { |x| x.round(), reads Nothing, |g, v| g * R::of(0.0) }

    /// `x` rounded towards 0. No gradient flows.
    pub trunc => Truncate over Apart of Numbers in place trunc_ { |x| x.trunc(), reads Nothing, |g, v| g * R::of(0.0) }

    /// `x` to the power of `exponent`, in floating point; [`Tensor::pow_scalar`] also has integer results.
    pub(crate) power => Power { exponent } over Positive of Floats autocast Full {
        |x| x.pow(exponent),
        reads Input,
        |g, x| exponent.equals(R::of(0.0), R::of(0.0), g * exponent * x.pow(exponent - R::of(1.0)))
    }

    /// `x` to the power of `exponent` for integers, which wrap.
    pub(crate) power_whole => PowerWhole { exponent } over Positive of Counts {
        |x| x.pow(exponent), reads Input, |g, x| g * exponent * x.pow(exponent - R::of(1.0))
    }

    /// `scale · (max(x, 0) + min(alpha · (e^x - 1), 0))` with the constants of self-normalizing networks. Like
    /// `torch.nn.functional.selu`.
    pub selu => Selu over Apart of FloatsOnly in place selu_ {
        |x| x.at_most(R::of(0.0), R::of(SELU_ALPHA * SELU_SCALE) * below(x), R::of(SELU_SCALE) * x),
        reads Input,
        |g, x| x.at_most(
            R::of(0.0),
            g * R::of(SELU_ALPHA * SELU_SCALE) * (below(x) + R::of(1.0)),
            g * R::of(SELU_SCALE)
        )
    }
}

impl Tensor {
    /// Every element to the power of `exponent`. Like `Tensor.pow(exponent)`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1i64, 2, 3], &[3], &Device::cpu())?;
    /// assert_eq!(x.pow_scalar(2)?.to_vec::<i64>()?, [1, 4, 9]);
    /// assert_eq!(x.pow_scalar(0.5)?.to_vec::<f32>()?[0], 1.0);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If integers are raised to a negative integer power, or memory runs out.
    #[track_caller]
    pub fn pow_scalar(&self, exponent: impl Into<Scalar>) -> Result<Tensor> {
        let exponent = exponent.into();
        let value = exponent.to_f64();
        let is_float = exponent.result_type(self.dtype()).is_float();
        if !is_float && value < 0.0 {
            let message = format!("integers to the power of {value}: convert them with `float` first");
            return Err(Error::argument("pow", message));
        }
        match is_float {
            true if value == 2.0 => self.square(),
            true if value == 0.5 => self.sqrt(),
            true => self.power(value),
            false => self.power_whole(value),
        }
    }

    /// [`Tensor::pow_scalar`] in place, in floating point. Like `Tensor.pow_(exponent)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_`], or if the dtype is not floating-point.
    #[track_caller]
    pub fn pow_scalar_(&self, exponent: f64) -> Result<()> {
        super::unary::change_as("pow_", self, Power { exponent })
    }

    /// `x` clamped between `low` and `high`; the gradient is 0 beyond the bounds. Integers stay integers if the bounds are
    /// integers, and become `float32` otherwise. Like `torch.clamp`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn clamp(&self, low: f64, high: f64) -> Result<Tensor> {
        let whole = are_whole(low, high);
        match self.dtype() {
            dtype if dtype.is_float() => self.clamp_to(low, high),
            DType::Bool if whole => self.long()?.clamp_to(low, high),
            _ if whole => self.clamp_to(low, high),
            _ => self.float()?.clamp_to(low, high),
        }
    }

    /// [`Tensor::clamp`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_`], or if the bounds of an integer tensor are fractional.
    #[track_caller]
    pub fn clamp_(&self, low: f64, high: f64) -> Result<()> {
        if !self.dtype().is_float() && !are_whole(low, high) {
            let (dtype, advice) = (self.dtype(), "convert it first");
            let message = format!(
                "bounds of {low} and {high} give a floating-point result, which a tensor of {dtype} cannot hold: {advice}"
            );
            return Err(Error::argument("clamp_", message));
        }
        super::unary::change(self, Clamp { low, high })
    }

    /// `x` clamped to at least `low`. Like `torch.clamp(min=low)`.
    ///
    /// # Errors
    /// If the dtype has no order, or memory runs out.
    #[track_caller]
    pub fn clamp_min(&self, low: f64) -> Result<Tensor> {
        self.clamp(low, f64::INFINITY)
    }

    /// `x` clamped to at most `high`. Like `torch.clamp(max=high)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::clamp_min`].
    #[track_caller]
    pub fn clamp_max(&self, high: f64) -> Result<Tensor> {
        self.clamp(f64::NEG_INFINITY, high)
    }

    /// [`Tensor::clamp_min`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_`].
    #[track_caller]
    pub fn clamp_min_(&self, low: f64) -> Result<()> {
        self.clamp_(low, f64::INFINITY)
    }

    /// [`Tensor::clamp_max`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_`].
    #[track_caller]
    pub fn clamp_max_(&self, high: f64) -> Result<()> {
        self.clamp_(f64::NEG_INFINITY, high)
    }
}
