//! RMS normalization, and both row normalizations of a sum (`x + residual`) that is an output too.
//!
//! Kept are the normalized tensor's input (the sum, where there is one) and one or two numbers a row. `layer_norm.rs` has
//! the normalization without a sum.

use smallvec::{SmallVec, smallvec};

use super::{want_float, want_same};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::row_norm::{Center, Rows, row_norm, row_norm_backward, row_norm_backward_scale};
use crate::cuda::{self, CudaCall};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x[, residual][, weight[, bias]] -> out, rstd[, mean][, sum]`.
#[derive(Clone, Copy, Debug)]
struct RowNorm {
    center: Center,
    residual: bool,
    eps: f64,
}

impl RowNorm {
    /// The number of the weight.
    fn weight(&self) -> usize {
        1 + usize::from(self.residual)
    }

    fn has_mean(&self) -> bool {
        self.center == Center::Mean
    }

    /// The output with the sum, where there is one.
    fn sum(&self) -> Option<usize> {
        self.residual.then_some(2 + usize::from(self.has_mean()))
    }
}

impl Kernel for RowNorm {
    fn name(&self) -> &'static str {
        match (self.center, self.residual) {
            (Center::Zero, false) => "rms_norm",
            (Center::Zero, true) => "add_rms_norm",
            (Center::Mean, _) => "add_layer_norm",
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::row_norm::forward(call, self.has_mean(), self.residual, self.eps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let mut outs = call.outs.into_iter();
        by_float!(call.ins[0].dtype(), T => {
            let element = |i: usize| call.ins.get(i).map(|tensor| tensor.elements::<T>());
            let x = element(0).unwrap_or_else(|| unreachable!("inferred"));
            let residual = if self.residual { element(1) } else { None };
            let scale = [element(self.weight()), element(self.weight() + 1)];
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (out, rstd) = (next(), next());
            let mean = self.has_mean().then(&mut next);
            let sum = self.residual.then(&mut next);
            row_norm((self.center, self.eps), (x, residual), scale, (out, sum), (rstd, mean));
        });
        Ok(())
    }
}

impl Operator for RowNorm {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let name = self.name();
        want_same(name, ins)?;
        ins.first().map_or(Ok(()), |x| want_float(name, x.dtype))?;
        let (operands, scale) = ins.split_at(self.weight().min(ins.len()));
        let Some(x) = operands.first().filter(|_| operands.len() == self.weight()) else {
            return Err(Error::argument(
                name,
                "needs an input, a residual where it adds one, and perhaps a scale",
            ));
        };
        let [lead @ .., cols] = x.shape() else {
            return Err(Error::shape(name, "a scalar has no dimension to normalize over"));
        };
        let fits = operands.iter().all(|meta| meta.shape() == x.shape());
        if !fits || scale.len() > 2 || scale.iter().any(|meta| meta.shape() != [*cols]) {
            let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(Meta::shape).collect();
            let message =
                format!("inputs {shapes:?}: needs […, n], a residual of the same shape, [n] and [n]");
            return Err(Error::shape(name, message));
        }
        let number = || Output::new(lead, x.dtype.accumulator());
        let mut outs: Outputs = smallvec![Output::new(x.shape(), x.dtype), number()];
        outs.extend(self.has_mean().then(number));
        outs.extend(self.residual.then(|| Output::new(x.shape(), x.dtype)));
        Ok(outs)
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(6 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let weight = self.weight();
        let operand = wanted[..weight].contains(&true);
        let x = self.sum().map_or(Saves::input(0), Saves::output);
        let mean = Saves::output(2).only_if(self.has_mean());
        let row = x.and(Saves::output(1)).and(mean).only_if(operand || wanted.get(weight) == Some(&true));
        row.and(Saves::input(weight).only_if(wanted.len() > weight && operand))
    }

    /// What is kept of each row is the kernel's by-product: no gradient comes in through it.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let mut results: Grads = smallvec![None; at.inputs()];
        let along = self.sum().and_then(|sum| at.grad(sum));
        let weight = self.weight();
        let to_operand = (0..weight).any(|i| at.wants(i));
        let Some(grad) = at.grad(0) else {
            (0..weight).for_each(|i| results[i] = along.cloned());
            return Ok(results);
        };
        let wants = |i: usize| i < at.inputs() && at.wants(i);
        let has_weight = at.inputs() > weight;
        if to_operand || wants(weight) {
            let x = self.sum().map_or_else(|| at.input(0), |sum| at.output(sum))?;
            let scale = (has_weight && to_operand).then(|| at.input(weight)).transpose()?;
            let [to_x, to_weight] = if is_grad_enabled() {
                self.composed(grad, along, &x, scale.as_ref())?
            } else {
                let mut kept: SmallVec<[Tensor; 2]> = smallvec![at.output(1)?];
                if self.has_mean() {
                    kept.push(at.output(2)?);
                }
                let run = |op: RowNormBackward, more: [Option<&Tensor>; 2]| {
                    let mut ins: SmallVec<[&Tensor; 6]> = smallvec![grad, &x];
                    ins.extend(&kept);
                    ins.extend(more.into_iter().flatten());
                    call_one(op, &ins)
                };
                let (mean, along_and_scale) = (self.has_mean(), [along, scale.as_ref()]);
                let to_x = RowNormBackward { mean, along: along.is_some(), of_scale: false };
                let to_weight = RowNormBackward { mean, along: false, of_scale: true };
                [
                    to_operand.then(|| run(to_x, along_and_scale)).transpose()?,
                    wants(weight).then(|| run(to_weight, [None, None])).transpose()?,
                ]
            };
            (0..weight).for_each(|i| results[i] = to_x.clone().filter(|_| at.wants(i)));
            if wants(weight) {
                results[weight] = to_weight;
            }
        }
        if wants(weight + 1) {
            results[weight + 1] = Some(sum_of_rows(grad)?);
        }
        Ok(results)
    }
}

/// Summed over all dimensions but the last.
fn sum_of_rows(x: &Tensor) -> Result<Tensor> {
    x.sum_dims(&(0..x.rank() as isize - 1).collect::<Vec<_>>())
}

impl RowNorm {
    /// The gradients of the operands and of the weight by operations on tensors, for a derivative of them.
    fn composed(
        &self,
        grad: &Tensor,
        along: Option<&Tensor>,
        x: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<[Option<Tensor>; 2]> {
        let mean = |x: &Tensor| x.mean_keepdim(&[-1]);
        let centred = if self.has_mean() { x.sub(&mean(x)?)? } else { x.clone() };
        let rstd = mean(&centred.square()?)?.add_scalar(self.eps)?.sqrt()?.reciprocal()?;
        let normal = centred.mul(&rstd)?;
        let scaled = weight.map_or(Ok(grad.clone()), |weight| grad.mul(weight))?;
        let slope = normal.mul(&mean(&scaled.mul(&normal)?)?)?;
        let level = if self.has_mean() { scaled.sub(&mean(&scaled)?)? } else { scaled };
        let to_x = level.sub(&slope)?.mul(&rstd)?;
        let to_x = along.map_or(Ok(to_x.clone()), |along| to_x.add(along))?;
        Ok([Some(to_x), Some(sum_of_rows(&grad.mul(&normal)?)?)])
    }
}

/// `grad, x, rstd[, mean][, grad of the sum][, weight] -> grad of x`, or of the weight.
#[derive(Clone, Copy, Debug)]
struct RowNormBackward {
    mean: bool,
    along: bool,
    of_scale: bool,
}

impl Kernel for RowNormBackward {
    fn name(&self) -> &'static str {
        if self.of_scale { "row_norm_backward_scale" } else { "row_norm_backward" }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::row_norm::backward(call, self.mean, self.along, self.of_scale)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [grad, x, rstd, rest @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let (mean, rest) = rest.split_at(usize::from(self.mean));
        let (along, weight) = rest.split_at(usize::from(self.along));
        let cols = x.shape().last().copied().unwrap_or(1);
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(x.dtype(), T => {
            let mean = mean.first().map(|mean| mean.elements::<T>());
            let of = Rows { cols, rstd: rstd.elements::<T>(), mean };
            if self.of_scale {
                row_norm_backward_scale(&of, grad.elements(), x.elements(), out.elements());
            } else {
                let along = along.first().map(|along| along.elements());
                let weight = weight.first().map(|weight| weight.elements());
                row_norm_backward(&of, (grad.elements(), along), x.elements(), weight, out.elements());
            }
        });
        Ok(())
    }
}

impl Operator for RowNormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let shape = ins[1].shape();
        let shape = if self.of_scale { &shape[shape.len() - 1..] } else { shape };
        Ok(smallvec![Output::new(shape, ins[1].dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// Each row along the last dimension divided by the root of the mean of its squares, times `weight`. `eps` is added to
    /// that mean. As `torch.nn.functional.rms_norm`.
    ///
    /// # Errors
    /// Sizes that do not fit together; out of memory.
    pub fn rms_norm(&self, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let mut ins: SmallVec<[&Tensor; 2]> = smallvec![self];
        ins.extend(weight);
        Ok(call(RowNorm { center: Center::Zero, residual: false, eps }, &ins)?.remove(0))
    }

    /// The sum `self + residual`, and that sum normalized as [`Tensor::rms_norm`] does: in one pass each way.
    ///
    /// # Errors
    /// Sizes that do not fit together; out of memory.
    pub fn add_rms_norm(
        &self,
        residual: &Tensor,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        let op = RowNorm { center: Center::Zero, residual: true, eps };
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, residual];
        ins.extend(weight);
        let mut outs = call(op, &ins)?;
        Ok((outs.remove(2), outs.remove(0)))
    }

    /// The sum `self + residual`, and that sum brought to mean 0 and deviation 1 along the last dimension, times `weight`
    /// plus `bias`: in one pass each way.
    ///
    /// # Errors
    /// A bias without a weight; sizes that do not fit together; out of memory.
    pub fn add_layer_norm(
        &self,
        residual: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        let op = RowNorm { center: Center::Mean, residual: true, eps };
        if weight.is_none() && bias.is_some() {
            return Err(Error::argument(op.name(), "a bias without a weight: give a weight of ones"));
        }
        let mut ins: SmallVec<[&Tensor; 4]> = smallvec![self, residual];
        ins.extend(weight);
        ins.extend(bias);
        let mut outs = call(op, &ins)?;
        Ok((outs.remove(3), outs.remove(0)))
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        let row = |row: &[f64]| -> Vec<f64> {
            let scale = (row.iter().map(|x| x * x).sum::<f64>() / 5.0 + 1e-5).sqrt();
            row.iter()
                .enumerate()
                .map(|(i, x)| x / scale * ins.get(1).map_or(1.0, |weight| weight[i]))
                .collect()
        };
        vec![ins[0].chunks(5).flat_map(row).collect()]
    };
    let rms = |shapes: &[&[usize]]| {
        let run = |ins: &[&Tensor]| Ok(smallvec![ins[0].rms_norm(ins.get(1).copied(), 1e-5)?]);
        Case::new(format!("rms_norm {shapes:?}"), shapes, run).expect(naive)
    };
    let add = |center: Center, shapes: &[&[usize]]| {
        let get = |ins: &[&Tensor], i: usize| ins.get(i).map(|&tensor| tensor.clone());
        Case::new(format!("normalized sum, {center:?}, {shapes:?}"), shapes, move |ins| {
            let (weight, bias) = (get(ins, 2), get(ins, 3));
            let (sum, normal) = match center {
                Center::Zero => ins[0].add_rms_norm(ins[1], weight.as_ref(), 1e-5)?,
                Center::Mean => ins[0].add_layer_norm(ins[1], weight.as_ref(), bias.as_ref(), 1e-5)?,
            };
            Ok(smallvec![sum, normal])
        })
    };
    vec![
        rms(&[&[3, 5]]),
        rms(&[&[2, 2, 5], &[5]]),
        add(Center::Zero, &[&[3, 5], &[3, 5]]),
        add(Center::Zero, &[&[3, 7], &[3, 7], &[7]]),
        add(Center::Mean, &[&[3, 5], &[3, 5]]),
        add(Center::Mean, &[&[2, 2, 17], &[2, 2, 17], &[17], &[17]]),
    ]
}
