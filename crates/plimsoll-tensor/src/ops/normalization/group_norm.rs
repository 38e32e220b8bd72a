//! Group normalization. It saves its input and two numbers per group of an image.

use smallvec::{SmallVec, smallvec};

use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::group_norm::{
    Groups, group_norm, group_norm_backward, group_norm_backward_scratch_len, sum_images,
};
use crate::cpu::kernels::group_norm_last::{group_norm_backward_last, group_norm_last};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::normalization::group_norm::Grouped;
use crate::dispatch::call;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::shape::memory_format::{MemoryFormat, kept};
use crate::ops::{want_float, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

const NAME: &str = "group_norm";

/// `x[, weight[, bias]] -> out, mean, rstd`; the last two have the shape `[batch, groups]`.
#[derive(Clone, Copy, Debug)]
struct GroupNorm {
    groups: usize,
    eps: f64,
}

fn sizes(groups: usize, x: &[usize]) -> Groups {
    Groups { batch: x[0], channels: x[1], inner: x[2..].iter().product(), groups }
}

/// The sizes in the form that a GPU's kernels take.
fn grouped(groups: usize, x: &[usize], format: MemoryFormat) -> Grouped {
    let Groups { batch, channels, inner, groups } = sizes(groups, x);
    Grouped { batch, channels, inner, groups, last: format == MemoryFormat::ChannelsLast }
}

impl Kernel for GroupNorm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.ins[0];
        grouped(self.groups, x.shape(), MemoryFormat::for_input(x.layout)).forward(call, self.eps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [x, scale @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let mut outs = call.outs.into_iter();
        by_float!(x.dtype(), T => {
            let scale = [0, 1].map(|i| scale.get(i).map(|tensor| tensor.elements::<T>()));
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (out, kept) = (next(), [next(), next()]);
            let (size, x_format) = (sizes(self.groups, x.shape()), MemoryFormat::for_input(x.layout()));
            match x_format {
                MemoryFormat::Contiguous => group_norm(&size, self.eps, x.elements(), scale, out, kept),
                MemoryFormat::ChannelsLast => group_norm_last(&size, self.eps, x.elements(), scale, out, kept),
            }
        });
        Ok(())
    }
}

impl Operator for GroupNorm {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        want_same(NAME, ins)?;
        let [x, scale @ ..] = ins else { return Err(Error::argument(NAME, "needs an input")) };
        want_float(NAME, x.dtype)?;
        let channels = x.shape().get(1).copied().unwrap_or(0);
        let fits = x.rank() > 1 && self.groups > 0 && channels.is_multiple_of(self.groups);
        if !fits || scale.iter().any(|meta| meta.shape() != [channels]) {
            let shapes: SmallVec<[&[usize]; 3]> = ins.iter().map(Meta::shape).collect();
            let message = format!(
                "{} groups of inputs {shapes:?}: needs [batch, channels, …] with channels a multiple of the groups, \
                 [channels] and [channels]",
                self.groups
            );
            return Err(Error::shape(NAME, message));
        }
        let number = || Output::new(&[x.shape()[0], self.groups], x.dtype.accumulator());
        Ok(smallvec![Output::laid_out(kept(x.layout), x.dtype), number(), number()])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        layout.is_contiguous() || (input == 0 && MemoryFormat::of(layout).is_some())
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(8 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let saves = Saves::input(0).and(Saves::output(1)).and(Saves::output(2));
        saves.and(Saves::input(1).only_if(wanted.len() > 1))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    /// Mean and deviation are by-products of the kernel: no gradient flows through them.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        if is_grad_enabled() {
            return self.composed(at, grad);
        }
        let saved = [at.input(0)?, at.output(1)?, at.output(2)?];
        let weight = (at.inputs() > 1).then(|| at.input(1)).transpose()?;
        let format = MemoryFormat::for_input(&saved[0].data().layout);
        let grad = grad.to_memory_format(format)?;
        let mut ins: SmallVec<[&Tensor; 5]> = smallvec![&grad];
        ins.extend(&saved);
        ins.extend(&weight);
        let outs = call(GroupNormBackward { groups: self.groups, format }, &ins)?;
        Ok(outs
            .into_iter()
            .take(at.inputs())
            .enumerate()
            .map(|(i, grad)| at.wants(i).then_some(grad))
            .collect())
    }
}

