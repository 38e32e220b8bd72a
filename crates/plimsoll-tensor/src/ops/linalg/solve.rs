//! Systems of equations and inverses, by LU with partial pivoting.

use smallvec::smallvec;

use super::matrices::{Batch, expanded, failed, want_right_sides, want_square};
use crate::cpu::kernels::linalg::{Failure, lu_scratch_len, solve as kernel};
use crate::cpu::kernels::number::by_float;
use crate::dispatch::call_one;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{scratch_bytes, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// The operations per element of a factorization and of its right-hand sides.
fn flops(count: usize, n: usize, k: usize) -> u64 {
    let (count, n, k) = (count as u64, n as u64, k as u64);
    count * (2 * n * n * n / 3 + 2 * n * n * k)
}

fn scratch(count: usize, n: usize, k: usize, of: Meta<'_>) -> u64 {
    let floats = by_float!(of.dtype, T => lu_scratch_len::<T>(count, n, k));
    scratch_bytes(floats)
}

fn singular(op: &'static str, shape: &[usize], failure: Failure) -> Error {
    let message = format!("the matrix is singular: pivot {} of its factorization is zero", failure.at);
    failed(op, shape, failure, message)
}

/// `a, b -> x` with `a x = b`.
#[derive(Clone, Copy, Debug)]
struct Solve;

impl Kernel for Solve {
    fn name(&self) -> &'static str {
        "linalg_solve"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([a, b], [x]) = call.split();
        let Batch { count, rows, cols } = Batch::of(b.shape());
        let done = by_float!(b.dtype(), T => {
            let x = x.elements::<T>();
            x.copy_from_slice(b.elements());
            kernel(count, a.elements(), (rows, cols), x, scratch)
        });
        done.map_err(|failure| singular(self.name(), a.shape(), failure))
    }
}

impl Operator for Solve {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = operands::inputs(self.name(), ins)?;
        want_same(self.name(), ins)?;
        want_right_sides(self.name(), a, b)?;
        Ok(smallvec![Output::new(b.shape(), b.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, _: &[Meta<'_>], outs: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let Batch { count, rows, cols } = Batch::of(outs[0].shape());
        scratch(count, rows, cols, outs[0])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Batch { count, rows, cols } = Batch::of(outs[0].shape());
        Cost::streaming(flops(count, rows, cols), ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let to_b = call_one(Solve, &[&at.input(0)?.mt()?, grad])?;
        let to_a = || to_b.matmul(&at.output(0)?.mt()?)?.neg();
        let to_a = at.wants(0).then(to_a).transpose()?;
        Ok(smallvec![to_a, at.wants(1).then_some(to_b)])
    }
}

/// `a -> a⁻¹`.
#[derive(Clone, Copy, Debug)]
struct Inverse;

impl Kernel for Inverse {
    fn name(&self) -> &'static str {
        "linalg_inv"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([a], [x]) = call.split();
        let Batch { count, rows: n, .. } = Batch::of(a.shape());
        let done = by_float!(a.dtype(), T => {
            let x = x.elements::<T>();
            x.fill(0.0);
            for x in x.chunks_exact_mut((n * n).max(1)) {
                x.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
            }
            kernel(count, a.elements(), (n, n), x, scratch)
        });
        done.map_err(|failure| singular(self.name(), a.shape(), failure))
    }
}

impl Operator for Inverse {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a] = operands::inputs(self.name(), ins)?;
        want_square(self.name(), a)?;
        Ok(smallvec![Output::new(a.shape(), a.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, _: &[Meta<'_>], outs: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let Batch { count, rows, .. } = Batch::of(outs[0].shape());
        scratch(count, rows, rows, outs[0])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Batch { count, rows, .. } = Batch::of(outs[0].shape());
        Cost::streaming(flops(count, rows, rows), ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(0)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let transposed = at.output(0)?.mt()?;
        Ok(smallvec![Some(transposed.matmul(grad)?.matmul(&transposed)?.neg()?)])
    }
}

/// Solves `a x = b` for square matrices `a` of shape `[…, n, n]`. `b` is `[…, n, k]`, or a vector `[n]`, or a batch of vectors whose shape
/// is that of `a` without the last dimension. `x` has the shape of `b`; batches are broadcast. Like `torch.linalg.solve`; for `x a = b`,
/// transpose `a`, `b` and `x`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[0.0f32, 2.0, 1.0, 1.0], &[2, 2], &Device::cpu())?;
/// let b = Tensor::from_slice(&[2.0f32, 4.0], &[2], &Device::cpu())?;
/// assert_eq!(linalg::solve(&a, &b)?.to_vec::<f32>()?, [3.0, 1.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If a matrix is singular ([`Error::LinAlg`]). If the shapes do not match; if the dtypes differ or are not `float32` or `float64`; if
/// there is no kernel for the device; or if memory runs out.
#[track_caller]
pub fn solve(a: impl AsRef<Tensor>, b: impl AsRef<Tensor>) -> Result<Tensor> {
    let (a, b) = (a.as_ref(), b.as_ref());
    let is_vector = b.rank() == 1 || a.rank() == b.rank() + 1 && a.shape().starts_with(b.shape());
    if is_vector {
        let (a, b) = expanded(Solve.name(), a, &b.unsqueeze(-1)?)?;
        return call_one(Solve, &[&a, &b])?.squeeze(-1);
    }
    let (a, b) = expanded(Solve.name(), a, b)?;
    call_one(Solve, &[&a, &b])
}

/// The inverses of square matrices of shape `[…, n, n]`. To multiply by an inverse, [`solve`] is faster and more
/// accurate. Like `torch.linalg.inv`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(linalg::inv(&a)?.to_vec::<f32>()?, [0.5, 0.0, 0.0, 0.25]);
/// let two = Tensor::stack(&[&a, &a.zeros_like()?], 0)?;
/// let error = linalg::inv(&two).unwrap_err().to_string();
/// assert!(error.starts_with("linalg_inv (batch element 1): the matrix is singular"));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If a matrix is singular ([`Error::LinAlg`]). If the matrices are not square, or not `float32` or `float64`; if there is no kernel for
/// the device; or if memory runs out.
#[track_caller]
pub fn inv(a: impl AsRef<Tensor>) -> Result<Tensor> {
    call_one(Inverse, &[a.as_ref()])
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    // Away from singular matrices.
    let regular = |x: &Tensor| {
        let n = x.shape()[x.rank() - 1];
        let eye = Tensor::eye(n, n, x.device())?.to_dtype(x.dtype())?;
        x.mul_scalar(0.5)?.add(&eye.mul_scalar(2.0)?)
    };
    let of_two = |shapes: &[&[usize]]| {
        Case::new(format!("solve {shapes:?}"), shapes, move |ins| {
            Ok(smallvec![solve(&regular(ins[0])?, ins[1])?])
        })
    };
    let of_one = |shape: &[usize]| {
        Case::new(format!("inv {shape:?}"), &[shape], move |ins| Ok(smallvec![inv(&regular(ins[0])?)?]))
    };
    vec![
        of_two(&[&[3, 3], &[3, 2]]),
        of_two(&[&[2, 2, 2], &[2, 2]]),
        of_two(&[&[2, 2], &[3, 2, 1]]),
        of_two(&[&[0, 0], &[0, 2]]),
        of_one(&[3, 3]),
        of_one(&[2, 2, 2]),
    ]
}
