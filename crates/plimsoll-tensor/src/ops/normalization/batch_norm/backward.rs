//! The gradients of batch normalization: by a kernel, and composed of tensor operations for second derivatives.

use smallvec::{SmallVec, smallvec};

use super::{BatchNorm, Then, channels, images};
use crate::cpu::kernels::channel_norm::{Affine, cut_where_not_positive, normalize_add, normalize_backward};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::normalization::batch_norm::{self, Cut, Scale};
use crate::dispatch::call;
use crate::error::Result;
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Meta, Operator, Output, Outputs};
use crate::ops::shape::memory_format::{MemoryFormat, kept};
use crate::tensor::{Grads, Tensor};

/// `grad, x, mean, rstd[, weight, bias][, out or residual] -> grads of x, weight and bias[, of the residual]`.
#[derive(Clone, Copy, Debug)]
struct BatchNormBackward {
    batch: bool,
    then: Then,
    /// Whether the last input is the residual, from which the output is recomputed.
    from_residual: bool,
    /// The memory format of the input, in which the gradient and the output are read too.
    format: MemoryFormat,
}

impl BatchNorm {
    pub(super) fn by_kernel(self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let scale = self.scale(at.inputs());
        if grad.numel() == 0 {
            let zeros = |i: usize| Tensor::full(at.shape(i), 0.0, grad.dtype(), grad.device());
            let of = |i: usize| at.wants(i).then(|| zeros(i)).transpose();
            return (0..at.inputs()).map(of).collect();
        }
        let reads = scale.clone().filter(|&i| self.finds_cut() || i == scale.start);
        let saved: SmallVec<[Tensor; 2]> = reads.map(|i| at.input(i)).collect::<Result<_>>()?;
        let (x, mean, rstd) = (at.input(0)?, at.output(1)?, at.output(2)?);
        let format = MemoryFormat::for_input(&x.data().layout);
        let moved = grad.to_memory_format(format)?;
        let from_residual = self.then == Then::AddRelu && self.finds_cut();
        let made = || if from_residual { at.input(at.inputs() - 1) } else { at.output(0) };
        let made = (self.then == Then::AddRelu).then(|| made()?.to_memory_format(format)).transpose()?;
        let mut ins: SmallVec<[&Tensor; 6]> = smallvec![&moved, &x, &mean, &rstd];
        ins.extend(&saved);
        ins.extend(&made);
        let op = BatchNormBackward { batch: self.batch, then: self.then, from_residual, format };
        let mut outs = call(op, &ins)?;
        let mut results: Grads = smallvec![None; at.inputs()];
        if self.then == Then::AddRelu {
            results[at.inputs() - 1] = outs.pop();
        }
        for (to, from) in [0].into_iter().chain(scale).zip(outs) {
            results[to] = at.wants(to).then_some(from);
        }
        Ok(results)
    }

