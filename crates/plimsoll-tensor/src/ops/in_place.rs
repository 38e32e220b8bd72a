//! Changes in place, and copies. They make no temporaries, and they notice when a saved tensor changes.

use smallvec::smallvec;

use super::want_float;
use crate::autograd::{Backward, Grads, is_grad_enabled, link};
use crate::dispatch::{self, Data};
use crate::error::{Error, Result};
use crate::op::{Distribution, Op, RandomStream};
use crate::tensor::Tensor;

impl Tensor {
    /// `self += other`, broadcast to this shape.
    ///
    /// # Errors
    /// A tensor that takes part in recording (work on it under `no_grad`, or on a detached copy); shapes
    /// that do not broadcast to this one.
    pub fn add_(&self, other: &Tensor) -> Result<()> {
        self.add_scaled_(other, 1.0)
    }

    /// `self += alpha * other`, broadcast to this shape. As `Tensor.add_(other, alpha=…)`.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn add_scaled_(&self, other: &Tensor, alpha: f32) -> Result<()> {
        self.change(Op::AddAssign { alpha }, other)
    }

    /// `self *= other`, broadcast to this shape.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn mul_(&self, other: &Tensor) -> Result<()> {
        self.change(Op::MulAssign, other)
    }

    /// Every element becomes `value`.
    ///
    /// # Errors
    /// A tensor that takes part in recording.
    pub fn fill_(&self, value: f64) -> Result<()> {
        self.overwrite(Op::Fill(value), &[])
    }

    /// Every element becomes zero.
    ///
    /// # Errors
    /// A tensor that takes part in recording.
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0.0)
    }

    /// Takes over the values of `other`, converted and broadcast.
    ///
    /// # Errors
    /// A tensor that takes part in recording; shapes that do not broadcast to this one.
    pub fn copy_(&self, other: &Tensor) -> Result<()> {
        refuse_to_record("copy_", other)?;
        let other = other.to_dtype(self.dtype())?;
        self.overwrite(Op::Copy, &[&self.broadcast_to_me("copy_", &other)?])
    }

    /// Values drawn evenly from `low` up to `high`, from one stream of a seed.
    ///
    /// # Errors
    /// A tensor that takes part in recording; a type other than `float32`.
    pub fn uniform_(&self, low: f32, high: f32, from: RandomStream) -> Result<()> {
        want_float("uniform_", self)?;
        self.overwrite(Op::Random(Distribution::Uniform { low, high }, from), &[])
    }

    /// Values from a normal distribution, from one stream of a seed.
    ///
    /// # Errors
    /// As [`Tensor::uniform_`].
    pub fn normal_(&self, mean: f32, std: f32, from: RandomStream) -> Result<()> {
        want_float("normal_", self)?;
        self.overwrite(Op::Random(Distribution::Normal { mean, std }, from), &[])
    }

    /// The values in row-major order without gaps: itself where they are, else a copy.
    ///
    /// # Errors
    /// Out of memory.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A contiguous copy with storage of its own. As `Tensor.clone`: gradients flow through.
    ///
    /// # Errors
    /// Out of memory.
    pub fn copy(&self) -> Result<Tensor> {
        let out = dispatch::run(&Op::Copy, &[self.data()], self.shape(), self.dtype())?;
        Ok(link(out, &[self], |_, _| CopyBack))
    }

    fn change(&self, op: Op, other: &Tensor) -> Result<()> {
        for tensor in [self, other] {
            want_float(op.name(), tensor)?;
        }
        refuse_to_record(op.name(), other)?;
        let other = self.broadcast_to_me(op.name(), other)?;
        self.overwrite(op, &[&other])
    }

    fn broadcast_to_me(&self, op: &'static str, other: &Tensor) -> Result<Data> {
        let expanded = other.data().layout.expand(self.shape());
        let layout = expanded.ok_or_else(|| {
            Error::shape(op, format!("{:?} does not broadcast to {:?}", other.shape(), self.shape()))
        })?;
        Ok(Data { storage: other.data().storage.clone(), layout, dtype: other.dtype() })
    }

    fn overwrite(&self, op: Op, ins: &[&Data]) -> Result<()> {
        refuse_to_record(op.name(), self)?;
        let strides_repeat =
            self.shape().iter().zip(self.strides()).any(|(&n, &stride)| n > 1 && stride == 0);
        if strides_repeat {
            return Err(Error::shape(
                op.name(),
                "several elements of an expanded tensor are one: copy it first",
            ));
        }
        if !self.is_contiguous() && !matches!(op, Op::Fill(_) | Op::Copy) {
            // Kernels change dense memory; a strided view is gathered, changed and put back.
            let dense = self.detach().copy()?;
            dense.overwrite(op, ins)?;
            return dispatch::run_in_place(&Op::Copy, &[dense.data()], &[self.data()]);
        }
        dispatch::run_in_place(&op, ins, &[self.data()])
    }
}

/// A change in place is not recorded: done silently, it would cut a gradient off.
fn refuse_to_record(op: &'static str, tensor: &Tensor) -> Result<()> {
    if !is_grad_enabled() || !tensor.requires_grad() {
        return Ok(());
    }
    Err(Error::autograd(
        op,
        "a change in place that involves a tensor which wants a gradient cannot be recorded; do it under \
         `no_grad`, or on a detached tensor",
    ))
}

struct CopyBack;

impl Backward for CopyBack {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        Ok(smallvec![grads[0].clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn an_in_place_change_reads_its_old_values_through_any_view() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &Device::cpu()).unwrap();
        x.add_(&x.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 5.0, 5.0, 8.0]);
    }
}
