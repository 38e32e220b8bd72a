//! The index of the maximum along the last dimension; the first one if several are equal.

use smallvec::smallvec;

use crate::cpu::kernels::reduce;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, want_number};
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `x -> index`, over one dimension.
#[derive(Clone, Copy, Debug)]
struct ArgMax {
    dim: usize,
}

impl Kernel for ArgMax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, out) = (call.ins[0], call.outs[0]);
        cuda::reduce::argmax(call, x, out, self.dim)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let out = out.elements();
        match x.dtype() {
            DType::I64 => reduce::argmax::<i64>(x.shape(), x.elements(), x.strides(), self.dim, out),
            DType::F64 => reduce::argmax::<f64>(x.shape(), x.elements(), x.strides(), self.dim, out),
            _ => reduce::argmax::<f32>(x.shape(), x.elements(), x.strides(), self.dim, out),
        }
        Ok(())
    }
}

impl Operator for ArgMax {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("argmax", ins)?;
        want_number("argmax", x.dtype)?;
        if x.shape()[self.dim] == 0 {
            let message = format!("dimension {} of {:?} has no elements", self.dim, x.shape());
            return Err(Error::shape("argmax", message));
        }
        let mut shape = x.layout.shape().to_vec();
        shape.remove(self.dim);
        Ok(smallvec![Output::new(&shape, DType::I64)])
    }
}

impl Tensor {
    /// The index of the maximum along a dimension, as `int64`; the first one if several are equal. Without a dimension
    /// (`None`), the row-major index among all elements. Like `torch.argmax`.
    ///
    /// # Errors
    /// If the dimension is out of range or has no elements, the tensor is `bool`, or memory runs out.
    #[track_caller]
    pub fn argmax(&self, dim: impl Into<Option<isize>>) -> Result<Tensor> {
        want_number("argmax", self.dtype())?;
        let Some(dim) = dim.into() else { return self.reshape(&[-1])?.argmax(0) };
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return self.unsqueeze(0)?.argmax(0);
        }
        call_one(ArgMax { dim: dim_index("argmax", dim, self.rank())? }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let along = |dim: isize| {
        Case::new(format!("argmax along {dim}"), &[&[3, 5]], move |ins| Ok(smallvec![ins[0].argmax(dim)?]))
            .over(Domain::Apart)
            .without_derivative()
    };
    let largest =
        |row: &[f64]| (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as f64;
    vec![along(1).expect(move |ins| vec![ins[0].chunks(5).map(largest).collect()]), along(0)]
}
