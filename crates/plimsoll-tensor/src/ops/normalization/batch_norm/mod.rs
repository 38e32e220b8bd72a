//! Batch normalization: alone, with a ReLU after it, or with a residual added before the ReLU.
//!
//! | file | contents |
//! |---|---|
//! | this one | the operators: with the batch's statistics or with given ones; the running statistics |
//! | `parameters` | the operators' parameters, and the memory layout of channels |
//! | `recompute` | recomputing an output that was not saved |
//! | `backward` | the gradients: by a kernel, and composed of tensor operations |
//! | `call` | the methods of [`Tensor`] |
//! | `cases` | cases for the conformance suite |
//!
//! It saves the input and two numbers per channel. With the ReLU fused in, the tensor between the two is never made: the
//! backward pass recomputes which elements the ReLU set to 0. With a residual, it reads this from the output, which the next
//! layer saves anyway. With [`BatchNormArgs::recompute`], nothing saves the output; the backward pass then finds these elements
//! from the residual. Channels-last images stay channels-last.

mod backward;
mod call;
mod cases;
mod parameters;
mod recompute;

pub use call::{BatchNormArgs, BatchNormOptions};
pub(crate) use cases::cases;

use smallvec::smallvec;

use self::parameters::{BatchNorm, Then, channels, images};
use crate::cpu::kernels::channel_norm::{Affine, inverse_deviation, normalize, normalize_add, statistics};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::normalization::batch_norm;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::shape::memory_format::{MemoryFormat, kept};
use crate::ops::want_float;
use crate::tensor::Grads;

impl Kernel for BatchNorm {
    fn name(&self) -> &'static str {
        self.then.name()
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let ins = call.ins.clone();
        let given = (!self.batch).then(|| [ins[1], ins[2]]);
        let [weight, bias] = [0, 1].map(|i| self.scale(ins.len()).nth(i).map(|at| ins[at]));
        let residual = (self.then == Then::AddRelu).then(|| ins[ins.len() - 1]);
        let cut = self.then.cut();
        batch_norm::forward(call, images(ins[0].layout), given, [weight, bias, residual], cut, self.eps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let mut outs = call.outs.into_iter();
        by_float!(call.ins[0].dtype(), T => {
            let element = |i: usize| call.ins.get(i).map(|tensor| tensor.elements::<T>());
            let (size, x) = (channels(call.ins[0].layout()), call.ins[0].elements::<T>());
            let given = if self.batch { [None, None] } else { [element(1), element(2)] };
            let [weight, bias] = [0, 1].map(|i| self.scale(call.ins.len()).nth(i).and_then(element));
            let residual = (self.then == Then::AddRelu).then(|| element(call.ins.len() - 1)).flatten();
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (out, mean, rstd, variance) = (next(), next(), next(), next());
            match given {
                [Some(of_mean), Some(of_variance)] => {
                    mean.copy_from_slice(of_mean);
                    variance.copy_from_slice(of_variance);
                    inverse_deviation(variance, self.eps, rstd);
                }
                _ => statistics(size, self.eps, x, [mean, variance, rstd]),
            }
            let affine = Affine { mean, rstd, weight, bias, relu: self.then != Then::Nothing };
            match residual {
                Some(residual) => normalize_add(size, &affine, [x, residual], out),
                None => normalize(size, &affine, x, out),
            }
        });
        Ok(())
    }
}

impl Operator for BatchNorm {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let name = self.name();
        let misfit = |message: String| Err(Error::shape(name, message));
        let [x, ..] = ins else { return Err(Error::argument(name, "needs an input")) };
        let residual = if self.then == Then::AddRelu { ins.last() } else { None };
        let numbers = &ins[1..ins.len() - usize::from(residual.is_some())];
        // The channels' parameters may be 32-bit with 16-bit images, as in PyTorch.
        ins.iter().try_for_each(|meta| want_float(name, meta.dtype))?;
        if let Some(other) =
            numbers.iter().find(|meta| ![x.dtype, x.dtype.accumulator()].contains(&meta.dtype))
        {
            return Err(Error::DType { op: name, expected: x.dtype.accumulator().name(), got: other.dtype });
        }
        let &[batch, channels, ref rest @ ..] = x.shape() else {
            return misfit(format!("input {:?}: needs [batch, channels, …]", x.shape()));
        };
        if let Some(other) = numbers.iter().find(|meta| meta.shape() != [channels]) {
            let message = format!(
                "statistics, weight or bias {:?} for input {:?}: needs [{channels}]",
                other.shape(),
                x.shape()
            );
            return misfit(message);
        }
        if let Some(other) = residual.filter(|other| other.shape() != x.shape() || other.dtype != x.dtype) {
            let message = format!(
                "residual {:?} of {} and input {:?} of {}: shape and type must be the same",
                other.shape(),
                other.dtype,
                x.shape(),
                x.dtype
            );
            return misfit(message);
        }
        if self.batch && batch * rest.iter().product::<usize>() == 1 {
            return misfit(format!(
                "one value per channel in input {:?}: batch statistics need more; use the running statistics",
                x.shape()
            ));
        }
        let number = || Output::new(&[channels], x.dtype.accumulator());
        Ok(smallvec![Output::laid_out(kept(x.layout), x.dtype), number(), number(), number()])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        // The residual has the input's layout: `call.rs` makes sure of that.
        let is_image = input == 0 || (self.then == Then::AddRelu && layout.rank() > 1);
        layout.is_contiguous() || (is_image && MemoryFormat::of(layout).is_some())
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        match self.batch && device.kind == DeviceKind::Cuda {
            true => images(ins[0].layout).scratch(ins[0].dtype),
            false => 0,
        }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(6 * ins[0].layout.len() as u64, ins, outs)
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let numbers = Saves::output(1).and(Saves::output(2));
        let saves = Saves::input(0).and(numbers);
        let saves = saves.and(Saves::output(0).only_if(self.reads_output()));
        let residual = Saves::input(wanted.len() - 1);
        let saves = saves.and(residual.only_if(self.then == Then::AddRelu && self.finds_cut()));
        // The bias is needed to recompute which elements the ReLU set to 0.
        let reads = |&i: &usize| self.finds_cut() || i == self.scale(wanted.len()).start;
        self.scale(wanted.len()).filter(reads).fold(saves, |all, i| all.and(Saves::input(i)))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    /// Statistics are by-products of the kernel: no gradient flows through them, and given ones have no gradient.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        if crate::autograd::is_grad_enabled() { self.composed(at, grad) } else { self.by_kernel(at, grad) }
    }
}
