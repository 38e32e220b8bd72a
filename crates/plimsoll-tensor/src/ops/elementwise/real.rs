//! The numeric trait in which the rows of the elementwise tables are written.
//!
//! A row's expression is generic over [`Real`], so one expression serves several purposes. With `f32`, `f64` and [`Whole`] it
//! is the host's kernel. With [`Traced`](super::traced::Traced) it becomes tensor operations, which are recorded if a
//! derivative must be differentiated. With [`Text`](super::traced::Text) it becomes the source code of a GPU kernel. With
//! [`Dual`](super::dual::Dual) it computes its own derivative. So these cannot disagree.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::cpu::kernels::exp;

/// A number, or a stand-in for one.
pub(crate) trait Real:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// A constant.
    fn of(value: f64) -> Self;
    /// `e` to this power.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-x)`, in a form that keeps a slope at both ends.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::of(1.0) / (Self::of(1.0) + (-self).exp())
    }
    /// The error function.
    fn erf(self) -> Self;
    /// `1 - erf(x)`, exact where it is small.
    fn erfc(self) -> Self;
    /// Logarithm of the absolute value of the gamma function.
    fn ln_gamma(self) -> Self;
    /// Sine of an angle in radians.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Tangent.
    fn tan(self) -> Self;
    /// Arcsine, in radians.
    fn asin(self) -> Self;
    /// Arccosine, in radians.
    fn acos(self) -> Self;
    /// Arctangent, in radians.
    fn atan(self) -> Self;
    /// Natural logarithm of `1 + x`, exact for small `x`.
    fn ln_1p(self) -> Self;
    /// `e^x - 1`, exact for small `x`.
    fn exp_m1(self) -> Self;
    /// The largest integer not above it.
    fn floor(self) -> Self;
    /// The smallest integer not below it.
    fn ceil(self) -> Self;
    /// The nearest integer, with ties to even.
    fn round(self) -> Self;
    /// Rounds towards 0.
    fn trunc(self) -> Self;
    /// Raises to the power of `exponent`.
    fn pow(self, exponent: Self) -> Self;
    /// The angle of the point `(x, self)`.
    fn angle(self, x: Self) -> Self;
    /// The remainder of division by `divisor` towards 0, with the sign of `self`.
    fn modulo(self, divisor: Self) -> Self;
    /// `then` if `self <= limit`, otherwise (also for NaN) `otherwise`.
    fn at_most(self, limit: Self, then: Self, otherwise: Self) -> Self;
    /// `then` if `self == other`, otherwise (also for NaN) `otherwise`.
    fn equals(self, other: Self, then: Self, otherwise: Self) -> Self;
}

