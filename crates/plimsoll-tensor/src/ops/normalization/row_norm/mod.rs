//! Normalization over the last dimension, by mean and deviation or by the root mean square; optionally of a sum (`x +
//! residual`) that is also an output.
//!
//! It saves the tensor that is normalized (the sum, if there is one) and one or two numbers per row, never the output.
//! `backward.rs` has the kernels of the gradients, `call.rs` the methods of tensors.

mod backward;
mod call;

use smallvec::{SmallVec, smallvec};

use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::row_norm::{Center, row_norm};
use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::reduce::sum::sum_of_rows;
use crate::ops::{want_float, want_same};
use crate::tensor::{Grads, Tensor};

pub(in crate::ops) use call::{cases, layer_norm_cases};

/// `x[, residual][, weight[, bias]] -> out, rstd[, mean][, sum]`.
#[derive(Clone, Copy, Debug)]
struct RowNorm {
    center: Center,
    /// The dtype of the sum, if there is one: the sum is rounded before it is normalized.
    sum: Option<DType>,
    eps: f64,
}

impl RowNorm {
    /// The index of the weight.
    fn weight(&self) -> usize {
        1 + usize::from(self.sum.is_some())
    }

    fn has_mean(&self) -> bool {
        self.center == Center::Mean
    }

    /// The index of the output that is the sum, if there is one.
    fn sum(&self) -> Option<usize> {
        self.sum.map(|_| 2 + usize::from(self.has_mean()))
    }
}

impl Kernel for RowNorm {
    fn name(&self) -> &'static str {
        match (self.center, self.sum) {
            (Center::Zero, None) => "rms_norm",
            (Center::Zero, Some(_)) => "add_rms_norm",
            (Center::Mean, None) => "layer_norm",
            (Center::Mean, Some(_)) => "add_layer_norm",
        }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::normalization::row_norm::forward(call, self.has_mean(), self.sum.is_some(), self.eps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let mut outs = call.outs.into_iter();
        by_float!(call.ins[0].dtype(), T => {
            let element = |i: usize| call.ins.get(i).map(|tensor| tensor.elements::<T>());
            let x = element(0).unwrap_or_else(|| unreachable!("inferred"));
            let residual = self.sum.and_then(|dtype| Some((element(1)?, rounding::<T>(dtype))));
            let scale = [element(self.weight()), element(self.weight() + 1)];
            let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
            let (out, rstd) = (next(), next());
            let mean = self.has_mean().then(&mut next);
            let sum = self.sum.map(|_| next());
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
            return Err(self.misfit(ins));
        }
        // The statistics of 16-bit floats are 32-bit, as in PyTorch.
        let number = || Output::new(lead, x.dtype.accumulator());
        let mut outs: Outputs = smallvec![Output::new(x.shape(), x.dtype), number()];
        outs.extend(self.has_mean().then(number));
        outs.extend(self.sum.map(|_| Output::new(x.shape(), x.dtype)));
        Ok(outs)
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
        let weight = self.weight();
        let operand = wanted[..weight].contains(&true);
        let x = self.sum().map_or(Saves::input(0), Saves::output);
        let mean = Saves::output(2).only_if(self.has_mean());
        let row = x.and(Saves::output(1)).and(mean).only_if(operand || wanted.get(weight) == Some(&true));
        row.and(Saves::input(weight).only_if(wanted.len() > weight && operand))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    /// The statistics of the rows are by-products of the kernel: no gradient flows through them.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let mut results: Grads = smallvec![None; at.inputs()];
        let along = self.sum().and_then(|sum| at.grad(sum));
        let weight = self.weight();
        let Some(grad) = at.grad(0) else {
            (0..weight).for_each(|i| results[i] = along.cloned());
            return Ok(results);
        };
        let wants = |i: usize| i < at.inputs() && at.wants(i);
        let wanted = [(0..weight).any(|i| at.wants(i)), wants(weight), wants(weight + 1)];
        let of_rows = wanted[0] || wanted[1];
        let x = of_rows.then(|| self.sum().map_or_else(|| at.input(0), |sum| at.output(sum))).transpose()?;
        let has_scale = at.inputs() > weight && wanted[0];
        let scale = has_scale.then(|| at.input(weight)).transpose()?;
        let [to_x, to_weight, to_bias] = match x {
            None => [None, None, wanted[2].then(|| sum_of_rows(grad)).transpose()?],
            Some(x) if is_grad_enabled() => self.composed(grad, along, &x, scale.as_ref(), wanted)?,
            Some(x) => {
                let mut kept: SmallVec<[Tensor; 2]> = smallvec![at.output(1)?];
                if self.has_mean() {
                    kept.push(at.output(2)?);
                }
                let row_sum = (0..weight).any(|i| at.wants_row_sum(i));
                backward::run(self.center, grad, (&x, &kept), along, scale.as_ref(), wanted, row_sum)?
            }
        };
        (0..weight).for_each(|i| results[i] = to_x.clone().filter(|_| at.wants(i)));
        for (i, found) in [(weight, to_weight), (weight + 1, to_bias)] {
            if let Some(slot) = results.get_mut(i) {
                *slot = found;
            }
        }
        Ok(results)
    }
}

/// Rounds to the nearest number of a dtype that kernels compute in a wider type: they get copies of 16-bit floats.
fn rounding<T: Float>(dtype: DType) -> Option<fn(T) -> T> {
    match dtype {
        DType::BF16 => Some(|x| T::of(half::bf16::from_f64(x.wide()).to_f64())),
        DType::F16 => Some(|x| T::of(half::f16::from_f64(x.wide()).to_f64())),
        _ => None,
    }
}

impl RowNorm {
    fn misfit(&self, ins: &[Meta<'_>]) -> Error {
        let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(Meta::shape).collect();
        let wanted = match self.sum {
            None => "[…, n], then [n] and [n]",
            Some(_) => "[…, n], a residual of the same shape, then [n] and [n]",
        };
        Error::shape(self.name(), format!("inputs {shapes:?}: needs {wanted}"))
    }

    /// The gradients of the operands, the weight and the bias composed of tensor operations, for second derivatives.
    #[track_caller]
    fn composed(
        &self,
        grad: &Tensor,
        along: Option<&Tensor>,
        x: &Tensor,
        weight: Option<&Tensor>,
        wanted: [bool; 3],
    ) -> Result<[Option<Tensor>; 3]> {
        let mean = |x: &Tensor| x.mean_keepdim(&[-1]);
        let centred = if self.has_mean() { x.sub(&mean(x)?)? } else { x.clone() };
        let rstd = mean(&centred.square()?)?.add_scalar(self.eps)?.sqrt()?.reciprocal()?;
        let normal = centred.mul(&rstd)?;
        let to_x = || {
            let scaled = weight.map_or(Ok(grad.clone()), |weight| grad.mul(weight))?;
            let slope = normal.mul(&mean(&scaled.mul(&normal)?)?)?;
            let level = if self.has_mean() { scaled.sub(&mean(&scaled)?)? } else { scaled };
            let to_x = level.sub(&slope)?.mul(&rstd)?;
            along.map_or(Ok(to_x.clone()), |along| to_x.add(along))
        };
        Ok([
            wanted[0].then(to_x).transpose()?,
            wanted[1].then(|| sum_of_rows(&grad.mul(&normal)?)).transpose()?,
            wanted[2].then(|| sum_of_rows(grad)).transpose()?,
        ])
    }
}
