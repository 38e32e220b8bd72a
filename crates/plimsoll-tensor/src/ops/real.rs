//! Real numbers, in which the rows of the elementwise tables are written.
//!
//! A row's expression is generic over [`Real`], and so has several readings: with `f32` and `f64` it is the
//! kernel of the host; with [`Traced`](super::traced::Traced) it is operations on tensors, which are recorded
//! where a derivative needs a derivative itself; with [`Text`](super::traced::Text) it is the text of a kernel
//! for a GPU. So they cannot differ.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::cpu::kernels::exp;

/// A number, or what stands for one.
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
    /// The error function.
    fn erf(self) -> Self;
    /// `then` where this is at most `limit`, else `otherwise`, which not a number chooses too.
    fn at_most(self, limit: Self, then: Self, otherwise: Self) -> Self;
}

macro_rules! real {
    ($t:ty, $exp:path, $tanh:path, $erf:path) => {
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
            fn at_most(self, limit: $t, then: $t, otherwise: $t) -> $t {
                if self <= limit { then } else { otherwise }
            }
        }
    };
}
real!(f32, exp::exp, exp::tanh, libm::erff);
real!(f64, f64::exp, f64::tanh, libm::erf);
