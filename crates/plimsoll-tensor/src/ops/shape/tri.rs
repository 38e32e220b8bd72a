//! The upper or lower triangle of matrices.

use smallvec::smallvec;

use crate::cpu::kernels::elementwise::Operand;
use crate::cpu::kernels::mask::triangle;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `x -> out`: sets the elements on one side of a diagonal to zero.
#[derive(Clone, Copy, Debug)]
struct Triangle {
    upper: bool,
    diagonal: isize,
}

impl Kernel for Triangle {
    fn name(&self) -> &'static str {
        if self.upper { "triu" } else { "tril" }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.ins[0];
        let of = cuda::indexing::mask::Triangle {
            upper: self.upper,
            diagonal: self.diagonal as i64,
            words: [0; 2],
        };
        cuda::indexing::mask::triangle(call, Some(x), of)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        by_word!(x.dtype(), W => {
            let operand = Operand { data: x.words::<W>(), strides: x.strides() };
            triangle(x.shape(), operand, self.upper, self.diagonal, out.words());
        });
        Ok(())
    }
}

impl Operator for Triangle {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        if x.rank() < 2 {
            return Err(Error::shape(self.name(), format!("{:?} is no matrix", x.shape())));
        }
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        Ok(smallvec![Some(call_one(*self, &[grad])?)])
    }
}

impl Tensor {
    /// The upper triangle of the last two dimensions, with zeros below. A positive `diagonal` also zeroes that many diagonals;
    /// a negative one keeps that many more. Like `torch.triu`.
    ///
    /// # Errors
    /// If the tensor has fewer than two dimensions, or memory runs out.
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Result<Tensor> {
        call_one(Triangle { upper: true, diagonal }, &[self])
    }

    /// The lower triangle of the last two dimensions, with zeros above. Like `torch.tril`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::triu`].
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Result<Tensor> {
        call_one(Triangle { upper: false, diagonal }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |upper: bool, diagonal: isize| {
        let naive = move |ins: &[Vec<f64>]| {
            let kept = |i: usize| match (i % 4) as isize - (i / 4 % 3) as isize {
                above if upper => above >= diagonal,
                above => above <= diagonal,
            };
            vec![ins[0].iter().enumerate().map(|(i, &x)| if kept(i) { x } else { 0.0 }).collect()]
        };
        let op = Triangle { upper, diagonal };
        Case::new(format!("{op:?}"), &[&[2, 3, 4]], move |ins| call(op, ins)).expect(naive)
    };
    vec![case(true, 0), case(true, 2), case(true, -1), case(false, 0), case(false, -2), case(false, 9)]
}
