//! Functions of probability theory: `lgamma`, `digamma`, `erfinv`; and `acosh`. Further rows of the table in `unary.rs`.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use super::gamma::{digamma, polynomial};
use super::real::Real;
use super::unary::{Reads, Row, Types, Unary, case, unary};
use crate::dispatch::call_one;
use crate::error::Result;
use crate::operator::Autocast;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// The inverse error function: a rational approximation and two steps of Newton's method, as in PyTorch.
#[inline(always)]
fn erfinv<R: Real>(y: R) -> R {
    const A: [f64; 4] = [0.886226899, -1.645349621, 0.914624893, -0.140543331];
    const B: [f64; 5] = [1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801];
    const C: [f64; 4] = [-1.970840454, -1.624906493, 3.429567803, 1.641345311];
    const D: [f64; 3] = [1.0, 3.543889200, 1.637067800];
    let (zero, one) = (R::of(0.0), R::of(1.0));
    let (magnitude, square) = (y.at_most(zero, -y, y), y * y);
    let central = y * polynomial(square, &A) / polynomial(square, &B);
    let depth = (-((one - magnitude) * R::of(0.5)).ln()).sqrt();
    let tail = polynomial(depth, &C) / polynomial(depth, &D);
    let start = magnitude.at_most(R::of(0.7), central, y.at_most(zero, -tail, tail));
    let step = |x: R| x - (x.erf() - y) / (R::of(FRAC_2_SQRT_PI) * (-x * x).exp());
    y.equals(one, one / zero, y.equals(-one, -one / zero, step(step(start))))
}

unary! {
    /// The natural logarithm of the absolute value of the gamma function. Like `torch.lgamma`.
    pub lgamma => LogGamma over Positive of Floats autocast Full in place lgamma_ {
        |x| x.ln_gamma(), reads Input, |g, x| g * digamma(x)
    }

    /// The derivative of [`Tensor::lgamma`]. Like `torch.digamma`.
    pub digamma => Digamma over Positive of Floats autocast Full in place digamma_ {
        |x| digamma(x), reads Input, |g, x| g * trigamma(x)
    }

    /// The inverse hyperbolic cosine, 0 or more. Implements `Tensor::acosh`.
    pub(crate) acosh_of named "acosh" => AreaHyperbolicCosine over AboveOne of Floats autocast Full {
        |x| (x - R::of(1.0) + (x - R::of(1.0)).sqrt() * (x + R::of(1.0)).sqrt()).ln_1p(),
        reads Input,
        |g, x| g / (x * x - R::of(1.0)).sqrt()
    }

    /// The inverse error function, infinite at -1 and 1. Like `torch.erfinv`.
    pub erfinv => InverseErrorFunction over Inside of Floats autocast Full in place erfinv_ {
        |x| erfinv(x), reads Output, |g, y| g * R::of(1.0 / FRAC_2_SQRT_PI) * (y * y).exp()
    }
}

/// The derivative of `digamma`, computed in the same way.
#[inline(always)]
fn trigamma<R: Real>(x: R) -> R {
    let (one, half) = (R::of(1.0), R::of(0.5));
    let mut z = x.at_most(half, one - x, x);
    let mut steps = R::of(0.0);
    for _ in 0..8 {
        steps = steps + one / (z * z);
        z = z + one;
    }
    let square = one / (z * z);
    let series = [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0];
    let above = steps + one / z + half * square + square / z * polynomial(square, &series);
    let sine = (x * R::of(PI)).sin();
    x.at_most(half, R::of(PI * PI) / (sine * sine) - above, above)
}

impl Tensor {
    /// The inverse hyperbolic cosine, 0 or more; NaN below 1. Like `torch.acosh`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn acosh(&self) -> Result<Tensor> {
        self.acosh_of()
    }
}
