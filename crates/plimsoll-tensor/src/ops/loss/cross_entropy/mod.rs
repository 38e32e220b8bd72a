//! Cross entropy of logits against classes or probabilities, in one pass.
//!
//! | file | contents |
//! |---|---|
//! | this one | the operator: `logits, target[, weight] -> loss, largest logits, log-sums, total` |
//! | `call` | the methods of [`Tensor`], their options and errors |
//! | `parameters` | the operator's parameters, and the dimensions of its operands |
//! | `backward` | the gradients: by a kernel, and composed of tensor operations |
//! | `fused` | the loss of a projection, without materializing the logits |
//! | `nll` | the negative log-likelihood with class weights and ignored targets |
//! | `cases` | cases for the conformance suite |
//!
//! It saves the logits and two numbers per position for the backward pass. The softmax is never materialized, so the forward
//! pass needs no second tensor of the logits' size.

mod backward;
mod call;
mod cases;
mod fused;
mod nll;
mod parameters;

pub use call::CrossEntropyOptions;
pub(crate) use cases::cases;

use smallvec::smallvec;

use self::parameters::{CrossEntropy, NAME, class_dim, positions};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::cross_entropy::cross_entropy;
use crate::cpu::kernels::loss::Reduction;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cuda::CudaCall;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::{want_float, want_same};
use crate::tensor::Grads;

impl Kernel for CrossEntropy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let logits = call.ins[0].shape();
        self.classes(logits).forward(call)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        by_float!(call.ins[0].dtype(), T => self.run::<T>(call, bytemuck::cast_slice_mut(scratch)))
    }
}

impl CrossEntropy {
    fn run<T: Float>(&self, call: CpuCall<'_>, scratch: &mut [T]) -> Result<()> {
        let [x, target, weight @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let of = self.coefficients::<T>(x.shape(), target, weight.first());
        let mut outs = call.outs.into_iter();
        let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
        let (loss, max, log_sums, to_total) = (next(), next(), next(), next());
        let total = of.total(max.len()).map_err(Self::bad_target)?;
        to_total[0] = T::of(total);
        if self.reduction == Reduction::None {
            cross_entropy(&of, x.elements(), loss, max, log_sums);
            return Ok(());
        }
        let losses = &mut scratch[..max.len()];
        cross_entropy(&of, x.elements(), losses, max, log_sums);
        let sum: f64 = losses.iter().map(|&x| x.wide()).sum();
        loss[0] = T::of(if self.reduction == Reduction::Mean { sum / total } else { sum });
        Ok(())
    }
}

impl Operator for CrossEntropy {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, target, weight @ ..] = ins else {
            return Err(Error::argument(NAME, "needs logits, a target and perhaps weights of the classes"));
        };
        want_float(NAME, x.dtype)?;
        weight.iter().try_for_each(|weight| want_same(NAME, &[*x, *weight]))?;
        if x.rank() == 0 {
            return Err(Error::shape(NAME, "a scalar has no classes"));
        }
        let (shape, classes) = (positions(x.shape()), x.shape()[class_dim(x.rank())]);
        let fits = match target.dtype {
            DType::I64 | DType::U8 => target.shape() == shape.as_slice(),
            dtype if dtype == x.dtype => target.shape() == x.shape(),
            got => {
                let expected = "classes of int64 or uint8, or probabilities of the logits' type";
                return Err(Error::DType { op: NAME, expected, got });
            }
        };
        if !fits || weight.iter().any(|weight| weight.shape() != [classes]) {
            let message = format!(
                "logits {:?} with target {:?} and weights {:?}: needs [batch, classes, …] with classes [batch, …] or \
                 probabilities [batch, classes, …], and [classes]",
                x.shape(),
                target.shape(),
                weight.first().map(Meta::shape)
            );
            return Err(Error::shape(NAME, message));
        }
        let of_loss = if self.reduction == Reduction::None { shape.as_slice() } else { &[] };
        let number = |shape: &[usize]| Output::new(shape, x.dtype.accumulator());
        Ok(smallvec![Output::new(of_loss, x.dtype), number(&shape), number(&shape), number(&[])])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, _: &[Meta<'_>], outs: &[Meta<'_>], _: DeviceFacts) -> u64 {
        if self.reduction == Reduction::None { 0 } else { outs[1].bytes() }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(4 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let inputs = (0..wanted.len()).fold(Saves::NOTHING, |all, i| all.and(Saves::input(i)));
        (1..4).fold(inputs, |all, i| all.and(Saves::output(i)))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        if is_grad_enabled() || at.wants(1) {
            return self.composed(at, grad);
        }
        self.by_kernel(at, grad)
    }
}
