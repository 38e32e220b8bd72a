//! The three compute types, so that a kernel is written only once: [`Number`] covers all of them, [`Float`] the
//! floating-point ones.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use super::exp;
use crate::dtype::Stored;

/// A number type for which kernels are written.
pub trait Number: Stored + PartialOrd + Default {
    /// The smallest value, which is the initial value of a maximum.
    const LOWEST: Self;
    /// One.
    const ONE: Self;
    /// `self * by + plus`; integers wrap.
    fn times_plus(self, by: Self, plus: Self) -> Self;
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
}

macro_rules! float {
    ($t:ty, $exp:path, $tanh:path) => {
        impl Number for $t {
            const LOWEST: $t = <$t>::NEG_INFINITY;
            const ONE: $t = 1.0;
            #[inline(always)]
            fn times_plus(self, by: $t, plus: $t) -> $t {
                self * by + plus
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
        }

        impl Float for $t {
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one body for both types")]
            const EPSILON: f64 = <$t>::EPSILON as f64;
            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "one body for both types")]
            fn of(value: f64) -> $t {
                value as $t
            }
            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one body for both types")]
            fn wide(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn ln(self) -> $t {
                <$t>::ln(self)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }
        }
    };
}
float!(f32, exp::exp, exp::tanh);
float!(f64, f64::exp, f64::tanh);

macro_rules! whole {
    ($($t:ty),*) => {$(
        impl Number for $t {
            const LOWEST: $t = <$t>::MIN;
            const ONE: $t = 1;
            #[inline(always)]
            fn times_plus(self, by: $t, plus: $t) -> $t {
                self.wrapping_mul(by).wrapping_add(plus)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    )*};
}
whole!(i64, i32, i16, u8);

/// `f32` or `f64`.
pub trait Float:
    Number
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Sum
{
    /// The distance from 1 to the next number.
    const EPSILON: f64;
    /// Rounds a 64-bit float to this type.
    fn of(value: f64) -> Self;
    /// Converts to a 64-bit float.
    fn wide(self) -> f64;
    /// `e` to the power of `self`.
    fn exp(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
}

/// Evaluates a body in which a name stands for the floating-point type that was passed to a kernel.
#[doc(hidden)]
#[macro_export]
macro_rules! by_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
#[doc(hidden)]
pub use by_float;

/// Evaluates a body in which a name stands for the type that was passed to a kernel.
#[doc(hidden)]
#[macro_export]
macro_rules! by_number {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::dtype::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::dtype::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::dtype::DType::I16 => {
                type $t = i16;
                $body
            }
            $crate::dtype::DType::U8 => {
                type $t = u8;
                $body
            }
            _ => {
                type $t = i64;
                $body
            }
        }
    };
}
#[doc(hidden)]
pub use by_number;
