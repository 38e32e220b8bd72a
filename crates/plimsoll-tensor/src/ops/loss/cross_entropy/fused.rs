//! Cross entropy of a projection to many classes, such as a vocabulary, without materializing all logits.
//!
//! The gradients are computed in the forward pass, while the logits of some rows are in memory. Computing them in the backward
//! pass would have the same peak (the input and both gradients, plus everything else that is saved), would keep the input in
//! between, and would project a second time: a quarter more work. The product with the loss's own gradient is computed in place
//! if the graph is freed.

use smallvec::{SmallVec, smallvec};

use super::CrossEntropy;
use super::call::CrossEntropyOptions;
use crate::autocast;
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::linear_cross_entropy::{
    Projection, linear_cross_entropy, linear_cross_entropy_scratch_len,
};
use crate::cpu::kernels::loss::{BadTarget, Reduction};
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::parallel::{PIECE, for_each_piece};
use crate::cuda::loss::projection::Projected;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::{want_dtype, want_float, want_same};
use crate::tensor::{Grads, Tensor};

const FUSED: &str = "linear_cross_entropy";

/// `x, weight, target[, bias][, class weights] -> loss[, gradients of x, weight and bias, as required]`.
#[derive(Clone, Copy, Debug)]
struct LinearCrossEntropy {
    loss: CrossEntropy,
    bias: bool,
    /// Whether x, weight and bias need gradients.
    wanted: [bool; 3],
    /// Whether the loss is 32-bit although the inputs are 16-bit. It is under autocast, like PyTorch's losses.
    full: bool,
}

impl LinearCrossEntropy {
    fn size(x: &[usize], weight: &[usize]) -> Projection {
        let dim = x.last().copied().unwrap_or(1);
        Projection { rows: x[..x.len() - 1].iter().product(), dim, classes: weight[0] }
    }

    /// The sizes and options in the form that a GPU's kernels take.
    fn projected(&self, x: &[usize], weight: &[usize]) -> Projected {
        let Projection { rows, dim, classes } = Self::size(x, weight);
        let mean = self.loss.reduction == Reduction::Mean;
        let CrossEntropy { ignored, smoothing, .. } = self.loss;
        Projected { rows, dim, classes, ignored, mean, smoothing, bias: self.bias }
    }

    /// The index of the input that the n-th computed gradient belongs to.
    fn input(self, n: usize) -> usize {
        let wanted = [0, 1, 3].into_iter().zip(self.wanted).filter(|&(_, wanted)| wanted);
        wanted.map(|(i, _)| i).nth(n).unwrap_or_else(|| unreachable!("as many as are wanted"))
    }

    fn run<T: Float>(&self, call: CpuCall<'_>, scratch: &mut [T]) -> Result<()> {
        let [x, weight, target, rest @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let (bias, class_weights) = rest.split_at(usize::from(self.bias));
        let size = Self::size(x.shape(), weight.shape());
        let of = self.loss.coefficients::<T>(&[size.rows, size.classes], target, class_weights.first());
        let mut outs = call.outs.into_iter();
        let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
        let loss = next();
        let to = self.wanted.map(|wanted| wanted.then(&mut next));
        let mean = self.loss.reduction == Reduction::Mean;
        let (ins, bias) = ([x.elements(), weight.elements()], bias.first().map(|bias| bias.elements()));
        let value = linear_cross_entropy(&size, &of, mean, ins, bias, to, scratch);
        let bad =
            |bad: BadTarget| Error::Target { op: FUSED, row: bad.row, value: bad.value, classes: bad.cols };
        loss[0] = T::of(value.map_err(bad)?);
        Ok(())
    }

    fn gradients(self) -> usize {
        self.wanted.iter().filter(|&&wanted| wanted).count()
    }
}

impl Kernel for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        FUSED
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let projected = self.projected(call.ins[0].shape(), call.ins[1].shape());
        let mut outs = call.outs.clone().into_iter();
        let Some(loss) = outs.next() else { return call.missing() };
        let to = self.wanted.map(|wanted| if wanted { outs.next() } else { None });
        projected.run(call, loss, to)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        by_float!(call.ins[0].dtype(), T => self.run::<T>(call, bytemuck::cast_slice_mut(scratch)))
    }
}

