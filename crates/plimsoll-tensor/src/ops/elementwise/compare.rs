//! Comparisons with a number, and predicates such as `isnan`. The results are `bool` tensors.

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::Real;
use super::traced::Text;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::suite::Case;
use crate::tensor::Tensor;

/// A predicate of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Test {
    Eq(Scalar),
    Ne(Scalar),
    Lt(Scalar),
    Le(Scalar),
    Gt(Scalar),
    Ge(Scalar),
    Not,
    NotANumber,
    Infinite,
    Finite,
}

impl Test {
    /// The number that elements are compared with.
    fn value(self) -> Option<Scalar> {
        match self {
            Test::Eq(value)
            | Test::Ne(value)
            | Test::Lt(value)
            | Test::Le(value)
            | Test::Gt(value)
            | Test::Ge(value) => Some(value),
            _ => None,
        }
    }

    /// 1 if an element passes, otherwise 0.
    #[inline(always)]
    fn of<R: Real>(self, x: R) -> R {
        let (yes, no) = (R::of(1.0), R::of(0.0));
        let limit = |value: Scalar| R::of(value.to_f64());
        match self {
            Test::Eq(value) => x.equals(limit(value), yes, no),
            Test::Ne(value) => x.equals(limit(value), no, yes),
            Test::Le(value) => x.at_most(limit(value), yes, no),
            Test::Lt(value) => x.at_most(limit(value), x.equals(limit(value), no, yes), no),
            Test::Ge(value) => limit(value).at_most(x, yes, no),
            Test::Gt(value) => limit(value).at_most(x, x.equals(limit(value), no, yes), no),
            Test::Not => x.equals(no, yes, no),
            Test::NotANumber => x.equals(x, no, yes),
            // Infinity times zero is NaN.
            Test::Finite => (x * no).equals(no, yes, no),
            Test::Infinite => (x * no).equals(no, no, x.equals(x, yes, no)),
        }
    }
}

impl Kernel for Test {
    fn name(&self) -> &'static str {
        match self {
            Test::Eq(_) => "eq",
            Test::Ne(_) => "ne",
            Test::Lt(_) => "lt",
            Test::Le(_) => "le",
            Test::Gt(_) => "gt",
            Test::Ge(_) => "ge",
            Test::Not => "logical_not",
            Test::NotANumber => "isnan",
            Test::Infinite => "isinf",
            Test::Finite => "isfinite",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let dtype = call.ins[0].dtype;
        let compute = self.value().map_or(dtype, |value| value.result_type(dtype));
        let text = Text::of_expression(["a"], |[x]| self.of(x));
        cuda::elementwise::of_operator(call, &text, Some(compute))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let laid = Laid::of(out.layout(), [x.layout()]);
        let dtype = x.dtype();
        let compute = self.value().map_or(dtype, |value| value.result_type(dtype));
        operands::evaluate(&laid, [x], out, compute, |[x]| self.of(x), |[x]| self.of(x), |[x]| self.of(x));
        Ok(())
    }
}

impl Operator for Test {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::laid_out(x.layout.dense(), DType::Bool)])
    }
}

macro_rules! comparisons {
    ($($scalar:ident => $order:ident, $name:literal, $sign:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("Where `self ", $sign, " value`: a tensor of `bool`. As `torch.", $name, "` with a number.")]
                ///
                /// # Errors
                /// If memory runs out.
                #[track_caller]
                pub fn $scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
                    call_one(Test::$order(value.into()), &[self])
                }
            )*
        }
    };
}
comparisons! {
    eq_scalar => Eq, "eq", "==";
    ne_scalar => Ne, "ne", "!=";
    lt_scalar => Lt, "lt", "<";
    le_scalar => Le, "le", "<=";
    gt_scalar => Gt, "gt", ">";
    ge_scalar => Ge, "ge", ">=";
}

macro_rules! tests {
    ($($name:ident => $test:ident, $what:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("Where elements are ", $what, ": a tensor of `bool`. As `torch.", stringify!($name), "`.")]
                ///
                /// # Errors
                /// If memory runs out.
                #[track_caller]
                pub fn $name(&self) -> Result<Tensor> {
                    call_one(Test::$test, &[self])
                }
            )*
        }
    };
}
tests! {
    logical_not => Not, "zero or false";
    isnan => NotANumber, "not a number";
    isinf => Infinite, "infinite";
    isfinite => Finite, "finite numbers";
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let zero = Scalar::Int(0);
    [
        Test::Eq(zero),
        Test::Ne(zero),
        Test::Lt(zero),
        Test::Le(zero),
        Test::Gt(zero),
        Test::Ge(zero),
        Test::Not,
        Test::NotANumber,
        Test::Infinite,
        Test::Finite,
    ]
    .into_iter()
    .map(|test| {
        Case::new(test.name(), &[&[3, 4]], move |ins| call(test, ins))
            .expect(move |ins| vec![ins[0].iter().map(|&x| test.of(x)).collect()])
            .without_derivative()
    })
    .collect()
}
