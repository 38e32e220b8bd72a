//! The gradient of an activation function together with its values, which the same pass recomputes: on a GPU, and on the CPU in
//! `float32`.
//!
//! The gradient overwrites the incoming gradient, and the values overwrite the input. So the only allocation is the sum of the
//! gradient's rows, if a bias before the activation needs it. On the CPU, the derivative of the operation before the activation
//! computes that sum.

use smallvec::smallvec;

use super::traced::Text;
use super::unary::Row;
use crate::cpu::kernels::elementwise as kernels;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::Result;
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::tensor::Tensor;

/// Whether both tensors can be changed in place: they are row-major, in a dtype that has a kernel.
pub(in crate::ops) fn takes(grad: &Tensor, x: &Tensor) -> bool {
    let lies = |tensor: &Tensor| tensor.is_contiguous() && tensor.rank() > 0;
    let has_kernel = if is_cuda(x) { x.dtype().is_float() } else { x.dtype() == DType::F32 };
    has_kernel && lies(grad) && lies(x) && grad.dtype() == x.dtype()
}

fn is_cuda(x: &Tensor) -> bool {
    x.device().facts().kind == DeviceKind::Cuda
}

/// Overwrites the gradient of the activation's output with that of its input, and `x` with the output. Nothing else may use
/// either tensor. With `sum`, on a GPU, the sum of the gradient's rows is attached to the gradient.
#[track_caller]
pub(in crate::ops) fn run<F: Row>(row: F, grad: &Tensor, x: &Tensor, sum: bool) -> Result<()> {
    let outs = call(ActivationBackward { row, sum: sum && is_cuda(x) }, &[grad, x])?;
    if let Some(sum) = outs.into_iter().nth(2) {
        grad.bring_row_sum(sum);
    }
    Ok(())
}

/// `grad, x -> grad, x[, sum of the rows of grad]`: both inputs are changed in place.
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
        cuda::elementwise::activation::backward(call, &gradient, &value, self.sum)
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([], [grad, x]) = call.split();
        kernels::change_both(
            grad.elements::<f32>(),
            x.elements::<f32>(),
            #[inline(always)]
            |g, x| (self.row.gradient(g, x), self.row.value(x)),
        );
        Ok(())
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
        if self.sum { cuda::elementwise::activation::scratch(ins[0].shape(), ins[0].dtype) } else { 0 }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}
