//! The digamma function (the derivative of `lgamma`), and polynomials.

use std::f64::consts::PI;

use super::real::Real;

/// `a[0] + a[1] x + a[2] x² + …`
#[inline(always)]
pub(super) fn polynomial<R: Real>(x: R, coefficients: &[f64]) -> R {
    let (last, rest) = coefficients.split_last().unwrap_or((&0.0, &[]));
    rest.iter().rev().fold(R::of(*last), |sum, &a| sum * x + R::of(a))
}

/// The derivative of `lgamma`: reflection below 1/2, eight steps of the recurrence, then the asymptotic series.
#[inline(always)]
pub(super) fn digamma<R: Real>(x: R) -> R {
    let (one, half) = (R::of(1.0), R::of(0.5));
    let mut z = x.at_most(half, one - x, x);
    let mut steps = R::of(0.0);
    for _ in 0..8 {
        steps = steps + one / z;
        z = z + one;
    }
    let square = one / (z * z);
    let series = [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0];
    let large = z.ln() - half / z - square * polynomial(square, &series);
    let value = large - steps - x.at_most(half, R::of(PI) / (x * R::of(PI)).tan(), R::of(0.0));
    // At negative integers it tends to minus infinity from one side and to infinity from the other.
    let (zero, none) = (R::of(0.0), R::of(0.0) / R::of(-0.0));
    x.at_most(zero, x.equals(zero, value, x.equals(x.trunc(), none, value)), value)
}
