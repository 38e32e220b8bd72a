//! Dual numbers, which evaluate the derivative of a row's expression with respect to one of its inputs.
//!
//! A [`Dual`] number has a value and a slope, and arithmetic computes both. A slope that is known to be 0 is `None`. So
//! evaluating a row also shows for which inputs the derivative is 0 everywhere, and nothing is computed or saved for
//! those. When an expression chooses a value, only the slope of the chosen value counts, even if the other one is NaN.

use std::f64::consts::FRAC_2_SQRT_PI;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::gamma::digamma;
use super::real::Real;

/// A value and its derivative.
#[derive(Clone, Copy)]
pub(crate) struct Dual<R> {
    value: R,
    slope: Option<R>,
}

impl<R: Real> Dual<R> {
    /// `scale` times the derivative of an expression with respect to its input `by`. `None` if it is 0 everywhere.
    #[inline]
    pub(crate) fn slope_of<const N: usize>(
        ins: [R; N],
        by: usize,
        scale: R,
        expression: impl FnOnce([Dual<R>; N]) -> Dual<R>,
    ) -> Option<R> {
        expression(Dual::inputs(ins, by, scale)).slope
    }

    /// Compiled once, not for each expression.
    #[inline]
    fn inputs<const N: usize>(ins: [R; N], by: usize, scale: R) -> [Dual<R>; N] {
        std::array::from_fn(|i| Dual { value: ins[i], slope: (i == by).then_some(scale) })
    }

    /// A result with this value; its slope is multiplied by what `by` returns (the chain rule).
    #[inline]
    fn chained(self, value: R, by: impl FnOnce() -> R) -> Dual<R> {
        Dual { value, slope: self.slope.map(|slope| slope * by()) }
    }

    /// The sum of two slopes.
    #[inline]
    fn both(a: Option<R>, b: Option<R>) -> Option<R> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (one, other) => one.or(other),
        }
    }

    /// A chosen value. `choose` selects between the slopes, if there are any.
    #[inline]
    fn chosen(value: R, then: Dual<R>, otherwise: Dual<R>, choose: impl FnOnce(R, R) -> R) -> Dual<R> {
        let slope = match (then.slope, otherwise.slope) {
            (None, None) => None,
            (a, b) => Some(choose(a.unwrap_or(R::of(0.0)), b.unwrap_or(R::of(0.0)))),
        };
        Dual { value, slope }
    }

    #[inline]
    fn flat(value: R) -> Dual<R> {
        Dual { value, slope: None }
    }
}

impl<R: Real> Add for Dual<R> {
    type Output = Dual<R>;
    #[inline]
    fn add(self, other: Dual<R>) -> Dual<R> {
        Dual { value: self.value + other.value, slope: Dual::both(self.slope, other.slope) }
    }
}

impl<R: Real> Sub for Dual<R> {
    type Output = Dual<R>;
    #[inline]
    fn sub(self, other: Dual<R>) -> Dual<R> {
        let slope = match (self.slope, other.slope) {
            (Some(a), Some(b)) => Some(a - b),
            (a, b) => a.or(b.map(|b| -b)),
        };
        Dual { value: self.value - other.value, slope }
    }
}

impl<R: Real> Mul for Dual<R> {
    type Output = Dual<R>;
    #[inline]
    fn mul(self, other: Dual<R>) -> Dual<R> {
        let slope = Dual::both(self.slope.map(|a| a * other.value), other.slope.map(|b| self.value * b));
        Dual { value: self.value * other.value, slope }
    }
}

impl<R: Real> Div for Dual<R> {
    type Output = Dual<R>;
    #[inline]
    #[allow(
        clippy::suspicious_arithmetic_impl,
        reason = "the rule for a quotient's derivative has a product"
    )]
    fn div(self, other: Dual<R>) -> Dual<R> {
        let value = self.value / other.value;
        let slope =
            Dual::both(self.slope.map(|a| a / other.value), other.slope.map(|b| -(value * b / other.value)));
        Dual { value, slope }
    }
}

impl<R: Real> Neg for Dual<R> {
    type Output = Dual<R>;
    #[inline]
    fn neg(self) -> Dual<R> {
        Dual { value: -self.value, slope: self.slope.map(|slope| -slope) }
    }
}

macro_rules! steps {
    ($($name:ident),*) => {$(
        #[inline]
        fn $name(self) -> Dual<R> {
            Dual::flat(self.value.$name())
        }
    )*};
}

