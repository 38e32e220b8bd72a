//! The most common elementwise functions, and sums and products with a number: rows of the table in `unary.rs`.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::real::Real;
use super::unary::{Reads, Row, Types, Unary, case, unary};
use crate::dispatch::call_one;
use crate::dtype::Scalar;
use crate::error::Result;
use crate::operator::Autocast;
use crate::ops::want_number;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

unary! {
    /// `-x`.
    pub neg => Negative over Any of Numbers in place neg_ { |x| -x, reads Nothing, |g, v| -g }

    /// `max(x, 0)`; NaN stays NaN, as in PyTorch.
    pub relu => Relu over Apart of Numbers in place relu_ {
        |x| x.at_most(R::of(0.0), R::of(0.0), x),
        reads Output,
        |g, y| y.at_most(R::of(0.0), R::of(0.0), g)
    }

    /// `e` to the power of `x`.
    pub exp => Exponential over Any of Floats autocast Full in place exp_ { |x| x.exp(), reads Output, |g, y| g * y }

    /// Natural logarithm. Like `torch.log`.
    pub log => Logarithm over Positive of Floats autocast Full in place log_ { |x| x.ln(), reads Input, |g, x| g / x }

    /// Square root.
    pub sqrt => SquareRoot over Positive of Floats in place sqrt_ { |x| x.sqrt(), reads Output, |g, y| g / (y * R::of(2.0)) }

    /// `x²`.
    pub square => Square over Any of Counts in place square_ { |x| x * x, reads Input, |g, x| g * (x * R::of(2.0)) }

    /// `1 / x`.
    pub reciprocal => Reciprocal over Positive of Floats autocast Full in place reciprocal_ { |x| R::of(1.0) / x, reads Output, |g, y| -g * y * y }

    /// Hyperbolic tangent.
    pub tanh => HyperbolicTangent over Any of Floats in place tanh_ { |x| x.tanh(), reads Output, |g, y| g * (R::of(1.0) - y * y) }

    /// `1 / (1 + e^-x)`.
    pub sigmoid => Sigmoid over Any of Floats in place sigmoid_ {
        |x| R::of(1.0) / (R::of(1.0) + (-x).exp()),
        reads Output,
        |g, y| g * (R::of(1.0) - y) * y
    }

    /// The error function, `2/√π` times the integral of `e^-t²` from 0 to `x`.
    pub erf => ErrorFunction over Any of Floats in place erf_ {
        |x| x.erf(),
        reads Input,
        |g, x| g * R::of(FRAC_2_SQRT_PI) * (-(x * x)).exp()
    }

    /// `x · Φ(x)`, where Φ is the normal distribution's CDF. Like `torch.nn.functional.gelu`.
    pub gelu => Gelu over Any of FloatsOnly {
        |x| x * R::of(0.5) * (R::of(1.0) + (x * R::of(FRAC_1_SQRT_2)).erf()),
        reads Input,
        |g, x| g * (R::of(0.5) * (R::of(1.0) + (x * R::of(FRAC_1_SQRT_2)).erf())
            + x * R::of(0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI) * (x * x * R::of(-0.5)).exp())
    }

    /// The tanh approximation of `gelu`: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`. Like
    /// `torch.nn.functional.gelu(approximate="tanh")`.
    pub gelu_tanh => GeluTanh over Any of FloatsOnly {
        |x| x * R::of(0.5) * (R::of(1.0) + (gelu_argument(x)).tanh()),
        reads Input,
        |g, x| g * gelu_slope(x, gelu_argument(x).tanh())
    }

    /// `mul * x + add`, in floating point.
    pub affine => Affine { mul, add } over Any of Floats { |x| x * mul + add, reads Nothing, |g, v| g * mul }

    /// `mul * x + add` for integers, which wrap; the floating-point form is [`Tensor::affine`].
    pub(crate) affine_whole => AffineWhole { mul, add } over Any of Counts {
        |x| x * mul + add,
        reads Nothing,
        |g, v| g * mul
    }

    /// 1 where `x <= 0`, otherwise 0. No gradient flows.
    pub not_positive => NotPositive over Apart of Numbers {
        |x| x.at_most(R::of(0.0), R::of(1.0), R::of(0.0)),
        reads Nothing,
        |g, v| g * R::of(0.0)
    }
}

/// `√(2/π) · (x + 0.044715 x³)`.
#[inline(always)]
fn gelu_argument<R: Real>(x: R) -> R {
    (x + x * x * x * R::of(0.044_715)) * R::of(FRAC_2_SQRT_PI * FRAC_1_SQRT_2)
}

/// The derivative of `gelu_tanh`; `t` is the value of the tanh in it.
#[inline(always)]
fn gelu_slope<R: Real>(x: R, t: R) -> R {
    let inner = (R::of(1.0) + x * x * R::of(3.0 * 0.044_715)) * R::of(FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    (R::of(1.0) + t) * R::of(0.5) + x * R::of(0.5) * (R::of(1.0) - t * t) * inner
}

impl Tensor {
    /// `x + value`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn add_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.with_scalars(Scalar::Int(1), value.into())
    }

    /// `x - value`.
    ///
    /// # Errors
    /// If the tensor is `bool`, as in PyTorch, or memory runs out.
    #[track_caller]
    pub fn sub_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        want_number("sub", self.dtype())?;
        let negative = match value.into() {
            Scalar::Int(value) => Scalar::Int(value.wrapping_neg()),
            Scalar::Float(value) => Scalar::Float(-value),
        };
        self.with_scalars(Scalar::Int(1), negative)
    }

    /// `x * value`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn mul_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.with_scalars(value.into(), Scalar::Int(0))
    }

    /// `x / value`, in floating point.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn div_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.affine(1.0 / value.into().to_f64(), 0.0)
    }

    #[track_caller]
    fn with_scalars(&self, mul: Scalar, add: Scalar) -> Result<Tensor> {
        let (factor, summand) = (mul.to_f64(), add.to_f64());
        match add.result_type(mul.result_type(self.dtype())) {
            result if result.is_float() => self.affine(factor, summand),
            _ => self.affine_whole(factor, summand),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::unary::UnaryBackward;
    use super::*;
    use crate::kernel::Kernel;

    #[test]
    fn a_row_has_a_text_for_the_gpus_compiler() {
        let text = |kernel: &dyn Kernel| kernel.expression().unwrap();
        assert_eq!(text(&Unary(Relu {})), "(a <= C(0.0) ? C(0.0) : a)");
        assert_eq!(text(&UnaryBackward(Relu {})), "(b <= C(0.0) ? C(0.0) : a)");
        assert_eq!(text(&Unary(Affine { mul: 2.5, add: -1.0 })), "((a * C(2.5)) + C(-1.0))");
        assert_eq!(text(&Unary(Sigmoid {})), "(C(1.0) / (C(1.0) + exp((-a))))");
    }
}
