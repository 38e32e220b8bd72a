//! The gradients of batch normalization: by a kernel, and as operations on tensors for a derivative of them.

use smallvec::{SmallVec, smallvec};

use super::{BatchNorm, channels, is_channels_last, kept};
use crate::cpu::kernels::channel_norm::{Affine, normalize_backward};
use crate::cpu::kernels::number::by_float;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Meta, Operator, Output, Outputs};
use crate::road::call;
use crate::tensor::{Grads, Tensor};

/// `grad, x, mean, rstd[, weight, bias] -> grads of x, weight and bias`.
#[derive(Clone, Copy, Debug)]
struct BatchNormBackward {
    batch: bool,
    relu: bool,
    /// Whether the input is channels-last: the gradient is then read so, too.
    channels_last: bool,
}

impl BatchNorm {
    pub(super) fn by_kernel(self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let weight = self.weight();
        let saved: SmallVec<[Tensor; 2]> =
            (weight..at.inputs()).map(|i| at.input(i)).collect::<Result<_>>()?;
        let (x, mean, rstd) = (at.input(0)?, at.output(1)?, at.output(2)?);
        let channels_last = !x.is_contiguous() && is_channels_last(&x.data().layout);
        // As the input lies, so that both are read together.
        let lies_so = |grad: &Tensor| match channels_last {
            true => is_channels_last(&grad.data().layout),
            false => grad.is_contiguous(),
        };
        let moved = match () {
            () if lies_so(grad) => grad.clone(),
            () if channels_last => to_channels_last(grad)?,
            () => grad.contiguous()?,
        };
        let op = BatchNormBackward { batch: self.batch, relu: self.relu, channels_last };
        let mut ins: SmallVec<[&Tensor; 6]> = smallvec![&moved, &x, &mean, &rstd];
        ins.extend(&saved);
        let outs = call(op, &ins)?;
        let mut results: Grads = smallvec![None; at.inputs()];
        for (to, from) in [0, weight, weight + 1].into_iter().zip(outs) {
            if to < at.inputs() && at.wants(to) {
                results[to] = Some(from);
            }
        }
        Ok(results)
    }

    pub(super) fn composed(self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let x = at.input(0)?;
        let weight = self.weight();
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
        let scale = (weight..at.inputs()).map(|i| wide(&at.input(i)?)).collect::<Result<Vec<_>>>()?;
        let scaled = |x: &Tensor| scale.first().map_or(Ok(x.clone()), |weight| x.mul(weight));
        let grad = if self.relu {
            let y = scaled(&normal)?;
            let y = scale.get(1).map_or(Ok(y.clone()), |bias| y.add(bias))?;
            grad.mul(&y.not_positive()?.affine(-1.0, 1.0)?)?
        } else {
            grad.clone()
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
        if weight < at.inputs() && at.wants(weight) {
            results[weight] = Some(grad.mul(&normal)?.sum_dims(&dims)?);
        }
        if weight + 1 < at.inputs() && at.wants(weight + 1) {
            results[weight + 1] = Some(grad.sum_dims(&dims)?);
        }
        Ok(results)
    }
}

/// A copy with channels side by side.
fn to_channels_last(x: &Tensor) -> Result<Tensor> {
    let rank = x.rank() as isize;
    let order: Vec<isize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let back: Vec<isize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    x.permute(&order)?.contiguous()?.permute(&back)
}

impl Kernel for BatchNormBackward {
    fn name(&self) -> &'static str {
        if self.relu { "batch_norm_relu_backward" } else { "batch_norm_backward" }
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, x, mean, rstd, scale @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let mut outs = call.outs.into_iter();
        by_float!(x.dtype(), T => {
            let [weight, bias] = [0, 1].map(|i| scale.get(i).map(|tensor| tensor.elements::<T>()));
            let (mean, rstd) = (mean.elements(), rstd.elements());
            let affine = Affine { mean, rstd, weight, bias, relu: self.relu };
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (out, to_scale) = (next(), [next(), next()]);
            let both = [x.elements(), grad.elements()];
            normalize_backward(channels(x.layout()), &affine, self.batch, both, out, to_scale);
        });
        Ok(())
    }
}

impl Operator for BatchNormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let (x, mean) = (&ins[1], &ins[2]);
        let number = || Output::new(mean.shape(), mean.dtype);
        Ok(smallvec![Output::laid_out(kept(x.layout), x.dtype), number(), number()])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        layout.is_contiguous() || (self.channels_last && input < 2 && is_channels_last(layout))
    }
}