    pub(super) fn composed(self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let x = at.input(0)?;
        let scales = self.scale(at.inputs());
        let dims: Vec<isize> = (0..x.rank() as isize).filter(|&dim| dim != 1).collect();
        let mut wide = Dims::from_elem(1, x.rank());
        wide[1] = x.shape()[1];
        let wide = |numbers: &Tensor| numbers.reshape(wide.as_slice());
        let mean = |x: &Tensor| x.mean_keepdim(&dims);
        let (centred, rstd) = match self.batch {
            true => {
                let centred = x.sub(&mean(&x)?)?;
                let rstd = mean(&centred.square()?)?.add_scalar(self.eps)?.sqrt()?.reciprocal()?;
                (centred, rstd)
            }
            false => (x.sub(&wide(&at.output(1)?.detach())?)?, wide(&at.output(2)?.detach())?),
        };
        let normal = centred.mul(&rstd)?;
        let reads = scales.clone().filter(|&i| self.finds_cut() || i == scales.start);
        let scale = reads.map(|i| wide(&at.input(i)?)).collect::<Result<Vec<_>>>()?;
        let scaled = |x: &Tensor| scale.first().map_or(Ok(x.clone()), |weight| x.mul(weight));
        let where_positive = |y: &Tensor| grad.mul(&y.not_positive()?.affine(-1.0, 1.0)?);
        let before = || {
            let y = scaled(&normal)?;
            scale.get(1).map_or(Ok(y.clone()), |bias| y.add(bias))
        };
        let grad = match self.then {
            Then::Nothing => grad.clone(),
            Then::Relu => where_positive(&before()?)?,
            Then::AddRelu if self.reads_output() => where_positive(&at.output(0)?)?,
            Then::AddRelu => where_positive(&before()?.add(&at.input(at.inputs() - 1)?)?)?,
        };
        let mut results: Grads = smallvec![None; at.inputs()];
        if at.wants(0) {
            let g = scaled(&grad)?;
            results[0] = Some(if self.batch {
                let slope = normal.mul(&mean(&g.mul(&normal)?)?)?;
                g.sub(&mean(&g)?)?.sub(&slope)?.mul(&rstd)?
            } else {
                g.mul(&rstd)?
            });
        }
        if scales.clone().next().is_some_and(|weight| at.wants(weight)) {
            results[scales.start] = Some(grad.mul(&normal)?.sum_dims(&dims)?);
        }
        if scales.clone().nth(1).is_some_and(|bias| at.wants(bias)) {
            results[scales.start + 1] = Some(grad.sum_dims(&dims)?);
        }
        if self.then == Then::AddRelu && at.wants(at.inputs() - 1) {
            results[at.inputs() - 1] = Some(grad);
        }
        Ok(results)
    }
}

impl Kernel for BatchNormBackward {
    fn name(&self) -> &'static str {
        match self.then {
            Then::Nothing => "batch_norm_backward",
            Then::Relu => "batch_norm_relu_backward",
            Then::AddRelu => "batch_norm_add_relu_backward",
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let ins = call.ins.clone();
        let [_, x, mean, rstd, scale @ ..] = &ins[..] else { return call.missing() };
        let (made, scale) = match (self.then, scale) {
            (Then::AddRelu, [scale @ .., made]) => (Some(*made), scale),
            _ => (None, scale),
        };
        let cut = if self.from_residual { Cut::FromResidual } else { self.then.cut() };
        let [weight, bias] = [0, 1].map(|i| scale.get(i).copied());
        let scale = Scale { mean: *mean, rstd: *rstd, weight, bias };
        batch_norm::backward(call, images(x.layout), self.batch, &scale, made, cut)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, x, mean, rstd, scale @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let (made, scale) = match (self.then, scale) {
            (Then::AddRelu, [scale @ .., made]) => (Some(made), scale),
            _ => (None, scale),
        };
        let mut outs = call.outs.into_iter();
        by_float!(x.dtype(), T => {
            let [weight, bias] = [0, 1].map(|i| scale.get(i).map(|tensor| tensor.elements::<T>()));
            let (mean, rstd) = (mean.elements(), rstd.elements());
            let affine = Affine { mean, rstd, weight, bias, relu: self.then == Then::Relu };
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (to_x, to_scale) = (next(), [next(), next()]);
            let (size, mut grad) = (channels(x.layout()), grad.elements());
            if let Some(made) = made {
                let to_residual = next();
                let mut out = made.elements();
                if self.from_residual {
                    // The gradient of `x` is written later; until then, its memory holds the output.
                    normalize_add(size, &affine, [x.elements(), out], to_x);
                    out = &*to_x;
                }
                cut_where_not_positive(out, grad, to_residual);
                grad = to_residual;
            }
            normalize_backward(size, &affine, self.batch, [x.elements(), grad], to_x, to_scale);
        });
        Ok(())
    }
}

impl Operator for BatchNormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let (x, mean) = (&ins[1], &ins[2]);
        let number = || Output::new(mean.shape(), mean.dtype);
        let image = || Output::laid_out(kept(x.layout), x.dtype);
        let mut outs = smallvec![image(), number(), number()];
        outs.extend((self.then == Then::AddRelu).then(image));
        Ok(outs)
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        match device.kind {
            DeviceKind::Cuda => images(ins[1].layout).scratch(ins[1].dtype),
            _ => 0,
        }
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        let is_image = input < 2 || (self.then == Then::AddRelu && layout.rank() > 1);
        if is_image { self.format.fits(layout) } else { layout.is_contiguous() }
    }
}
