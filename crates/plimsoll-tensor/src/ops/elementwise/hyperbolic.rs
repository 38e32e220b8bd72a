//! Hyperbolic functions and more exponentials: further rows of the table in `unary.rs`.

use super::real::Real;
use super::unary::{Reads, Row, Types, Unary, case, unary};
use crate::dispatch::call_one;
use crate::error::Result;
use crate::operator::Autocast;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// The absolute value.
#[inline(always)]
fn magnitude<R: Real>(x: R) -> R {
    x.at_most(R::of(0.0), -x, x)
}

/// `(e^x - e^-x) / 2`, exact for small `x`.
#[inline(always)]
fn sinh<R: Real>(x: R) -> R {
    let (half, one) = (R::of(0.5), R::of(1.0));
    let less_one = x.exp_m1();
    let small = half * (less_one + less_one / (less_one + one));
    magnitude(x).at_most(one, small, half * (x.exp() - (-x).exp()))
}

/// `(e^x + e^-x) / 2`.
#[inline(always)]
fn cosh<R: Real>(x: R) -> R {
    R::of(0.5) * (x.exp() + (-x).exp())
}

/// The inverse of `sinh`, exact for small `x`.
#[inline(always)]
fn asinh<R: Real>(x: R) -> R {
    let (one, a) = (R::of(1.0), magnitude(x));
    let small = (a + a * a / (one + (a * a + one).sqrt())).ln_1p();
    // The square of a large number would be infinite.
    let of_magnitude = a.at_most(R::of(1e9), small, a.ln() + R::of(std::f64::consts::LN_2));
    x.at_most(R::of(0.0), -of_magnitude, of_magnitude)
}

unary! {
    /// Hyperbolic sine.
    pub sinh => HyperbolicSine over Any of Floats autocast Full in place sinh_ {
        |x| sinh(x), reads Input, |g, x| g * cosh(x)
    }

    /// Hyperbolic cosine.
    pub cosh => HyperbolicCosine over Any of Floats autocast Full in place cosh_ {
        |x| cosh(x), reads Input, |g, x| g * sinh(x)
    }

    /// Inverse hyperbolic sine.
    pub asinh => AreaSine over Any of Floats in place asinh_ {
        |x| asinh(x), reads Input, |g, x| g / (x * x + R::of(1.0)).sqrt()
    }

    /// Inverse hyperbolic tangent.
    pub atanh => AreaTangent over Inside of Floats in place atanh_ {
        |x| R::of(0.5) * ((x + x) / (R::of(1.0) - x)).ln_1p(), reads Input, |g, x| g / (R::of(1.0) - x * x)
    }

    /// 2 to the power of `x`.
    pub exp2 => BinaryExponential over Any of Floats in place exp2_ {
        |x| (x * R::of(std::f64::consts::LN_2)).exp(), reads Output, |g, y| g * y * R::of(std::f64::consts::LN_2)
    }

    /// `1 - erf(x)`.
    pub erfc => ErrorFunctionComplement over Any of Floats autocast Full in place erfc_ {
        |x| x.erfc(),
        reads Input,
        |g, x| g * R::of(-std::f64::consts::FRAC_2_SQRT_PI) * (-x * x).exp()
    }

    /// `ln(x / (1 - x))`. It and its gradient are NaN outside 0 to 1. Implements `Tensor::logit`.
    pub(crate) logit_of named "logit" => Logit over Portion of Floats autocast Full {
        |x| (x / (R::of(1.0) - x)).ln(),
        reads Input,
        |g, x| {
            let none = R::of(0.0) / R::of(-0.0);
            x.at_most(R::of(1.0), R::of(0.0).at_most(x, g / (x * (R::of(1.0) - x)), none), none)
        }
    }

    /// The fractional part of `x`, with its sign.
    pub frac => Fraction over Apart of FloatsOnly in place frac_ { |x| x - x.trunc(), reads Nothing, |g, v| g }
}

impl Tensor {
    /// `ln(x / (1 - x))`. If `eps` is given, `x` is first clamped to `eps..=1 - eps`. Like `torch.logit`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn logit(&self, eps: impl Into<Option<f64>>) -> Result<Tensor> {
        let x = match eps.into() {
            None => self.clone(),
            Some(eps) => self.clamp(eps, 1.0 - eps)?,
        };
        x.logit_of()
    }
}
