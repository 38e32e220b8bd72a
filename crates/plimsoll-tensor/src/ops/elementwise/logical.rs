//! Logical operations, `all`, `any` and counts. An element counts as true if it is not zero.

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::Real;
use super::traced::Text;
use crate::cpu::kernels::fold::fold;
use crate::cpu::kernels::folds::NonZero;
use crate::cuda::reduce::fold::Fold;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, Element, by_dtype};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};
use crate::ops::reduce::reduced::{Keep, Over};
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `a, b -> bool`, broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logic {
    And,
    Or,
    Xor,
}

impl Logic {
    /// 1 if true, otherwise 0.
    #[inline(always)]
    fn of<R: Real>(self, a: R, b: R) -> R {
        let (yes, no) = (R::of(1.0), R::of(0.0));
        match self {
            Logic::And => a.equals(no, no, b.equals(no, no, yes)),
            Logic::Or => a.equals(no, b.equals(no, no, yes), yes),
            Logic::Xor => a.equals(no, b.equals(no, no, yes), b.equals(no, yes, no)),
        }
    }
}

impl Kernel for Logic {
    fn name(&self) -> &'static str {
        match self {
            Logic::And => "logical_and",
            Logic::Or => "logical_or",
            Logic::Xor => "logical_xor",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let text = Text::of_expression(["a", "b"], |[a, b]| self.of(a, b));
        cuda::elementwise::of_operator(call, &text, None)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([a, b], [out]) = call.split();
        let laid = Laid::of(out.layout(), [a.layout(), b.layout()]);
        let compute = operands::common_type_of(&[a, b]);
        operands::evaluate(
            &laid,
            [a, b],
            out,
            compute,
            |[a, b]| self.of(a, b),
            |[a, b]| self.of(a, b),
            |[a, b]| self.of(a, b),
        );
        Ok(())
    }
}

impl Operator for Logic {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = operands::inputs(self.name(), ins)?;
        let shape = layout::broadcast(self.name(), a.shape(), b.shape())?;
        Ok(smallvec![Output::new(&shape, DType::Bool)])
    }
}

/// The result that a reduction computes from truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    All,
    Any,
    HowMany,
}

/// `x -> answer`, over some dimensions.
#[derive(Clone, Debug)]
struct Count {
    question: Question,
    over: Over,
}

impl Kernel for Count {
    fn name(&self) -> &'static str {
        match self.question {
            Question::All => "all",
            Question::Any => "any",
            Question::HowMany => "count_nonzero",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let fold = match self.question {
            Question::All => Fold::All,
            Question::Any | Question::HowMany => Fold::Count,
        };
        cuda::reduce::fold::fold(call, &self.over.marks, fold)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let (shape, marks, most) = (x.shape(), &self.over.marks, self.over.count(x.shape()) as i64);
        by_dtype!(x.dtype(), T => {
            let src = (x.elements::<<T as Element>::Stored>(), x.strides());
            match self.question {
                Question::All => fold(shape, src, marks, &NonZero, out.words(), |n| u8::from(n == most)),
                Question::Any => fold(shape, src, marks, &NonZero, out.words(), |n| u8::from(n > 0)),
                Question::HowMany => fold(shape, src, marks, &NonZero, out.elements::<i64>(), |n| n),
            }
        });
        Ok(())
    }
}

impl Operator for Count {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        let dtype = if self.question == Question::HowMany { DType::I64 } else { DType::Bool };
        Ok(smallvec![Output::new(&self.over.shape(x.shape()), dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }
}

impl Tensor {
    /// Logical AND, broadcast: a `bool` tensor. Like `torch.logical_and`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn logical_and(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        call_one(Logic::And, &[self, other])
    }

    /// Logical OR, broadcast: a `bool` tensor. Like `torch.logical_or`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn logical_or(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        call_one(Logic::Or, &[self, other])
    }

    /// Logical exclusive OR, broadcast: a `bool` tensor. Like `torch.logical_xor`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn logical_xor(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        call_one(Logic::Xor, &[self, other])
    }

    /// Whether all elements are true: a scalar of type `bool`, or `uint8` for a `uint8` tensor. Like `torch.all`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn all(&self) -> Result<Tensor> {
        self.count(Question::All, Over::all(self.rank()))
    }

    /// Whether all elements over some dimensions are true; these dimensions are removed. Like `torch.all(dim)`.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice, or memory runs out.
    #[track_caller]
    pub fn all_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.count(Question::All, Over::dims("all", self.rank(), dims, Keep::Dropped)?)
    }

    /// Whether any element is true: a scalar of type `bool`, or `uint8` for a `uint8` tensor. Like `torch.any`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn any(&self) -> Result<Tensor> {
        self.count(Question::Any, Over::all(self.rank()))
    }

    /// Whether any element over some dimensions is true; these dimensions are removed. Like `torch.any(dim)`.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice, or memory runs out.
    #[track_caller]
    pub fn any_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.count(Question::Any, Over::dims("any", self.rank(), dims, Keep::Dropped)?)
    }

    /// The number of elements that are not zero, as `int64`. Like `torch.count_nonzero`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn count_nonzero(&self) -> Result<Tensor> {
        self.count(Question::HowMany, Over::all(self.rank()))
    }

    /// The number of elements over some dimensions that are not zero; these dimensions are removed. Like
    /// `torch.count_nonzero(dim)`.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice, or memory runs out.
    #[track_caller]
    pub fn count_nonzero_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.count(Question::HowMany, Over::dims("count_nonzero", self.rank(), dims, Keep::Dropped)?)
    }

    #[track_caller]
    fn count(&self, question: Question, over: Over) -> Result<Tensor> {
        let answer = call_one(Count { question, over }, &[self])?;
        // This matches PyTorch, which originally had no `bool`.
        match self.dtype() == DType::U8 && answer.dtype() == DType::Bool {
            true => answer.to_dtype(DType::U8),
            false => Ok(answer),
        }
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let number = |holds: bool| f64::from(u8::from(holds));
    let logic = |op: Logic, holds: fn(bool, bool) -> bool| {
        Case::new(op.name(), &[], move |ins| call(op, ins))
            .and(&[3, 4], DType::I64, Domain::Below(2))
            .and(&[4], DType::Bool, Domain::Below(2))
            .expect(move |ins| {
                let at = |i: usize| number(holds(ins[0][i] != 0.0, ins[1][i % 4] != 0.0));
                vec![(0..12).map(at).collect()]
            })
            .without_derivative()
    };
    let counts = move |ins: &[Vec<f64>]| {
        let rows = || ins[0].chunks(4).map(|row| row.iter().filter(|&&x| x != 0.0).count());
        vec![
            rows().map(|n| number(n == 4)).collect(),
            rows().map(|n| number(n > 0)).collect(),
            rows().map(|n| n as f64).collect(),
        ]
    };
    vec![
        logic(Logic::And, |a, b| a & b),
        logic(Logic::Or, |a, b| a | b),
        logic(Logic::Xor, |a, b| a ^ b),
        Case::new("all, any and count_nonzero", &[], |ins| {
            let x = ins[0];
            Ok(smallvec![x.all_dims(&[1])?, x.any_dims(&[1])?, x.count_nonzero_dims(&[1])?])
        })
        .and(&[5, 4], DType::I32, Domain::Below(2))
        .expect(counts)
        .without_derivative(),
    ]
}
