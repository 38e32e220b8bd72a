//! Copies: into new memory, and between types.

use smallvec::smallvec;

use super::elementwise;
use crate::cpu::kernels::strided::{CastTo, cast};
use crate::dtype::{DType, Element, by_dtype};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::road::{Copy, call, call_one};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::view::{In, Out};

impl Operator for Copy {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = elementwise::inputs("copy", ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        Ok(smallvec![at.grad(0).cloned()])
    }
}

/// `x -> out`: each element converted to another type.
#[derive(Clone, Copy, Debug)]
struct Cast {
    to: DType,
}

impl Kernel for Cast {
    fn name(&self) -> &'static str {
        "to_dtype"
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        fn dense<T: Element + CastTo<U>, U: Element>(x: In<'_>, out: Out<'_>) {
            cast::<T, U>(x.elements(), out.elements());
        }
        let ([x], [out]) = call.split();
        by_dtype!(x.dtype(), T => by_dtype!(out.dtype(), U => dense::<T, U>(x, out)));
        Ok(())
    }
}

impl Operator for Cast {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = elementwise::inputs("to_dtype", ins)?;
        Ok(smallvec![Output::laid_out(x.layout.dense(), self.to)])
    }

    /// Without gaps, in any order of dimensions: the output has the same.
    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.end() - layout.offset() == layout.len() && layout.dense().strides() == layout.strides()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        Ok(smallvec![at.grad(0).map(|grad| grad.to_dtype(at.dtype(0))).transpose()?])
    }
}

impl Tensor {
    /// The values in row-major order without gaps: itself where they are, else a copy.
    ///
    /// # Errors
    /// Out of memory.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A contiguous copy with storage of its own. As `Tensor.clone`: gradients flow through.
    ///
    /// # Errors
    /// Out of memory.
    pub fn copy(&self) -> Result<Tensor> {
        call_one(Copy, &[self])
    }

    /// The values converted to another type: towards zero, and into the range of the type, where it has fewer
    /// values. Gradients flow between types of floating point.
    ///
    /// # Errors
    /// Out of memory.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        call_one(Cast { to: dtype }, &[self])
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let same = |ins: &[Vec<f64>]| vec![ins[0].clone()];
    let whole = |ins: &[Vec<f64>]| vec![ins[0].iter().map(|x| x.trunc()).collect()];
    vec![
        Case::new("copy", &[&[3, 4]], |ins| call(Copy, ins)).expect(same),
        Case::new("to_dtype", &[&[3, 4]], |ins| call(Cast { to: DType::I32 }, ins))
            .expect(whole)
            .without_derivative(),
    ]
}
