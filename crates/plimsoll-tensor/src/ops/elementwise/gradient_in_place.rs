//! The gradient of an elementwise function, computed in place over the incoming gradient: nothing is allocated.

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::Whole;
use super::traced::Text;
use super::unary::{Row, gradient};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::elementwise as kernels;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::tensor::Tensor;

/// Like [`gradient`], but in place in `grad` if nothing else uses it.
#[track_caller]
pub(in crate::ops) fn gradient_in_place<F: Row>(row: F, grad: Tensor, read: &Tensor) -> Result<Tensor> {
    let own = grad.is_unique() && grad.is_contiguous() && read.is_contiguous();
    if is_grad_enabled() || !own || grad.dtype() != read.dtype() {
        return gradient(row, &grad, read);
    }
    call(GradientInPlace(row), &[&grad, read])?;
    Ok(grad)
}

/// `read -> grad`, in place. The inputs are `grad` and `read`.
#[derive(Clone, Debug)]
struct GradientInPlace<F>(F);

impl<F: Row> Kernel for GradientInPlace<F> {
    fn name(&self) -> &'static str {
        F::BACKWARD
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::elementwise::change(call, &Text::of_expression(["y", "a"], |[g, v]| self.0.gradient(g, v)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([v], [g]) = call.split();
        let laid = Laid::of(g.layout(), [v.layout()]);
        let dtype = g.dtype();
        if dtype == DType::F32 {
            let [v] = laid.operands::<f32, 1>([v]);
            kernels::update(
                laid.shape(),
                g.elements::<f32>(),
                v,
                #[inline(always)]
                |g, v| self.0.gradient(g, v),
            );
            return Ok(());
        }
        let [v] = laid.any([v]);
        let g = (g.bytes(), dtype);
        match dtype.accumulator() {
            DType::F32 => kernels::update_any::<f32>(
                laid.shape(),
                g,
                v,
                #[inline(always)]
                |g, v| self.0.gradient(g, v),
            ),
            DType::F64 => kernels::update_any::<f64>(
                laid.shape(),
                g,
                v,
                #[inline(always)]
                |g, v| self.0.gradient(g, v),
            ),
            _ => kernels::update_any::<i64>(
                laid.shape(),
                g,
                v,
                #[inline(always)]
                |g, v| self.0.gradient(Whole(g), Whole(v)).0,
            ),
        }
        Ok(())
    }
}

impl<F: Row> Operator for GradientInPlace<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, read] = operands::inputs(F::BACKWARD, ins)?;
        operands::equal_shapes(F::BACKWARD, &[grad, read])?;
        Ok(smallvec![Output::in_place(0, &grad)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}
