//! Distances between all pairs of vectors of two sets: `cdist`.

use half::{bf16, f16};
use smallvec::smallvec;

use crate::cpu::kernels::distance::{Sets, distances, distances_backward};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::matmul::distance::Distances;
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims, Layout};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{want_float, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x, y -> distances`.
#[derive(Clone, Copy, Debug)]
struct Cdist {
    p: f64,
}

fn sets(x: &[usize], y: &[usize]) -> Sets {
    let [rows, width] = x[x.len() - 2..] else { unreachable!("inferred") };
    Sets { rows, columns: y[y.len() - 2], width }
}

/// The sizes in the form that a GPU's kernels take.
fn of_card(x: &[usize], y: &[usize], p: f64) -> Distances {
    let Sets { rows, columns, width } = sets(x, y);
    Distances { rows, columns, width, p }
}

impl Kernel for Cdist {
    fn name(&self) -> &'static str {
        "cdist"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        of_card(call.ins[0].shape(), call.ins[1].shape(), self.p).forward(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, y], [out]) = call.split();
        let sets = sets(x.shape(), y.shape());
        by_float!(out.dtype(), T => distances::<T>(sets, self.p, (x.elements(), y.elements()), out.elements()));
        Ok(())
    }
}

impl Operator for Cdist {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, y] = operands::inputs("cdist", ins)?;
        want_float("cdist", x.dtype)?;
        want_same("cdist", &[x, y])?;
        let (&[ref lead @ .., rows, width], &[ref other @ .., columns, also]) = (x.shape(), y.shape()) else {
            let message = format!("{:?} and {:?}: needs […, vectors, width]", x.shape(), y.shape());
            return Err(Error::shape("cdist", message));
        };
        if width != also || lead != other {
            let message = format!(
                "{:?} and {:?}: needs vectors of equal width, in equal batches",
                x.shape(),
                y.shape()
            );
            return Err(Error::shape("cdist", message));
        }
        let mut shape = Dims::from_slice(lead);
        shape.extend([rows, columns]);
        Ok(smallvec![Output::new(&shape, x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let width = ins[0].shape().last().copied().unwrap_or(1) as u64;
        Cost::streaming(3 * width * outs[0].layout.len() as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::input(1)).and(Saves::output(0))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let (x, y, distance) = (at.input(0)?, at.input(1)?, at.output(0)?);
        let side = |left: bool| {
            let (x, y) = if left { (&x, &y) } else { (&y, &x) };
            let op = CdistBackward { p: self.p, left, stored: distance.dtype() };
            call_one(op, &[grad, x, y, &distance])
        };
        Ok(smallvec![
            at.wants(0).then(|| side(true)).transpose()?,
            at.wants(1).then(|| side(false)).transpose()?
        ])
    }
}

/// `grad, x, y, distances -> grad of x`; `left` says which side of the pairs `x` is on. It has no derivative, as in
/// PyTorch.
#[derive(Clone, Copy, Debug)]
struct CdistBackward {
    p: f64,
    left: bool,
    /// The dtype that the distances were rounded to.
    stored: DType,
}

impl CdistBackward {
    /// Rounds a number to the precision in which the distances are stored.
    fn as_stored(&self, x: f64) -> f64 {
        match self.stored {
            DType::F16 => f16::from_f32(x as f32).to_f64(),
            DType::BF16 => bf16::from_f32(x as f32).to_f64(),
            _ => x,
        }
    }
}

impl Kernel for CdistBackward {
    fn name(&self) -> &'static str {
        "cdist_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        of_card(call.ins[1].shape(), call.ins[2].shape(), self.p).backward(call, self.left)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, x, y, distance], [out]) = call.split();
        let sets = sets(x.shape(), y.shape());
        by_float!(out.dtype(), T => {
            let (vectors, pairs) = ((x.elements::<T>(), y.elements()), (grad.elements(), distance.elements()));
            let stored = |x: f64| self.as_stored(x);
            match self.left {
                true => {
                    let by = |i, j| i * sets.columns + j;
                    distances_backward(sets, self.p, vectors, pairs, by, stored, out.elements());
                }
                false => {
                    let by = |i, j| j * sets.rows + i;
                    distances_backward(sets, self.p, vectors, pairs, by, stored, out.elements());
                }
            }
        });
        Ok(())
    }
}

impl Operator for CdistBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(ins[1].shape(), ins[1].dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn backward(&self, _: &Backward<'_>) -> Result<Grads> {
        let advice = "sum powers of `x.unsqueeze(-2) - y.unsqueeze(-3)` instead";
        Err(Error::autograd("cdist", format!("it has no second derivative, as in PyTorch: {advice}")))
    }
}

impl Tensor {
    /// The `p`-norm of the difference of each vector of this tensor, `[…, rows, width]`, and each vector of another, `[…,
    /// columns, width]`. Returns `[…, rows, columns]`; the batches are broadcast. The differences are never materialized. Like
    /// `torch.cdist`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[0.0f32, 0.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert_eq!(x.cdist(&Tensor::zeros(&[1, 2], &device)?, 2.0)?.to_vec::<f32>()?, [0.0, 5.0]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the vectors' widths differ, `p` is negative, the dtypes differ or are not floating-point, or memory runs out.
    #[track_caller]
    pub fn cdist(&self, other: impl AsRef<Tensor>, p: f64) -> Result<Tensor> {
        let other = other.as_ref();
        if p.is_nan() || p < 0.0 {
            return Err(Error::argument("cdist", format!("p is {p}: needs 0 or more")));
        }
        let lead = |x: &Tensor| x.shape()[..x.rank().saturating_sub(2)].to_vec();
        if self.rank() < 2 || other.rank() < 2 || lead(self) == lead(other) {
            return call_one(Cdist { p }, &[self, other]);
        }
        let batch = layout::broadcast("cdist", &lead(self), &lead(other))?;
        let wide = |x: &Tensor| x.expand(&[&batch[..], &x.shape()[x.rank() - 2..]].concat());
        call_one(Cdist { p }, &[&wide(self)?, &wide(other)?])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |p: f64, shapes: [&[usize]; 2]| {
        Case::new(format!("cdist {p} {shapes:?}"), &shapes, move |ins| call(Cdist { p }, ins))
    };
    let naive = |ins: &[Vec<f64>]| {
        let distance = |i: usize, j: usize| {
            (0..4).map(|k| (ins[0][i * 4 + k] - ins[1][j * 4 + k]).powi(2)).sum::<f64>().sqrt()
        };
        vec![(0..15).map(|at| distance(at / 5, at % 5)).collect()]
    };
    vec![
        case(2.0, [&[3, 4], &[5, 4]]).expect(naive),
        case(1.5, [&[2, 3, 4], &[2, 2, 4]]),
        case(3.0, [&[3, 4], &[1, 4]]),
        case(0.0, [&[3, 4], &[2, 4]]),
        case(1.0, [&[3, 4], &[2, 4]]),
        case(f64::INFINITY, [&[3, 4], &[2, 4]]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn the_largest_difference_has_the_gradient_in_16_bits_too() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            // 16 bits cannot hold the difference.
            let [x, y] = [[1000.0f32, 0.1], [0.3, 0.2]].map(|row| {
                let row = Tensor::from_slice(&row, &[1, 2], &Device::cpu()).unwrap();
                row.to_dtype(dtype).unwrap().requires_grad_(true).unwrap()
            });
            x.cdist(&y, f64::INFINITY).unwrap().sum().unwrap().backward().unwrap();
            let grad = |x: &Tensor| x.grad().unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            assert_eq!((grad(&x), grad(&y)), (vec![1.0, 0.0], vec![-1.0, 0.0]), "{dtype:?}");
        }
    }
}
