//! The gradient of an activation function together with its values, which are computed again: one pass on a GPU.
//!
//! The gradient is written over that of the output and the values over the input, so nothing is requested but the sum of the
//! gradient's rows, where a bias before the activation wants it.

use smallvec::smallvec;

use super::traced::Text;
use super::unary::Row;
use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::error::Result;
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::road::call;
use crate::tensor::Tensor;

/// Whether the two may be changed: by a GPU's kernel, which lie row by row.
pub(super) fn takes(grad: &Tensor, x: &Tensor) -> bool {
    let is_cuda = x.device().facts().kind == DeviceKind::Cuda;
    let lies = |tensor: &Tensor| tensor.is_contiguous() && tensor.rank() > 0;
    is_cuda && lies(grad) && lies(x) && grad.dtype() == x.dtype() && x.dtype().is_float()
}

/// Turns the gradient of the activation's output into that of its input, and `x` into its output. Nobody else may look at
/// either. With `sum`, the gradient brings the sum of its rows.
pub(super) fn run<F: Row>(row: F, grad: &Tensor, x: &Tensor, sum: bool) -> Result<()> {
    let outs = call(ActivationBackward { row, sum }, &[grad, x])?;
    if let Some(sum) = outs.into_iter().nth(2) {
        grad.bring_row_sum(sum);
    }
    Ok(())
}

/// `() -> grad, x[, sum of the rows of grad]`: the inputs are `grad` and `x`.
#[derive(Clone, Debug)]
struct ActivationBackward<F> {
    row: F,
    sum: bool,
}

impl<F: Row> Kernel for ActivationBackward<F> {
    fn name(&self) -> &'static str {
        F::BACKWARD
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let gradient = Text::of_expression(["a", "b"], |[g, v]| self.row.gradient(g, v));
        let value = Text::of_expression(["b"], |[x]| self.row.value(x));
        cuda::activation::backward(call, &gradient, &value, self.sum)
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }
}

impl<F: Row> Operator for ActivationBackward<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let mut outs: Outputs = smallvec![Output::in_place(0, &ins[0]), Output::in_place(1, &ins[1])];
        if self.sum {
            outs.push(Output::new(&ins[0].shape()[ins[0].rank() - 1..], ins[0].dtype));
        }
        Ok(outs)
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        if self.sum { cuda::activation::scratch(ins[0].shape(), ins[0].dtype) } else { 0 }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}