macro_rules! real {
    ($t:ty, $exp:path, $tanh:path, $erf:path, $erfc:path, $ln_gamma:path) => {
        impl Real for $t {
            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one body for both types")]
            fn of(value: f64) -> $t {
                value as $t
            }
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> $t {
                <$t>::ln(self)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> $t {
                $erf(self)
            }
            #[inline(always)]
            fn erfc(self) -> $t {
                $erfc(self)
            }
            #[inline(always)]
            fn ln_gamma(self) -> $t {
                $ln_gamma(self)
            }
            real!(@std $t: sin sin, cos cos, tan tan, asin asin, acos acos, atan atan, ln_1p ln_1p, exp_m1 exp_m1,
                floor floor, ceil ceil, round round_ties_even, trunc trunc);
            #[inline(always)]
            fn pow(self, exponent: $t) -> $t {
                <$t>::powf(self, exponent)
            }
            #[inline(always)]
            fn angle(self, x: $t) -> $t {
                <$t>::atan2(self, x)
            }
            #[inline(always)]
            fn modulo(self, divisor: $t) -> $t {
                self % divisor
            }
            #[inline(always)]
            fn at_most(self, limit: $t, then: $t, otherwise: $t) -> $t {
                if self <= limit { then } else { otherwise }
            }
            #[inline(always)]
            #[allow(clippy::float_cmp, reason = "exactly that is asked for")]
            fn equals(self, other: $t, then: $t, otherwise: $t) -> $t {
                if self == other { then } else { otherwise }
            }
        }
    };
    (@std $t:ty: $($name:ident $std:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> $t {
            <$t>::$std(self)
        }
    )*};
}
real!(f32, exp::exp, exp::tanh, libm::erff, libm::erfcf, libm::lgammaf);
real!(f64, f64::exp, f64::tanh, libm::erf, libm::erfc, libm::lgamma);

/// A wrapping integer, as in hardware. Functions without integer results are never called: each row declares the dtypes that it
/// supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole(pub(crate) i64);

macro_rules! wrapping {
    ($($trait:ident $method:ident $wrapping:ident),*) => {$(
        impl $trait for Whole {
            type Output = Whole;
            #[inline(always)]
            fn $method(self, other: Whole) -> Whole {
                Whole(self.0.$wrapping(other.0))
            }
        }
    )*};
}
wrapping!(Add add wrapping_add, Sub sub wrapping_sub, Mul mul wrapping_mul);

/// Rounds towards 0. Operators refuse a divisor of 0 before they run.
impl Div for Whole {
    type Output = Whole;
    #[inline(always)]
    fn div(self, other: Whole) -> Whole {
        Whole(if other.0 == 0 { 0 } else { self.0.wrapping_div(other.0) })
    }
}

impl Neg for Whole {
    type Output = Whole;
    #[inline(always)]
    fn neg(self) -> Whole {
        Whole(self.0.wrapping_neg())
    }
}

fn not_whole() -> Whole {
    unreachable!("this function has no whole results")
}

macro_rules! whole {
    (not_whole: $($name:ident),*) => {$(
        fn $name(self) -> Whole {
            not_whole()
        }
    )*};
    (itself: $($name:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> Whole {
            self
        }
    )*};
}

impl Real for Whole {
    #[inline(always)]
    fn of(value: f64) -> Whole {
        Whole(value as i64)
    }
    fn exp(self) -> Whole {
        not_whole()
    }
    fn ln(self) -> Whole {
        not_whole()
    }
    fn sqrt(self) -> Whole {
        not_whole()
    }
    fn tanh(self) -> Whole {
        not_whole()
    }
    fn erf(self) -> Whole {
        not_whole()
    }
    whole!(not_whole: erfc, ln_gamma, sin, cos, tan, asin, acos, atan, ln_1p, exp_m1);
    fn angle(self, _: Whole) -> Whole {
        not_whole()
    }
    #[inline(always)]
    fn modulo(self, divisor: Whole) -> Whole {
        Whole(if divisor.0 == 0 { 0 } else { self.0.wrapping_rem(divisor.0) })
    }
    whole!(itself: floor, ceil, round, trunc);
    /// Negative powers are exact for 1 and -1, and 0 for other numbers, as in PyTorch.
    fn pow(self, exponent: Whole) -> Whole {
        match (self.0, exponent.0) {
            (base, mut power @ 0..) => {
                let (mut result, mut factor) = (1i64, base);
                while power > 0 {
                    if power & 1 == 1 {
                        result = result.wrapping_mul(factor);
                    }
                    factor = factor.wrapping_mul(factor);
                    power >>= 1;
                }
                Whole(result)
            }
            (1, _) => Whole(1),
            (-1, power) => Whole(if power % 2 == 0 { 1 } else { -1 }),
            _ => Whole(0),
        }
    }
    #[inline(always)]
    fn at_most(self, limit: Whole, then: Whole, otherwise: Whole) -> Whole {
        if self.0 <= limit.0 { then } else { otherwise }
    }
    #[inline(always)]
    fn equals(self, other: Whole, then: Whole, otherwise: Whole) -> Whole {
        if self.0 == other.0 { then } else { otherwise }
    }
}
