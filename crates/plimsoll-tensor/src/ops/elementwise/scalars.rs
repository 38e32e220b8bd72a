//! Sums and products with a number, in place.

use smallvec::smallvec;

use super::functions::{Affine, AffineWhole};
use super::operands;
use super::unary;
use crate::dtype::Scalar;
use crate::error::Result;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

impl Tensor {
    /// `self += value`. Like `Tensor.add_(value)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_`], or if the number for an integer tensor is fractional.
    #[track_caller]
    pub fn add_scalar_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.with_scalars_("add_", Scalar::Int(1), value.into())
    }

    /// `self -= value`. Like `Tensor.sub_(value)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_scalar_`].
    #[track_caller]
    pub fn sub_scalar_(&self, value: impl Into<Scalar>) -> Result<()> {
        let negative = match value.into() {
            Scalar::Int(value) => Scalar::Int(value.wrapping_neg()),
            Scalar::Float(value) => Scalar::Float(-value),
        };
        self.with_scalars_("sub_", Scalar::Int(1), negative)
    }

    /// `self *= value`. Like `Tensor.mul_(value)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_scalar_`].
    #[track_caller]
    pub fn mul_scalar_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.with_scalars_("mul_", value.into(), Scalar::Int(0))
    }

    /// `self /= value`, in floating point. Like `Tensor.div_(value)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_scalar_`].
    #[track_caller]
    pub fn div_scalar_(&self, value: impl Into<Scalar>) -> Result<()> {
        unary::change_as("div_", self, Affine { mul: 1.0 / value.into().to_f64(), add: 0.0 })
    }

    fn with_scalars_(&self, op: &'static str, mul: Scalar, add: Scalar) -> Result<()> {
        operands::want_holds(op, self.dtype(), add.result_type(mul.result_type(self.dtype())))?;
        let (mul, add) = (mul.to_f64(), add.to_f64());
        if self.dtype().is_float() {
            unary::change_as(op, self, Affine { mul, add })
        } else {
            unary::change_as(op, self, AffineWhole { mul, add })
        }
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let of = |name: &str, f: fn(&Tensor) -> Result<()>, formula: fn(f64) -> f64| {
        let run = move |ins: &[&Tensor]| {
            f(ins[0])?;
            Ok(smallvec![ins[0].clone()])
        };
        let values = move |ins: &[Vec<f64>]| vec![ins[0].iter().map(|&x| formula(x)).collect()];
        Case::new(name, &[&[3, 4]], run).over(Domain::Positive).expect(values).without_derivative()
    };
    let pair = |name: &str, f: fn(&Tensor, &Tensor) -> Result<()>, formula: fn(f64, f64) -> f64| {
        let run = move |ins: &[&Tensor]| {
            f(ins[0], ins[1])?;
            Ok(smallvec![ins[0].clone()])
        };
        let values = move |ins: &[Vec<f64>]| {
            vec![ins[0].iter().enumerate().map(|(i, &y)| formula(y, ins[1][i % 4])).collect()]
        };
        Case::new(name, &[&[3, 4], &[4]], run).over(Domain::Positive).expect(values).without_derivative()
    };
    vec![
        of("relu_", Tensor::relu_, |x| x.max(0.0)),
        of("exp_", Tensor::exp_, f64::exp),
        of("clamp_", |x| x.clamp_(0.8, 1.2), |x| x.clamp(0.8, 1.2)),
        of("mul_ by a number", |x| x.mul_scalar_(2.5), |x| x * 2.5),
        pair("sub_", |a, b| a.sub_(b), |y, x| y - x),
        pair("div_", |a, b| a.div_(b), |y, x| y / x),
    ]
}
