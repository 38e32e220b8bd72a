//! The gradients of a cross entropy: from a kernel; and composed of tensor operations, for second derivatives and for
//! probabilities that require a gradient themselves.

use smallvec::{SmallVec, smallvec};

use super::{CrossEntropy, class_dim};
use crate::cpu::kernels::cross_entropy::{coefficients, cross_entropy_backward};
use crate::cpu::kernels::loss::Reduction;
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::tensor::{Grads, Tensor};

impl CrossEntropy {
    pub(super) fn by_kernel(&self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let saved = [at.input(0)?, at.input(1)?, at.output(1)?, at.output(2)?, at.output(3)?];
        let weight = (at.inputs() > 2).then(|| at.input(2)).transpose()?;
        let mut ins: SmallVec<[&Tensor; 7]> = smallvec![grad];
        ins.extend(&saved);
        ins.extend(&weight);
        let mut results: Grads = smallvec![None; at.inputs()];
        results[0] = at.wants(0).then(|| call_one(CrossEntropyBackward(*self), &ins)).transpose()?;
        Ok(results)
    }

    /// The factor of each position's gradient, computed from the loss's gradient; it broadcasts along the classes.
    #[track_caller]
    pub(super) fn scale(self, grad: &Tensor, total: &Tensor, dim: usize) -> Result<Tensor> {
        match self.reduction {
            Reduction::None => grad.unsqueeze(dim as isize),
            Reduction::Sum => Ok(grad.clone()),
            // If no position counts, the coefficients are 0, and so are the gradients.
            Reduction::Mean => grad.div(&total.add(&total.not_positive()?)?),
        }
    }

    /// `(Σb · softmax(x) - b) · scale` for the logits, and `-(1 - smoothing) · weight · log_softmax(x) · scale` for target
    /// probabilities.
    pub(super) fn composed(&self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let (x, target) = (at.input(0)?, at.input(1)?);
        let weight = (at.inputs() > 2).then(|| at.input(2)).transpose()?;
        let dim = class_dim(x.rank()) as isize;
        let scale = self.scale(grad, &at.output(3)?.detach(), dim as usize)?;
        let mut results: Grads = smallvec![None; at.inputs()];
        if at.wants(0) {
            let op = CoefficientsOf { loss: *self, logits: x.shape().into(), dtype: x.dtype() };
            let mut ins: SmallVec<[&Tensor; 2]> = smallvec![&target];
            ins.extend(&weight);
            let b = call_one(op, &ins)?;
            let softmax = x.softmax(dim)?;
            let level = b.sum_keepdim(&[dim])?;
            results[0] = Some(softmax.mul(&level)?.sub(&b)?.mul(&scale)?);
        }
        if at.wants(1) {
            let slope = x.log_softmax(dim)?.mul(&scale)?.mul_scalar(self.smoothing - 1.0)?;
            let slope = weight.as_ref().map_or(Ok(slope.clone()), |weight| slope.mul(&along(weight, &x)?))?;
            // Broadcast by the scale if that is a single number.
            results[1] = Some(slope);
        }
        Ok(results)
    }
}

/// The class weights, reshaped to broadcast against the logits.
#[track_caller]
fn along(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let mut shape = Dims::from_elem(1, x.rank());
    shape[class_dim(x.rank())] = weight.numel();
    weight.reshape(shape.as_slice())
}

/// `grad, logits, target, largest, log-sums, total[, weight] -> grad of logits`.
#[derive(Clone, Copy, Debug)]
struct CrossEntropyBackward(CrossEntropy);

impl Kernel for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let logits = call.ins[1].shape();
        self.0.classes(logits).backward(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, x, target, max, log_sums, total, weight @ ..] = call.ins.as_slice() else {
            unreachable!("inferred")
        };
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(x.dtype(), T => {
            let of = self.0.coefficients::<T>(x.shape(), target, weight.first());
            let (grad, total) = (grad.elements::<T>(), total.elements::<T>()[0]);
            let scale = |position: usize| match self.0.reduction {
                Reduction::None => grad[position],
                Reduction::Sum => grad[0],
                Reduction::Mean => grad[0] / total,
            };
            cross_entropy_backward(&of, x.elements(), [max.elements(), log_sums.elements()], scale, out.elements());
        });
        Ok(())
    }
}

impl Operator for CrossEntropyBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(ins[1].shape(), ins[1].dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// `target[, weight] -> coefficients of the log-probabilities`, in the logits' shape.
#[derive(Clone, Debug)]
pub(super) struct CoefficientsOf {
    pub(super) loss: CrossEntropy,
    pub(super) logits: Dims,
    pub(super) dtype: DType,
}

impl Kernel for CoefficientsOf {
    fn name(&self) -> &'static str {
        "cross_entropy_coefficients"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        self.loss.classes(&self.logits).coefficients(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [target, weight @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(out.dtype(), T => {
            let of = self.loss.coefficients::<T>(&self.logits, target, weight.first());
            coefficients(&of, out.elements());
        });
        Ok(())
    }
}

impl Operator for CoefficientsOf {
    fn infer(&self, _: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(&self.logits, self.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(1).only_if(wanted.len() > 1)
    }

    /// Linear in the probabilities. Class weights have no gradient, as in PyTorch.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let mut results: Grads = smallvec![None; at.inputs()];
        if let Some(grad) = at.grad(0).filter(|_| at.wants(0)) {
            let slope = grad.mul_scalar(1.0 - self.loss.smoothing)?;
            let weight = (at.inputs() > 1).then(|| at.input(1)).transpose()?;
            results[0] =
                Some(weight.map_or(Ok(slope.clone()), |weight| slope.mul(&along(&weight, &slope)?))?);
        }
        Ok(results)
    }
}
