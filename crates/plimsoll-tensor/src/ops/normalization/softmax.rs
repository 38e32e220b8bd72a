//! Softmax and log-softmax over the last dimension. Both save their output for the derivative, not their input.

use smallvec::smallvec;

use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::softmax;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, want_float, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> out`.
#[derive(Clone, Copy, Debug)]
enum Softmax {
    Plain,
    Log,
}

/// The size of the last dimension: a softmax works on its rows.
fn columns(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

impl Kernel for Softmax {
    fn name(&self) -> &'static str {
        match self {
            Softmax::Plain => "softmax",
            Softmax::Log => "log_softmax",
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::normalization::softmax::softmax(call, matches!(self, Softmax::Log))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let cols = columns(x.shape());
        by_float!(out.dtype(), T => match self {
            Softmax::Plain => softmax::softmax::<T>(cols, x.elements(), out.elements()),
            Softmax::Log => softmax::log_softmax::<T>(cols, x.elements(), out.elements()),
        });
        Ok(())
    }
}

impl Operator for Softmax {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        want_float(self.name(), x.dtype)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(4 * outs[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(0)
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let y = at.output(0)?;
        let result = match self {
            _ if !is_grad_enabled() => call_one(SoftmaxBackward(*self), &[grad, &y])?,
            Softmax::Plain => {
                let product = grad.mul(&y)?;
                product.sub(&y.mul(&product.sum_keepdim(&[-1])?)?)?
            }
            Softmax::Log => grad.sub(&y.exp()?.mul(&grad.sum_keepdim(&[-1])?)?)?,
        };
        Ok(smallvec![Some(result)])
    }
}

/// `grad, y -> grad of x`, computed from the output `y` in one pass.
#[derive(Clone, Copy, Debug)]
struct SoftmaxBackward(Softmax);

impl Kernel for SoftmaxBackward {
    fn name(&self) -> &'static str {
        match self.0 {
            Softmax::Plain => "softmax_backward",
            Softmax::Log => "log_softmax_backward",
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::normalization::softmax::softmax(call, matches!(self.0, Softmax::Log))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, y], [out]) = call.split();
        let cols = columns(y.shape());
        by_float!(out.dtype(), T => {
            let backward = match self.0 {
                Softmax::Plain => softmax::softmax_backward::<T>,
                Softmax::Log => softmax::log_softmax_backward::<T>,
            };
            backward(cols, grad.elements(), y.elements(), out.elements());
        });
        Ok(())
    }
}

impl Operator for SoftmaxBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, y] = operands::inputs(self.name(), ins)?;
        operands::equal_shapes(self.name(), &[grad, y])?;
        want_same(self.name(), &[grad, y])?;
        Ok(smallvec![Output::new(y.shape(), grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// Softmax along a dimension. Like `torch.softmax`.
    ///
    /// # Errors
    /// If a dimension is out of range, the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn softmax(&self, dim: isize) -> Result<Tensor> {
        self.along(dim, Softmax::Plain)
    }

    /// Log-softmax along a dimension, without overflow. Like `torch.log_softmax`.
    ///
    /// # Errors
    /// If a dimension is out of range, the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor> {
        self.along(dim, Softmax::Log)
    }

    #[track_caller]
    fn along(&self, dim: isize, op: Softmax) -> Result<Tensor> {
        want_float(op.name(), self.dtype())?;
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return self.unsqueeze(0)?.along(0, op)?.squeeze(0);
        }
        let dim = dim_index(op.name(), dim, self.rank())? as isize;
        if dim + 1 != self.rank() as isize {
            // The kernel works on rows, so the dimension is moved last and back.
            return self.transpose(dim, -1)?.along(-1, op)?.transpose(dim, -1);
        }
        call_one(op, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |log: bool| {
        move |ins: &[Vec<f64>]| {
            let row = |row: &[f64]| -> Vec<f64> {
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                row.iter().map(|x| if log { x - sum.ln() } else { x.exp() / sum }).collect()
            };
            vec![ins[0].chunks(5).flat_map(row).collect()]
        }
    };
    vec![
        Case::new("softmax", &[&[3, 5]], |ins| call(Softmax::Plain, ins)).expect(naive(false)),
        Case::new("log_softmax", &[&[2, 2, 5]], |ins| call(Softmax::Log, ins)).expect(naive(true)),
        Case::new("softmax along 0", &[&[3, 5]], |ins| Ok(smallvec![ins[0].softmax(0)?])),
    ]
}
