//! Mean squared error: only the scalar is allocated.

use smallvec::smallvec;

use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::loss::{Reduction, mse_loss, mse_loss_backward};
use crate::cpu::kernels::number::by_float;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::error::Result;
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{want_float, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x, target -> loss`.
#[derive(Clone, Copy, Debug)]
struct MseLoss(Reduction);

impl Kernel for MseLoss {
    fn name(&self) -> &'static str {
        "mse_loss"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let len = call.ins[0].len();
        cuda::loss::pair_loss::sum(call, "(a - b) * (a - b)", self.0.weight(len))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, target], [out]) = call.split();
        by_float!(out.dtype(), T => {
            out.elements()[0] = mse_loss::<T>(x.elements(), target.elements(), self.0);
        });
        Ok(())
    }
}

impl Operator for MseLoss {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, target] = operands::inputs("mse_loss", ins)?;
        want_float("mse_loss", x.dtype)?;
        want_same("mse_loss", &[x, target])?;
        operands::equal_shapes("mse_loss", &[x, target])?;
        Ok(smallvec![Output::new(&[], x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, _: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda { cuda::loss::pair_loss::SCRATCH_BYTES } else { 0 }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(3 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::input(1))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let (x, target) = (at.input(0)?, at.input(1)?);
        let side = |sign: f64| {
            if !is_grad_enabled() {
                return call_one(MseLossBackward { reduction: self.0, sign }, &[grad, &x, &target]);
            }
            let weight = match self.0 {
                Reduction::Mean => 1.0 / x.numel() as f64,
                Reduction::Sum | Reduction::None => 1.0,
            };
            x.sub(&target)?.mul(&grad.mul_scalar(2.0 * sign * weight)?)
        };
        Ok(smallvec![
            at.wants(0).then(|| side(1.0)).transpose()?,
            at.wants(1).then(|| side(-1.0)).transpose()?
        ])
    }
}

/// `grad, x, target -> grad of x`. A `sign` of −1 gives the target's gradient.
#[derive(Clone, Copy, Debug)]
struct MseLossBackward {
    reduction: Reduction,
    sign: f64,
}

impl Kernel for MseLossBackward {
    fn name(&self) -> &'static str {
        "mse_loss_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let scale = 2.0 * self.sign * self.reduction.weight(call.ins[1].len());
        cuda::loss::pair_loss::gradient(call, "(b - c)", scale)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, x, target], [out]) = call.split();
        by_float!(out.dtype(), T => {
            let grad = self.sign as T * grad.elements::<T>()[0];
            mse_loss_backward(x.elements(), target.elements(), grad, self.reduction, out.elements());
        });
        Ok(())
    }
}

impl Operator for MseLossBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [_, x, _] = operands::inputs("mse_loss_backward", ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// The mean of the squared differences, a scalar. Only the scalar is allocated. Like `torch.nn.functional.mse_loss`.
    ///
    /// # Errors
    /// If the shapes or dtypes differ, a dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn mse_loss(&self, target: impl AsRef<Tensor>) -> Result<Tensor> {
        let target = target.as_ref();
        self.mse_loss_with(target, Reduction::Mean)
    }

    /// [`Tensor::mse_loss`] with a choice of reduction: sum, mean or none.
    ///
    /// # Errors
    /// The same errors as [`Tensor::mse_loss`].
    #[track_caller]
    pub fn mse_loss_with(&self, target: impl AsRef<Tensor>, reduction: Reduction) -> Result<Tensor> {
        let target = target.as_ref();
        if reduction == Reduction::None {
            return self.sub(target)?.square();
        }
        call_one(MseLoss(reduction), &[self, target])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |reduction: Reduction| {
        let naive = move |ins: &[Vec<f64>]| {
            let sum: f64 = ins[0].iter().zip(&ins[1]).map(|(x, t)| (x - t).powi(2)).sum();
            vec![vec![if reduction == Reduction::Mean { sum / ins[0].len() as f64 } else { sum }]]
        };
        Case::new(format!("mse_loss, {reduction:?}"), &[&[3, 4], &[3, 4]], move |ins| {
            call(MseLoss(reduction), ins)
        })
        .expect(naive)
    };
    [Reduction::Mean, Reduction::Sum].map(case).into()
}
