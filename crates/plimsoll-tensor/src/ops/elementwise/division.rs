//! Rounding division and its remainders: `floor_divide`, `remainder`, `div_trunc`, `fmod`. They are rows of the table in
//! `binary.rs`. Integer inputs give integer results.

use super::binary::{Binary, Reads, Row, Types, change, row_cases};
use super::real::Real;
use crate::dispatch::call_one;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `then` if `m` and `b` have the same sign or `m` is 0; otherwise `otherwise`.
#[inline(always)]
fn same_sign<R: Real>(m: R, b: R, then: R, otherwise: R) -> R {
    let zero = R::of(0.0);
    let unequal = b.at_most(zero, m.at_most(zero, then, otherwise), m.at_most(zero, otherwise, then));
    m.equals(zero, then, unequal)
}

/// Python's `%`: the remainder has the sign of the divisor.
#[inline(always)]
fn remainder<R: Real>(a: R, b: R) -> R {
    let m = a.modulo(b);
    same_sign(m, b, m, m + b)
}

/// Python's `//`: exact, even where rounding `a / b` first could cross an integer.
#[inline(always)]
fn floor_divide<R: Real>(a: R, b: R) -> R {
    let m = a.modulo(b);
    let whole = (a - m) / b;
    let below = same_sign(m, b, whole, whole - R::of(1.0));
    let floor = below.floor();
    let nearest = (below - floor).at_most(R::of(0.5), floor, floor + R::of(1.0));
    b.equals(R::of(0.0), a / b, nearest)
}

macro_rules! divisions {
    ($(
        $(#[$doc:meta])*
        $name:ident, $scalar:ident, $in_place:ident => $row:ident($backward:literal) {
            |$a:ident, $b:ident| $value:expr,
            left |$lg:ident| $left:expr,
            right reads $reads:ident: |$g:ident, $ra:ident, $rb:ident| $right:expr
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        struct $row;

        impl Row for $row {
            const NAME: &'static str = stringify!($name);
            const IN_PLACE: &'static str = stringify!($in_place);
            const BACKWARD: &'static str = $backward;
            const READS: [Reads; 2] = [Reads::Neither, Reads::$reads];
            const TYPES: Types = Types::Numbers;
            #[inline(always)]
            fn value<R: Real>($a: R, $b: R) -> R {
                $value
            }
            #[inline(always)]
            fn left<R: Real>($lg: R, _: R, _: R) -> R {
                $left
            }
            #[inline(always)]
            #[allow(unused_variables, reason = "a gradient need not read everything")]
            fn right<R: Real>($g: R, $ra: R, $rb: R) -> R {
                $right
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// If an integer is divided by 0, the shapes do not broadcast, a tensor is `bool`, or memory runs out.
            #[track_caller]
            pub fn $name(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
                let other = other.as_ref();
                want_divisor(stringify!($name), self, other)?;
                call_one(Binary($row), &[self, other])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with a number.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($name), "`].")]
            #[track_caller]
            pub fn $scalar(&self, divisor: impl Into<Scalar>) -> Result<Tensor> {
                self.$name(&self.divisor(divisor.into())?)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($name), "`] and [`Tensor::add_`].")]
            #[track_caller]
            pub fn $in_place(&self, other: impl AsRef<Tensor>) -> Result<()> {
                let other = other.as_ref();
                want_divisor(stringify!($in_place), self, other)?;
                change::<$row>(self, other)
            }
        }
    )*

    /// Cases for the conformance suite. Finite differences would cross steps, so gradients are compared with PyTorch's
    /// (`training.py`).
    pub(crate) fn cases() -> Vec<Case> {
        let rows = [$(row_cases($row, Domain::Positive)),*].into_iter().flatten();
        rows.map(Case::without_derivative).collect()
    }
    };
}

divisions! {
    /// The remainder of division, with the sign of the divisor: Python's `%`, broadcast. Like `torch.remainder`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-3i64, 5], &[2], &Device::cpu())?;
    /// assert_eq!(x.remainder_scalar(2)?.to_vec::<i64>()?, [1, 1]);
    /// assert_eq!(x.floor_divide_scalar(2)?.to_vec::<i64>()?, [-2, 2]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    remainder, remainder_scalar, remainder_ => Remainder("remainder_backward") {
        |a, b| remainder(a, b),
        left |g| g,
        right reads Both: |g, a, b| -g * floor_divide(a, b)
    }

    /// The remainder of division, with the sign of the dividend: C's `fmod`, broadcast. Like `torch.fmod`.
    fmod, fmod_scalar, fmod_ => Modulo("fmod_backward") {
        |a, b| a.modulo(b),
        left |g| g,
        right reads Both: |g, a, b| -g * (a / b).trunc()
    }

    /// Division rounded down: Python's `//`, broadcast. No gradient flows. Like `torch.floor_divide` and
    /// `torch.div(rounding_mode="floor")`.
    floor_divide, floor_divide_scalar, floor_divide_ => FloorDivide("floor_divide_backward") {
        |a, b| floor_divide(a, b),
        left |g| g * R::of(0.0),
        right reads Neither: |g, a, b| g * R::of(0.0)
    }

    /// Division rounded towards 0, broadcast. No gradient flows. Like `torch.div(rounding_mode="trunc")`.
    div_trunc, div_trunc_scalar, div_trunc_ => TruncatedDivide("div_trunc_backward") {
        |a, b| (a / b).trunc(),
        left |g| g * R::of(0.0),
        right reads Neither: |g, a, b| g * R::of(0.0)
    }
}

/// Fails if an integer would be divided by 0.
#[track_caller]
fn want_divisor(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype().is_float() || b.dtype().is_float() || !b.device().has_values() {
        return Ok(());
    }
    match b.eq_scalar(0)?.any()?.item::<bool>()? {
        true => Err(Error::argument(op, "an integer is divided by 0")),
        false => Ok(()),
    }
}

impl Tensor {
    /// A number as a scalar tensor in the dtype of the result.
    #[track_caller]
    fn divisor(&self, value: Scalar) -> Result<Tensor> {
        let dtype: DType = value.result_type(self.dtype());
        Tensor::full(&[], value.to_f64(), dtype, self.device())
    }
}
