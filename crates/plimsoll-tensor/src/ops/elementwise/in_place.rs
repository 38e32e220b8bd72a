//! Changes in place. They allocate no temporaries, are recorded if an input requires a gradient, and let a backward pass detect
//! that a saved tensor changed.

use std::sync::Arc;

use smallvec::smallvec;

use super::functions::{Affine, NotPositive};
use super::operands::{self, Laid};
use super::unary;
use crate::cpu::kernels::elementwise::{update, update_any};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, copy_to};
use crate::dtype::{DType, result_type};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::Layout;
use crate::operator::{Backward, Meta, Operator, Output, Outputs};
use crate::ops::creation::create::Source;
use crate::random::{Distribution, RandomStream};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::view::{In, Out};

/// `x -> y`: changes each element of `y` by the element of `x`, broadcast. The inputs are `y, x`.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// `y += alpha * x`
    Add { alpha: f64 },
    /// `y = x`
    Copy,
}

impl Kernel for Change {
    fn name(&self) -> &'static str {
        match self {
            Change::Add { .. } => "add_",
            Change::Copy => "copy_",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        match *self {
            Change::Add { alpha } => cuda::elementwise::change(call, &format!("y + C({alpha:?}) * a")),
            Change::Copy => {
                let (x, y) = (call.ins[0], call.outs[0]);
                cuda::elementwise::copy(call, x, y)
            }
        }
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [y]) = call.split();
        match *self {
            Change::Add { alpha } => change(
                x,
                y,
                #[inline(always)]
                |y, x| y + alpha as f32 * x,
                |y, x| y + alpha * x,
                |y, x| y.wrapping_add((alpha as i64).wrapping_mul(x)),
            ),
            Change::Copy => copy_to(x, y),
        }
        Ok(())
    }
}

/// Changes `y` by each element of `x`, in the compute type of `y`.
fn change(
    x: In<'_>,
    y: Out<'_>,
    f32: impl Fn(f32, f32) -> f32 + Sync,
    f64: impl Fn(f64, f64) -> f64 + Sync,
    i64: impl Fn(i64, i64) -> i64 + Sync,
) {
    let laid = Laid::of(y.layout(), [x.layout()]);
    if (x.dtype(), y.dtype()) == (DType::F32, DType::F32) {
        let [x] = laid.operands::<f32, 1>([x]);
        return update(laid.shape(), y.elements::<f32>(), x, f32);
    }
    let (dtype, [x]) = (y.dtype(), laid.any([x]));
    let y = (y.bytes(), dtype);
    match dtype.accumulator() {
        DType::F32 => update_any(laid.shape(), y, x, f32),
        DType::F64 => update_any(laid.shape(), y, x, f64),
        _ => update_any(laid.shape(), y, x, i64),
    }
}

impl Operator for Change {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [y, x] = operands::inputs(self.name(), ins)?;
        if !matches!(self, Change::Copy) {
            self.check(y.dtype, result_type([&y, &x].map(|meta| (meta.dtype, meta.rank() > 0))))?;
        }
        if x.layout.expand(y.shape()).is_none() {
            let message = format!("{:?} does not broadcast to {:?}", x.shape(), y.shape());
            return Err(Error::shape(self.name(), message));
        }
        Ok(smallvec![Output::in_place(0, &y)])
    }

    /// Sums and products change memory without gaps, in any order of dimensions; copies support any layout.
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input != 0 || matches!(self, Change::Copy) || operands::without_gaps(layout)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let of_y = || match self {
            Change::Add { .. } => Ok(grad.clone()),
            Change::Copy => grad.zeros_like(),
        };
        let of_x = || match *self {
            Change::Add { alpha: 1.0 } => grad.sum_to(at.shape(1)),
            Change::Add { alpha } => grad.mul_scalar(alpha)?.sum_to(at.shape(1)),
            Change::Copy => grad.sum_to(at.shape(1)),
        };
        Ok(smallvec![at.wants(0).then(of_y).transpose()?, at.wants(1).then(of_x).transpose()?])
    }
}

impl Change {
    /// Whether the dtype of `y` can hold the result: a result of a higher category (`bool` < integer < floating point) does not
    /// fit.
    fn check(self, y: DType, result: Option<DType>) -> Result<()> {
        let whole = |alpha: f64| alpha.fract() == 0.0;
        let holds = match result {
            Some(result) if result.is_float() => y.is_float(),
            Some(DType::Bool) | None => true,
            Some(_) => y != DType::Bool,
        };
        match self {
            Change::Add { alpha } if !y.is_float() && !whole(alpha) => {
                let message = format!("alpha is {alpha}: it must be an integer for a tensor of {y}");
                Err(Error::argument(self.name(), message))
            }
            _ if holds => Ok(()),
            _ => {
                let result = result.unwrap_or(y);
                let message = format!(
                    "the result has type {result}, which a tensor of {y} cannot hold: convert one first"
                );
                Err(Error::argument(self.name(), message))
            }
        }
    }
}

/// `() -> y`: overwrites every element. The input is `y`.
#[derive(Clone, Copy, Debug)]
struct Overwrite {
    name: &'static str,
    source: Source,
}

impl Kernel for Overwrite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        self.source.cpu_type(dtype)
    }

    fn varies(&self) -> Option<Varies> {
        self.source.varies()
    }

    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(Overwrite { source: self.source.with_random(from), ..*self }))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let out = call.outs[0];
        self.source.write_cuda(call, out)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([], [out]) = call.split();
        self.source.write(out);
        Ok(())
    }
}

