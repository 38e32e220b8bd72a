//! Negative log-likelihood with class weights, ignored targets and any number of dimensions.
//!
//! It is linear in the log-probabilities: its gradient has one coefficient per position, and zeros elsewhere.

use smallvec::{SmallVec, smallvec};

use super::backward::CoefficientsOf;
use super::call::CrossEntropyOptions;
use super::{CrossEntropy, class_dim, positions};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::cross_entropy::{likelihood, likelihood_backward};
use crate::cpu::kernels::loss::{BadTarget, Reduction};
use crate::cpu::kernels::number::{Float, by_float};
use crate::cuda::CudaCall;
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Autocast, Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::{want_float, want_same};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

const NAME: &str = "nll_loss";

/// `log_probabilities, target[, weight] -> loss, divisor of the mean`.
#[derive(Clone, Copy, Debug)]
struct Likelihood(CrossEntropy);

impl Kernel for Likelihood {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let logits = call.ins[0].shape();
        self.0.classes(logits).likelihood(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [x, target, weight @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let mut outs = call.outs.into_iter();
        let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred"));
        let (loss, to_total) = (next(), next());
        by_float!(x.dtype(), T => {
            let of = self.0.coefficients::<T>(x.shape(), target, weight.first());
            let count: usize = positions(x.shape()).iter().product();
            let bad = |bad: BadTarget| {
                Error::Target { op: NAME, row: bad.row, value: bad.value, classes: bad.cols }
            };
            let total = of.total(count).map_err(bad)?;
            to_total.elements()[0] = T::of(total);
            let (loss, reduction) = (loss.elements::<T>(), self.0.reduction);
            if reduction == Reduction::None {
                likelihood(&of, x.elements(), count, Some(loss));
            } else {
                let sum = likelihood(&of, x.elements(), count, None);
                loss[0] = T::of(if reduction == Reduction::Mean { sum / total } else { sum });
            }
        });
        Ok(())
    }
}

impl Operator for Likelihood {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, target, weight @ ..] = ins else {
            return Err(Error::argument(
                NAME,
                "needs log-probabilities, a target and perhaps weights of the classes",
            ));
        };
        want_float(NAME, x.dtype)?;
        weight.iter().try_for_each(|weight| want_same(NAME, &[*x, *weight]))?;
        if !matches!(target.dtype, DType::I64 | DType::U8) {
            return Err(Error::DType { op: NAME, expected: "int64 or uint8 targets", got: target.dtype });
        }
        let classes = x.shape().get(class_dim(x.rank())).copied();
        let shape = positions(x.shape());
        let fits = classes.is_some() && target.shape() == shape.as_slice();
        if !fits || weight.iter().any(|weight| weight.shape() != [classes.unwrap_or(0)]) {
            let message = format!(
                "log-probabilities {:?} with target {:?} and weights {:?}: needs [batch, classes, …], [batch, …] and [classes]",
                x.shape(),
                target.shape(),
                weight.first().map(Meta::shape)
            );
            return Err(Error::shape(NAME, message));
        }
        let of_loss = if self.0.reduction == Reduction::None { shape.as_slice() } else { &[] };
        Ok(smallvec![Output::new(of_loss, x.dtype), Output::new(&[], x.dtype.accumulator())])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let target = Saves::input(1).and(Saves::output(1));
        target.and(Saves::input(2).only_if(wanted.len() > 2))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let mut results: Grads = smallvec![None; at.inputs()];
        let Some(grad) = at.grad(0).filter(|_| at.wants(0)) else { return Ok(results) };
        let (target, total) = (at.input(1)?, at.output(1)?.detach());
        let weight = (at.inputs() > 2).then(|| at.input(2)).transpose()?;
        results[0] = Some(if is_grad_enabled() {
            let op = CoefficientsOf { loss: self.0, logits: at.shape(0).into(), dtype: at.dtype(0) };
            let mut ins: SmallVec<[&Tensor; 2]> = smallvec![&target];
            ins.extend(&weight);
            let scale = self.0.scale(grad, &total, class_dim(at.shape(0).len()))?;
            call_one(op, &ins)?.neg()?.mul(&scale)?
        } else {
            let op = LikelihoodBackward { loss: self.0, shape: at.shape(0).into(), dtype: at.dtype(0) };
            let mut ins: SmallVec<[&Tensor; 4]> = smallvec![grad, &target, &total];
            ins.extend(&weight);
            call_one(op, &ins)?
        });
        Ok(results)
    }
}

/// `grad, target, total[, weight] -> grad of log_probabilities`.
#[derive(Clone, Debug)]
struct LikelihoodBackward {
    loss: CrossEntropy,
    shape: Dims,
    dtype: DType,
}

impl Kernel for LikelihoodBackward {
    fn name(&self) -> &'static str {
        "nll_loss_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        self.loss.classes(&self.shape).likelihood_backward(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, target, total, weight @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(out.dtype(), T => {
            let of = self.loss.coefficients::<T>(&self.shape, target, weight.first());
            let (grad, total) = (grad.elements::<T>(), total.elements::<T>()[0]);
            let scale = |position: usize| match self.loss.reduction {
                Reduction::None => grad[position],
                Reduction::Sum => grad[0],
                Reduction::Mean => grad[0] / total,
            };
            likelihood_backward(&of, positions(&self.shape).iter().product(), scale, out.elements());
        });
        Ok(())
    }
}

impl Operator for LikelihoodBackward {
    fn infer(&self, _: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(&self.shape, self.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// [`Tensor::nll_loss`] of log-probabilities `[batch, classes, …]` or `[classes]`, with class weights, an ignored class and
    /// any reduction. Like `torch.nn.functional.nll_loss`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cross_entropy_with`]; also for label smoothing, which this loss does not support.
    #[track_caller]
    pub fn nll_loss_with(
        &self,
        target: impl AsRef<Tensor>,
        options: CrossEntropyOptions<'_>,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        if options.label_smoothing != 0.0 {
            return Err(Error::argument(NAME, "has no label smoothing: use `cross_entropy_with`"));
        }
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, target];
        ins.extend(options.weight);
        Ok(call(Likelihood(options.operator()?), &ins)?.remove(0))
    }
}

/// Cases for the conformance suite.
pub(super) fn cases() -> Vec<Case> {
    let case = |reduction: Reduction| {
        let options = CrossEntropyOptions { reduction, ..CrossEntropyOptions::default() };
        Case::new(format!("nll_loss of three dimensions, {reduction:?}"), &[&[2, 3, 4]], move |ins| {
            Ok(smallvec![ins[0].nll_loss_with(ins[1], options)?])
        })
        .and(&[2, 4], DType::I64, Domain::Below(3))
    };
    vec![case(Reduction::None), case(Reduction::Mean)]
}
