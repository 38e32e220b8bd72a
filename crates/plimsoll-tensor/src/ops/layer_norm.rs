//! Layer normalization over the last dimension. It keeps its input and two numbers a row, never its output.

use smallvec::{SmallVec, smallvec};

use super::{want_float, want_same};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::layer_norm::{layer_norm, layer_norm_backward, layer_norm_backward_scale};
use crate::cpu::kernels::number::by_float;
use crate::cuda::{self, CudaCall};
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x[, weight[, bias]] -> out, mean, rstd`: the last two of one number a row.
#[derive(Clone, Copy, Debug)]
struct LayerNorm {
    eps: f64,
}

/// Size of a row, and the shape of what has one number for each.
fn rows(x: &Meta<'_>) -> Result<(usize, Layout)> {
    match x.shape() {
        [lead @ .., cols] => Ok((*cols, Layout::contiguous(lead))),
        [] => Err(Error::shape("layer_norm", "a scalar has no dimension to normalize over")),
    }
}

impl Kernel for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::rows::layer_norm(call, self.eps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [x, scale @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let mut outs = call.outs.into_iter();
        by_float!(x.dtype(), T => {
            let scale = [0, 1].map(|i| scale.get(i).map(|tensor| tensor.elements::<T>()));
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements();
            layer_norm(self.eps, x.elements(), scale, next(), next(), next());
        });
        Ok(())
    }
}

impl Operator for LayerNorm {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, scale @ ..] = ins else {
            return Err(Error::argument("layer_norm", "needs an input, and perhaps a weight and a bias"));
        };
        want_float("layer_norm", x.dtype)?;
        want_same("layer_norm", ins)?;
        let (cols, lead) = rows(x)?;
        if scale.len() > 2 || scale.iter().any(|meta| meta.shape() != [cols]) {
            let shapes: Vec<_> = scale.iter().map(Meta::shape).collect();
            let message =
                format!("input {:?} with weight and bias {shapes:?}: needs […, n], [n] and [n]", x.shape());
            return Err(Error::shape("layer_norm", message));
        }
        // Short floats keep their statistics in 32 bits, as in PyTorch.
        let number = || Output::laid_out(lead.clone(), x.dtype.accumulator());
        Ok(smallvec![Output::new(x.shape(), x.dtype), number(), number()])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(8 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let scale = Saves::input(1).only_if(wanted.len() > 1 && wanted[0]);
        let row = Saves::input(0).and(Saves::output(1)).and(Saves::output(2));
        row.only_if(wanted[0] || wanted.get(1) == Some(&true)).and(scale)
    }

    /// Mean and deviation are the kernel's by-products: no gradient comes in through them.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        if is_grad_enabled() {
            return self.composed(at, grad);
        }
        let saved = || Ok::<_, Error>([at.input(0)?, at.output(1)?, at.output(2)?]);
        let mut results: Grads = smallvec![None; at.inputs()];
        if at.wants(0) {
            let [x, mean, rstd] = saved()?;
            let weight = (at.inputs() > 1).then(|| at.input(1)).transpose()?;
            let mut ins: SmallVec<[&Tensor; 5]> = smallvec![grad, &x, &mean, &rstd];
            ins.extend(&weight);
            results[0] = Some(call_one(LayerNormBackward, &ins)?);
        }
        if at.inputs() > 1 && at.wants(1) {
            let [x, mean, rstd] = saved()?;
            results[1] = Some(call_one(LayerNormBackwardScale, &[grad, &x, &mean, &rstd])?);
        }
        if at.inputs() > 2 && at.wants(2) {
            results[2] = Some(sum_of_rows(grad)?);
        }
        Ok(results)
    }
}

/// Summed over all dimensions but the last.
fn sum_of_rows(x: &Tensor) -> Result<Tensor> {
    x.sum_dims(&(0..x.rank() as isize - 1).collect::<Vec<_>>())
}

impl LayerNorm {
    /// The gradients by operations on tensors, for a derivative of them.
    fn composed(&self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let mut results: Grads = smallvec![None; at.inputs()];
        let mean = |x: &Tensor| x.mean_keepdim(&[-1]);
        if at.wants(0) || (at.inputs() > 1 && at.wants(1)) {
            let x = at.input(0)?;
            let centred = x.sub(&mean(&x)?)?;
            let rstd = mean(&centred.square()?)?.add_scalar(self.eps)?.sqrt()?.reciprocal()?;
            let normal = centred.mul(&rstd)?;
            if at.wants(0) {
                let scaled = if at.inputs() > 1 { grad.mul(&at.input(1)?)? } else { grad.clone() };
                let along = normal.mul(&mean(&scaled.mul(&normal)?)?)?;
                results[0] = Some(scaled.sub(&mean(&scaled)?)?.sub(&along)?.mul(&rstd)?);
            }
            if at.inputs() > 1 && at.wants(1) {
                results[1] = Some(sum_of_rows(&grad.mul(&normal)?)?);
            }
        }
        if at.inputs() > 2 && at.wants(2) {
            results[2] = Some(sum_of_rows(grad)?);
        }
        Ok(results)
    }
}

/// `grad, x, mean, rstd[, weight] -> grad of x`.
#[derive(Clone, Copy, Debug)]
struct LayerNormBackward;

impl Kernel for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::rows::layer_norm_backward(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, x, mean, rstd, weight @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let cols = x.shape().last().copied().unwrap_or(1);
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(out.dtype(), T => {
            let weight = weight.first().map(|weight| weight.elements());
            let row = [mean.elements(), rstd.elements()];
            layer_norm_backward::<T>(cols, grad.elements(), x.elements(), row, weight, out.elements());
        });
        Ok(())
    }
}

impl Operator for LayerNormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(ins[1].shape(), ins[1].dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// `grad, x, mean, rstd -> grad of the weight`.
#[derive(Clone, Copy, Debug)]
struct LayerNormBackwardScale;

impl Kernel for LayerNormBackwardScale {
    fn name(&self) -> &'static str {
        "layer_norm_backward_scale"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::rows::layer_norm_backward_scale(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, x, mean, rstd], [out]) = call.split();
        by_float!(out.dtype(), T => {
            let row = [mean.elements(), rstd.elements()];
            layer_norm_backward_scale::<T>(grad.elements(), x.elements(), row, out.elements());
        });
        Ok(())
    }
}

impl Operator for LayerNormBackwardScale {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let cols = ins[1].shape().last().copied().unwrap_or(1);
        Ok(smallvec![Output::new(&[cols], ins[1].dtype)])
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let (cols, rows) = (ins[1].shape().last().copied().unwrap_or(1), ins[2].layout.len());
        match device.kind {
            DeviceKind::Cuda => cuda::rows::scale_scratch(rows, cols, ins[1].dtype),
            _ => 0,
        }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// Each row along the last dimension brought to mean 0 and deviation 1, then times `weight` plus `bias`.
    /// `eps` is added to the variance. As `torch.nn.functional.layer_norm`.
    ///
    /// # Errors
    /// A bias without a weight; sizes that do not fit together; out of memory.
    pub fn layer_norm(&self, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        if weight.is_none() && bias.is_some() {
            return Err(Error::argument("layer_norm", "a bias without a weight: give a weight of ones"));
        }
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self];
        ins.extend(weight);
        ins.extend(bias);
        Ok(call(LayerNorm { eps }, &ins)?.remove(0))
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |cols: usize| {
        move |ins: &[Vec<f64>]| {
            let row = |row: &[f64]| -> Vec<f64> {
                let mean = row.iter().sum::<f64>() / cols as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
                let normal = row.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).enumerate();
                let scale = |i: usize, at: usize, none: f64| ins.get(i).map_or(none, |scale| scale[at]);
                normal.map(|(at, x)| x * scale(1, at, 1.0) + scale(2, at, 0.0)).collect()
            };
            vec![ins[0].chunks(cols).flat_map(row).collect()]
        }
    };
    let run =
        |ins: &[&Tensor]| Ok(smallvec![ins[0].layer_norm(ins.get(1).copied(), ins.get(2).copied(), 1e-5)?]);
    let shapes: [(usize, &[&[usize]]); 4] = [
        (5, &[&[3, 5]]),
        (5, &[&[3, 5], &[5]]),
        (7, &[&[2, 3, 7], &[7], &[7]]),
        (33, &[&[33], &[33], &[33]]),
    ];
    shapes
        .map(|(cols, shapes)| Case::new(format!("layer_norm {shapes:?}"), shapes, run).expect(naive(cols)))
        .into()
}