impl GroupNorm {
    /// The gradients composed of tensor operations, for second derivatives.
    fn composed(&self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let x = at.input(0)?;
        let Groups { batch, channels, .. } = sizes(self.groups, x.shape());
        let len = x.numel().checked_div(batch * self.groups).unwrap_or(0);
        let grouped = |x: &Tensor| x.reshape([batch, self.groups, len].as_slice());
        let mut wide = Dims::from_elem(1, x.rank());
        wide[1] = channels;
        let mean = |x: &Tensor| x.mean_keepdim(&[-1]);
        let rows = grouped(&x)?;
        let centred = rows.sub(&mean(&rows)?)?;
        let rstd = mean(&centred.square()?)?.add_scalar(self.eps)?.sqrt()?.reciprocal()?;
        let normal = centred.mul(&rstd)?;
        let dims: Vec<isize> = (0..x.rank() as isize).filter(|&dim| dim != 1).collect();
        let mut results: Grads = smallvec![None; at.inputs()];
        if at.wants(0) {
            let g = match at.inputs() > 1 {
                true => grad.mul(&at.input(1)?.reshape(wide.as_slice())?)?,
                false => grad.clone(),
            };
            let g = grouped(&g)?;
            let slope = normal.mul(&mean(&g.mul(&normal)?)?)?;
            let to_x = g.sub(&mean(&g)?)?.sub(&slope)?.mul(&rstd)?;
            results[0] = Some(to_x.reshape(x.shape())?);
        }
        if at.inputs() > 1 && at.wants(1) {
            results[1] = Some(grad.mul(&normal.reshape(x.shape())?)?.sum_dims(&dims)?);
        }
        if at.inputs() > 2 && at.wants(2) {
            results[2] = Some(grad.sum_dims(&dims)?);
        }
        Ok(results)
    }
}

/// `grad, x, mean, rstd[, weight] -> grads of x, weight and bias`.
#[derive(Clone, Copy, Debug)]
struct GroupNormBackward {
    groups: usize,
    /// The memory format of the input, in which the gradient is read too.
    format: MemoryFormat,
}

impl Kernel for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group_norm_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let x = call.ins[1];
        grouped(self.groups, x.shape(), self.format).backward(call)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let [grad, x, mean, rstd, weight @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let mut outs = call.outs.into_iter();
        by_float!(x.dtype(), T => {
            let weight = weight.first().map(|weight| weight.elements::<T>());
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (out, to_scale) = (next(), [next(), next()]);
            let size = sizes(self.groups, x.shape());
            let (both, kept) = ([x.elements(), grad.elements()], [mean.elements(), rstd.elements()]);
            let scratch = bytemuck::cast_slice_mut(scratch);
            if self.format == MemoryFormat::Contiguous {
                group_norm_backward(&size, both, kept, weight, out, to_scale, scratch);
                return Ok(());
            }
            let each = size.batch * size.channels;
            let (slopes, levels) = scratch[..2 * each].split_at_mut(each);
            group_norm_backward_last(&size, both, kept, weight, out, [&mut *slopes, &mut *levels]);
            let [to_weight, to_bias] = to_scale;
            to_weight.fill(T::default());
            to_bias.fill(T::default());
            sum_images(size.channels, [slopes, levels], [to_weight, to_bias]);
        });
        Ok(())
    }
}

impl Operator for GroupNormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let x = &ins[1];
        let number = || Output::new(&x.shape()[1..2], x.dtype);
        Ok(smallvec![Output::laid_out(kept(x.layout), x.dtype), number(), number()])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input < 2 { self.format.fits(layout) } else { layout.is_contiguous() }
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let size = sizes(self.groups, ins[1].shape());
        (group_norm_backward_scratch_len(&size) * ins[1].dtype.accumulator().size()) as u64
    }
}

impl Tensor {
    /// Normalizes each of `groups` equal groups of channels of `[batch, channels, …]` to mean 0 and standard deviation 1, then
    /// multiplies by `weight` and adds `bias` for each channel. Like `torch.nn.functional.group_norm`.
    ///
    /// # Errors
    /// If the number of channels is not a multiple of the groups, there is a bias but no weight, the sizes are
    /// incompatible, or memory runs out.
    #[track_caller]
    pub fn group_norm<'a>(
        &self,
        groups: usize,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.into(), bias.into());
        if weight.is_none() && bias.is_some() {
            return Err(Error::argument(NAME, "a bias without a weight: give a weight of ones"));
        }
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self];
        ins.extend(weight);
        ins.extend(bias);
        Ok(call(GroupNorm { groups, eps }, &ins)?.remove(0))
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |groups: usize, shapes: &[&[usize]]| {
        Case::new(format!("group_norm, {groups} groups, {shapes:?}"), shapes, move |ins| {
            Ok(smallvec![ins[0].group_norm(groups, ins.get(1).copied(), ins.get(2).copied(), 1e-2)?])
        })
    };
    vec![case(2, &[&[2, 4, 3]]), case(1, &[&[2, 4], &[4], &[4]]), case(4, &[&[1, 4, 2, 2], &[4], &[4]])]
}