impl<R: Real> Real for Dual<R> {
    #[inline]
    fn of(value: f64) -> Dual<R> {
        Dual::flat(R::of(value))
    }
    #[inline]
    fn exp(self) -> Dual<R> {
        let value = self.value.exp();
        self.chained(value, || value)
    }
    #[inline]
    fn ln(self) -> Dual<R> {
        Dual { value: self.value.ln(), slope: self.slope.map(|slope| slope / self.value) }
    }
    #[inline]
    fn sqrt(self) -> Dual<R> {
        let value = self.value.sqrt();
        Dual { value, slope: self.slope.map(|slope| slope / (value + value)) }
    }
    #[inline]
    fn tanh(self) -> Dual<R> {
        let value = self.value.tanh();
        self.chained(value, || R::of(1.0) - value * value)
    }
    /// Computed from both ends: `sigmoid - 1` would lose precision near 1.
    #[inline]
    fn sigmoid(self) -> Dual<R> {
        let value = self.value.sigmoid();
        self.chained(value, || value * (-self.value).sigmoid())
    }
    #[inline]
    fn erf(self) -> Dual<R> {
        self.chained(self.value.erf(), || R::of(FRAC_2_SQRT_PI) * (-(self.value * self.value)).exp())
    }
    #[inline]
    fn erfc(self) -> Dual<R> {
        self.chained(self.value.erfc(), || R::of(-FRAC_2_SQRT_PI) * (-(self.value * self.value)).exp())
    }
    #[inline]
    fn ln_gamma(self) -> Dual<R> {
        self.chained(self.value.ln_gamma(), || digamma(self.value))
    }
    #[inline]
    fn sin(self) -> Dual<R> {
        self.chained(self.value.sin(), || self.value.cos())
    }
    #[inline]
    fn cos(self) -> Dual<R> {
        self.chained(self.value.cos(), || -self.value.sin())
    }
    #[inline]
    fn tan(self) -> Dual<R> {
        let value = self.value.tan();
        self.chained(value, || R::of(1.0) + value * value)
    }
    #[inline]
    fn asin(self) -> Dual<R> {
        self.chained(self.value.asin(), || R::of(1.0) / (R::of(1.0) - self.value * self.value).sqrt())
    }
    #[inline]
    fn acos(self) -> Dual<R> {
        self.chained(self.value.acos(), || R::of(-1.0) / (R::of(1.0) - self.value * self.value).sqrt())
    }
    #[inline]
    fn atan(self) -> Dual<R> {
        self.chained(self.value.atan(), || R::of(1.0) / (R::of(1.0) + self.value * self.value))
    }
    #[inline]
    fn ln_1p(self) -> Dual<R> {
        let slope = self.slope.map(|slope| slope / (R::of(1.0) + self.value));
        Dual { value: self.value.ln_1p(), slope }
    }
    #[inline]
    fn exp_m1(self) -> Dual<R> {
        self.chained(self.value.exp_m1(), || self.value.exp())
    }
    steps!(floor, ceil, round, trunc);
    #[inline]
    fn pow(self, exponent: Dual<R>) -> Dual<R> {
        let (x, e) = (self.value, exponent.value);
        let value = x.pow(e);
        // Anything to the power of 0 is 1.
        let of_base =
            self.slope.map(|slope| e.equals(R::of(0.0), R::of(0.0), slope * (e * x.pow(e - R::of(1.0)))));
        Dual { value, slope: Dual::both(of_base, exponent.slope.map(|slope| slope * (value * x.ln()))) }
    }
    #[inline]
    fn angle(self, x: Dual<R>) -> Dual<R> {
        let square = || x.value * x.value + self.value * self.value;
        let slope = Dual::both(
            self.slope.map(|slope| slope * (x.value / square())),
            x.slope.map(|slope| -(slope * (self.value / square()))),
        );
        Dual { value: self.value.angle(x.value), slope }
    }
    #[inline]
    fn modulo(self, divisor: Dual<R>) -> Dual<R> {
        let times = || (self.value / divisor.value).trunc();
        let slope = Dual::both(self.slope, divisor.slope.map(|slope| -(slope * times())));
        Dual { value: self.value.modulo(divisor.value), slope }
    }
    #[inline]
    fn at_most(self, limit: Dual<R>, then: Dual<R>, otherwise: Dual<R>) -> Dual<R> {
        let value = self.value.at_most(limit.value, then.value, otherwise.value);
        Dual::chosen(value, then, otherwise, |a, b| self.value.at_most(limit.value, a, b))
    }
    #[inline]
    fn equals(self, other: Dual<R>, then: Dual<R>, otherwise: Dual<R>) -> Dual<R> {
        let value = self.value.equals(other.value, then.value, otherwise.value);
        Dual::chosen(value, then, otherwise, |a, b| self.value.equals(other.value, a, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slope(x: f64, f: impl FnOnce(Dual<f64>) -> Dual<f64>) -> Option<f64> {
        Dual::slope_of([x], 0, 1.0, |[x]| f(x))
    }

    #[test]
    fn a_slope_is_that_of_the_branch_that_is_taken() {
        let root = |x: Dual<f64>| x.at_most(Dual::of(0.0), Dual::of(0.0), x.sqrt());
        assert_eq!(slope(4.0, root), Some(0.25));
        assert_eq!(slope(0.0, root), Some(0.0));
        assert_eq!(slope(-1.0, root), Some(0.0));
    }

    #[test]
    fn what_does_not_rise_has_no_slope() {
        assert_eq!(slope(0.5, |x| x.floor() * Dual::of(3.0)), None);
        assert_eq!(slope(0.5, |x| x.at_most(Dual::of(0.0), Dual::of(1.0), Dual::of(2.0))), None);
        assert_eq!(slope(0.0, |x| x.pow(Dual::of(1.0))), Some(1.0));
        assert_eq!(slope(100.0, Real::sigmoid), Some(1.0 / (1.0 + 100f64.exp()) / (1.0 + (-100f64).exp())));
    }
}
