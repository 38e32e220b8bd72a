//! The operators `+ - * /`, `& | ^`, `-x` and `!x`, for owned and borrowed tensors, and the first four also with a
//! number on either side. Each calls the method of the same name and returns its result: `((&a + b)? * 2.0)?`.
//!
//! `a + b` borrows its tensors even if it owns them: an owned operand is dropped after the operation, not reused for its output.

use crate::dtype::Scalar;
use crate::error::Result;
use crate::ops::want_number;
use crate::tensor::Tensor;

/// Implements one operator for `$left` and `$right`, given an expression of both.
macro_rules! operator {
    ($trait:ident $method:ident: |$a:ident: $left:ty, $b:ident: $right:ty| $body:expr) => {
        impl std::ops::$trait<$right> for $left {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, $b: $right) -> Result<Tensor> {
                let $a = self;
                $body
            }
        }
    };
}

/// Implements an operator for two tensors by calling a method.
macro_rules! pair {
    ($($trait:ident $sign:ident $method:ident;)*) => {$(
        operator!($trait $sign: |a: Tensor, b: Tensor| Tensor::$method(&a, &b));
        operator!($trait $sign: |a: Tensor, b: &Tensor| Tensor::$method(&a, b));
        operator!($trait $sign: |a: &Tensor, b: Tensor| Tensor::$method(a, &b));
        operator!($trait $sign: |a: &Tensor, b: &Tensor| Tensor::$method(a, b));
    )*};
}

/// Implements an operator for two tensors, and for a tensor and a number, given a method or function for each.
macro_rules! operators {
    ($($trait:ident $method:ident $with_scalar:ident $scalar_first:ident;)*) => {$(
        pair!($trait $method $method;);
        operators!(@ $trait $method $with_scalar $scalar_first f64);
        operators!(@ $trait $method $with_scalar $scalar_first i64);
    )*};
    (@ $trait:ident $method:ident $with_scalar:ident $scalar_first:ident $number:ty) => {
        operator!($trait $method: |a: Tensor, b: $number| a.$with_scalar(b));
        operator!($trait $method: |a: &Tensor, b: $number| a.$with_scalar(b));
        operator!($trait $method: |a: $number, b: Tensor| $scalar_first(a.into(), &b));
        operator!($trait $method: |a: $number, b: &Tensor| $scalar_first(a.into(), b));
    };
}

operators! {
    Add add add_scalar number_plus;
    Sub sub sub_scalar number_minus;
    Mul mul mul_scalar number_times;
    Div div div_scalar number_over;
}

#[track_caller]
fn number_plus(number: Scalar, tensor: &Tensor) -> Result<Tensor> {
    tensor.add_scalar(number)
}

/// An integer tensor combined with an integer stays an integer tensor.
#[track_caller]
fn number_minus(number: Scalar, tensor: &Tensor) -> Result<Tensor> {
    want_number("sub", tensor.dtype())?;
    match number.result_type(tensor.dtype()).is_float() {
        true => tensor.affine(-1.0, number.to_f64()),
        false => tensor.neg()?.add_scalar(number),
    }
}

#[track_caller]
fn number_times(number: Scalar, tensor: &Tensor) -> Result<Tensor> {
    tensor.mul_scalar(number)
}

#[track_caller]
fn number_over(number: Scalar, tensor: &Tensor) -> Result<Tensor> {
    tensor.reciprocal()?.mul_scalar(number)
}

pair! {
    BitAnd bitand bitwise_and;
    BitOr bitor bitwise_or;
    BitXor bitxor bitwise_xor;
}

/// Implements an operator on one tensor by calling a method.
macro_rules! prefix {
    ($($trait:ident $sign:ident $method:ident for $($tensor:ty),*;)*) => {$($(
        impl std::ops::$trait for $tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $sign(self) -> Result<Tensor> {
                Tensor::$method(&self)
            }
        }
    )*)*};
}
prefix! {
    Neg neg neg for Tensor, &Tensor;
    Not not bitwise_not for Tensor, &Tensor;
}