impl Operator for LinearCrossEntropy {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, weight, target, rest @ ..] = ins else {
            return Err(Error::argument(FUSED, "needs an input, a weight and a target"));
        };
        want_float(FUSED, x.dtype)?;
        for meta in [weight].into_iter().chain(rest) {
            want_same(FUSED, &[*x, *meta])?;
        }
        want_dtype(FUSED, target.dtype, DType::I64)?;
        let fits = x.rank() > 0
            && weight.rank() == 2
            && x.shape().last() == weight.shape().last()
            && target.shape() == &x.shape()[..x.rank() - 1]
            && rest.iter().all(|meta| meta.shape() == &weight.shape()[..1]);
        if !fits {
            let rest: SmallVec<[&[usize]; 2]> = rest.iter().map(Meta::shape).collect();
            let message = format!(
                "input {:?}, weight {:?}, target {:?}, bias and class weights {rest:?}: needs […, in], [classes, in], […] and \
                 [classes]",
                x.shape(),
                weight.shape(),
                target.shape()
            );
            return Err(Error::shape(FUSED, message));
        }
        let loss = if self.full { x.dtype.accumulator() } else { x.dtype };
        let mut outs: Outputs = smallvec![Output::new(&[], loss)];
        for n in 0..self.gradients() {
            let of = &ins[self.input(n)];
            outs.push(Output::new(of.shape(), of.dtype));
        }
        Ok(outs)
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda {
            return self.projected(ins[0].shape(), ins[1].shape()).scratch(ins[0].dtype);
        }
        let size = Self::size(ins[0].shape(), ins[1].shape());
        (linear_cross_entropy_scratch_len(&size) * ins[0].dtype.accumulator().size()) as u64
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Projection { rows, dim, classes } = Self::size(ins[0].shape(), ins[1].shape());
        let products = 1 + self.wanted[..2].iter().filter(|&&wanted| wanted).count();
        Cost::streaming((2 * products * rows * dim * classes) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn saves(&self, _: &[bool]) -> Saves {
        (1..=self.gradients()).fold(Saves::NOTHING, |all, i| all.and(Saves::output(i)))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        if is_grad_enabled() {
            let message = "it has no second derivative: its gradients were computed in the forward pass; use `linear` and \
                           `cross_entropy` instead";
            return Err(Error::autograd(FUSED, message));
        }
        let mut results: Grads = smallvec![None; at.inputs()];
        for n in 0..self.gradients() {
            let gradient = at.output(1 + n)?;
            results[self.input(n)] = Some(match at.owns_output(1 + n) {
                true => call(Rescale, &[&gradient, grad])?.remove(0),
                false => gradient.mul(grad)?,
            });
        }
        Ok(results)
    }
}

/// `x *= scale`, in place. Does nothing if the scale is 1, as at the start of a backward pass.
#[derive(Clone, Copy, Debug)]
struct Rescale;

impl Kernel for Rescale {
    fn name(&self) -> &'static str {
        "linear_cross_entropy_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::elementwise::change(call, "y * a")
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([scale], [x]) = call.split();
        by_float!(x.dtype(), T => {
            let scale = scale.elements::<T>()[0];
            if scale != 1.0 {
                for_each_piece(x.elements::<T>(), PIECE, |_, x| x.iter_mut().for_each(|x| *x *= scale));
            }
        });
        Ok(())
    }
}

impl Operator for Rescale {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::in_place(0, &ins[0])])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// Cross entropy of the projection `self · weightᵀ + bias` (`[…, in]` by `[classes, in]`) against classes `int64 […]`;
    /// returns a scalar. The logits are never materialized: those of a few rows at a time are turned into these rows' part of
    /// the gradients, so memory does not grow with rows times classes. The weight may also be that of an embedding. Equals
    /// `linear` followed by [`Tensor::cross_entropy_with`]. Like `torch.nn.functional.linear_cross_entropy`.
    ///
    /// The gradients are computed in the forward pass; call it under `no_grad` if none is needed.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cross_entropy_with`]; also for `Reduction::None`, and for a second derivative.
    #[track_caller]
    pub fn linear_cross_entropy<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
        target: impl AsRef<Tensor>,
        options: CrossEntropyOptions<'_>,
    ) -> Result<Tensor> {
        let (weight, target, bias) = (weight.as_ref(), target.as_ref(), bias.into());
        if options.reduction == Reduction::None {
            let message =
                "needs a reduction to one number: without it, use `linear` and `cross_entropy_with`";
            return Err(Error::argument(FUSED, message));
        }
        let wants = |x: Option<&Tensor>| is_grad_enabled() && x.is_some_and(Tensor::requires_grad);
        let op = LinearCrossEntropy {
            loss: options.operator()?,
            bias: bias.is_some(),
            wanted: [wants(Some(self)), wants(Some(weight)), wants(bias)],
            full: autocast::is_enabled(),
        };
        let mut ins: SmallVec<[&Tensor; 5]> = smallvec![self, weight, target];
        ins.extend(bias);
        ins.extend(options.weight);
        Ok(call(op, &ins)?.remove(0))
    }
}
