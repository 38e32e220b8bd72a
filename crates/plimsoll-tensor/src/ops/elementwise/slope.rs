//! The derivatives of the gradients in the elementwise tables: one pass over the elements, without temporaries.
//!
//! A gradient is an [`Expression`] of up to three elements. Its derivative with respect to one of them is the same expression
//! with [`Dual`](super::dual::Dual) numbers, computed in 32 bits or more. Higher derivatives are composed of tensor
//! operations.

use std::fmt::Debug;

use smallvec::{SmallVec, smallvec};

use super::dual::Dual;
use super::operands::{self, Laid};
use super::real::{Real, Whole};
use super::traced::{Text, Traced};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::second::through;
use crate::tensor::{Grads, Tensor};

/// A gradient from the elementwise tables, which is linear in its first element.
pub(in crate::ops) trait Expression: Clone + Debug + Send + Sync + 'static {
    const NAME: &'static str;

    fn of<R: Real>(&self, elements: [R; 3]) -> R;

    /// `scale` times the derivative with respect to the element `by`; `None` if it is 0 everywhere.
    #[inline]
    fn slope<R: Real>(&self, by: usize, scale: R, elements: [R; 3]) -> Option<R> {
        Dual::slope_of(elements, by, scale, |elements| self.of(elements))
    }

    /// Whether the expression depends on the element `by`: its derivative is not 0 everywhere.
    fn rises_by(&self, by: usize) -> bool {
        self.slope(by, 1.0f64, [0.5; 3]).is_some()
    }
}

/// The inputs that the derivative of a gradient reads. `read` lists those that are not placeholders.
pub(in crate::ops) fn saves<E: Expression>(of: &E, wanted: &[bool], read: &[usize]) -> Saves {
    let curved = (1..wanted.len()).any(|i| wanted[i] && read.contains(&i) && of.rises_by(i));
    let keep = |all: Saves, i: usize| all.and(Saves::input(i));
    let reads = read.iter().copied().fold(Saves::NOTHING, keep).only_if(wanted[0] || curved);
    reads.and(Saves::input(0).only_if(curved))
}

/// The gradients of the inputs of a derivative. `to_first` maps the gradient of its output to that of its first input.
#[track_caller]
pub(in crate::ops) fn backward<E: Expression>(
    of: &E,
    at: &Backward<'_>,
    read: &[usize],
    to_first: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Grads> {
    let mut results: Grads = smallvec![None; at.inputs()];
    let Some(grad) = at.grad(0) else { return Ok(results) };
    for i in (1..at.inputs()).filter(|i| read.contains(i)) {
        if at.wants(i) && of.rises_by(i) {
            let first = at.input(0)?;
            let mut elements = [first.clone(), grad.clone(), grad.clone()];
            for &i in read {
                elements[i] = at.input(i)?;
            }
            results[i] = Some(slope_of(of, i, grad, &elements)?.sum_to(at.shape(i))?);
        }
    }
    if at.wants(0) {
        results[0] = Some(to_first(grad)?.sum_to(at.shape(0))?);
    }
    Ok(results)
}

/// `scale` times the derivative of an expression with respect to one of its elements.
#[track_caller]
pub(in crate::ops) fn slope_of<E: Expression>(
    of: &E,
    by: usize,
    scale: &Tensor,
    [a, b, c]: &[Tensor; 3],
) -> Result<Tensor> {
    call_one(Slope { of: of.clone(), by }, &[scale, a, b, c])
}

/// `scale, a, b, c -> scale · derivative of the expression with respect to a, b or c`.
#[derive(Clone, Debug)]
struct Slope<E> {
    of: E,
    by: usize,
}

impl<E: Expression> Slope<E> {
    fn value<R: Real>(&self, [scale, elements @ ..]: [R; 4]) -> R {
        self.of.slope(self.by, scale, elements).unwrap_or(R::of(0.0))
    }
}

impl<E: Expression> Kernel for Slope<E> {
    fn name(&self) -> &'static str {
        E::NAME
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a", "b", "c", "d"], |elements| self.value(elements)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let (ins, [out]) = call.split::<4, 1>();
        let laid = Laid::of(out.layout(), ins.each_ref().map(|x| x.layout()));
        let compute = operands::common_type_of(&ins);
        // A function pointer, so that the loop around it is compiled once for all rows.
        let narrow: &(dyn Fn([f32; 4]) -> f32 + Sync) = &|elements| self.value(elements);
        let wide: &(dyn Fn([f64; 4]) -> f64 + Sync) = &|elements| self.value(elements);
        operands::evaluate(&laid, ins, out, compute, narrow, wide, |_| Whole(0));
        Ok(())
    }
}

impl<E: Expression> Operator for Slope<E> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [scale, ..] = operands::inputs::<4>(E::NAME, ins)?;
        Ok(smallvec![Output::laid_out(scale.layout.dense(), scale.dtype)])
    }

    fn saves(&self, _: &[bool]) -> Saves {
        (0..4).fold(Saves::NOTHING, |all, i| all.and(Saves::input(i)))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let ins = (0..4).map(|i| at.input(i)).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
        let grads = [at.grad(0).cloned()];
        let found = through(
            &ins,
            |i| at.wants(i),
            &grads,
            |ins| {
                let [scale, a, b, c] = ins else { unreachable!("four") };
                let value = Traced::evaluate([scale, a, b, c], |elements| self.value(elements))?;
                Ok(smallvec![Some(value)])
            },
        )?;
        found
            .into_iter()
            .enumerate()
            .map(|(i, grad)| grad.map(|grad| grad.sum_to(at.shape(i))).transpose())
            .collect()
    }
}