impl Operator for Overwrite {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [y] = operands::inputs(self.name, ins)?;
        self.source.check(self.name, y.dtype)?;
        Ok(smallvec![Output::in_place(0, &y)])
    }

    /// Random values are drawn in row-major order.
    fn takes(&self, _: usize, layout: &Layout) -> bool {
        matches!(self.source, Source::Value(_)) || layout.is_contiguous()
    }

    /// The old values are overwritten, so their gradient is 0.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        Ok(smallvec![at.grad(0).map(Tensor::zeros_like).transpose()?])
    }
}

impl Tensor {
    /// `self += other`, where `other` is broadcast to this shape.
    ///
    /// # Errors
    /// If this is a leaf that requires a gradient (or a view of one) and operations are recorded (use `no_grad`), or if
    /// a shape does not broadcast to this one.
    #[track_caller]
    pub fn add_(&self, other: impl AsRef<Tensor>) -> Result<()> {
        let other = other.as_ref();
        self.add_scaled_(other, 1.0)
    }

    /// `self += alpha * other`, where `other` is broadcast to this shape. Like `Tensor.add_(other, alpha=…)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::add_`].
    #[track_caller]
    pub fn add_scaled_(&self, other: impl AsRef<Tensor>, alpha: f64) -> Result<()> {
        let other = other.as_ref();
        call(Change::Add { alpha }, &[self, other]).map(drop)
    }

    /// Sets every element to `value`.
    ///
    /// # Errors
    /// If this is a leaf that requires a gradient, or a view of one.
    #[track_caller]
    pub fn fill_(&self, value: f64) -> Result<()> {
        self.overwrite("fill", Source::Value(value))
    }

    /// Sets every element to zero.
    ///
    /// # Errors
    /// If this is a leaf that requires a gradient, or a view of one.
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0.0)
    }

    /// Copies the values of `other`, converted and broadcast.
    ///
    /// # Errors
    /// If this is a leaf that requires a gradient (or a view of one), or a shape does not broadcast to this one.
    #[track_caller]
    pub fn copy_(&self, other: impl AsRef<Tensor>) -> Result<()> {
        let other = other.as_ref();
        call(Change::Copy, &[self, other]).map(drop)
    }

    /// Uniform random values between `low` and `high`, from the random stream `from` or, if `None`, from the device's
    /// generator. Like `Tensor.uniform_`.
    ///
    /// # Errors
    /// If this is a leaf that requires a gradient (or a view of one), or its dtype is not floating-point.
    #[track_caller]
    pub fn uniform_(&self, low: f64, high: f64, from: impl Into<Option<RandomStream>>) -> Result<()> {
        self.draw("uniform", Distribution::Uniform { low, high }, from.into())
    }

    /// Normally distributed values; `from` is as in [`Tensor::uniform_`]. Like `Tensor.normal_`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::uniform_`].
    #[track_caller]
    pub fn normal_(&self, mean: f64, std: f64, from: impl Into<Option<RandomStream>>) -> Result<()> {
        self.draw("normal", Distribution::Normal { mean, std }, from.into())
    }

    /// Exponentially distributed values with mean `1 / rate`; `from` is as in [`Tensor::uniform_`]. Like `Tensor.exponential_`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::uniform_`].
    #[track_caller]
    pub fn exponential_(&self, rate: f64, from: impl Into<Option<RandomStream>>) -> Result<()> {
        self.draw("exponential", Distribution::Exponential { rate }, from.into())
    }

    /// 1 with probability `p`, otherwise 0; `from` is as in [`Tensor::uniform_`]. Like `Tensor.bernoulli_`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::uniform_`], or if a probability is outside 0 to 1.
    #[track_caller]
    pub fn bernoulli_(&self, p: f64, from: impl Into<Option<RandomStream>>) -> Result<()> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument("bernoulli_", format!("a probability of {p}: needs 0 to 1")));
        }
        self.uniform_(0.0, 1.0, from)?;
        // 1 - r is above 0 and at most 1, so it is at most p with probability p, even if p is 0 or 1.
        unary::change(self, Affine { mul: -1.0, add: 1.0 - p })?;
        unary::change(self, NotPositive {})
    }

    fn draw(&self, name: &'static str, distribution: Distribution, from: Option<RandomStream>) -> Result<()> {
        let from = from.unwrap_or_else(|| self.device().next_random());
        self.overwrite(name, Source::Random(distribution, from))
    }

    fn overwrite(&self, name: &'static str, source: Source) -> Result<()> {
        call(Overwrite { name, source }, &[self]).map(drop)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let change = |op: Change, formula: fn(f64, f64) -> f64| {
        let values = move |ins: &[Vec<f64>]| {
            vec![ins[0].iter().enumerate().map(|(i, &y)| formula(y, ins[1][i % 4])).collect()]
        };
        Case::new(op.name(), &[&[3, 4], &[4]], move |ins| call(op, ins)).expect(values).without_derivative()
    };
    let fill = Overwrite { name: "fill", source: Source::Value(2.5) };
    vec![
        change(Change::Add { alpha: -0.5 }, |y, x| y - 0.5 * x),
        change(Change::Copy, |_, x| x),
        Case::new("fill", &[&[2, 3]], move |ins| call(fill, ins))
            .expect(|_| vec![vec![2.5; 6]])
            .without_derivative(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn an_in_place_change_reads_its_old_values_through_any_view() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &Device::cpu()).unwrap();
        x.add_(x.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 5.0, 5.0, 8.0]);
    }
}
