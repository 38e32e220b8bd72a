//! The Cholesky factorization.

use smallvec::smallvec;

use super::matrices::{Batch, failed, want_square};
use super::triangular::substitute;
use crate::cpu::kernels::linalg::{Triangle, cholesky as kernel, cholesky_scratch_len};
use crate::cpu::kernels::number::by_float;
use crate::dispatch::call_one;
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::scratch_bytes;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `a -> l` with `a = l lᵀ`. Only the lower triangle is read.
#[derive(Clone, Copy, Debug)]
struct Cholesky;

impl Kernel for Cholesky {
    fn name(&self) -> &'static str {
        "linalg_cholesky"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([a], [l]) = call.split();
        let Batch { count, rows, .. } = Batch::of(a.shape());
        let done = by_float!(a.dtype(), T => kernel::<T>(count, a.elements(), rows, l.elements(), scratch));
        done.map_err(|failure| {
            let message = format!(
                "the matrix is not positive-definite: its leading minor of order {} is not",
                failure.at + 1
            );
            failed(self.name(), a.shape(), failure, message)
        })
    }
}

impl Operator for Cholesky {
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
        let floats = by_float!(outs[0].dtype, T => cholesky_scratch_len::<T>(count, rows));
        scratch_bytes(floats)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Batch { count, rows, .. } = Batch::of(outs[0].shape());
        Cost::streaming((count * rows * rows * rows / 3) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(0)
    }

    /// `l⁻ᵀ φ(lᵀ grad) l⁻¹`, where `φ` takes the lower triangle and half of the diagonal, made symmetric.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let l = at.output(0)?;
        let upper = Triangle { upper: true, unit: false };
        let lower = l.mt()?.matmul(grad)?.tril(0)?;
        let symmetric = lower.add(&lower.tril(-1)?.mt()?)?.mul_scalar(0.5)?;
        let half = substitute(&l.mt()?, &symmetric, upper)?;
        // From the right: `x l = half` is `lᵀ xᵀ = halfᵀ`.
        Ok(smallvec![Some(substitute(&l.mt()?, &half.mt()?, upper)?.mt()?)])
    }
}

/// The Cholesky factors of symmetric positive-definite matrices `a` of shape `[…, n, n]`: the lower triangular `l` with `a = l lᵀ`; only
/// the lower triangle of `a` is read. With `upper`, the upper triangular `u` with `a = uᵀ u`, from the upper triangle. Like `torch.linalg.cholesky`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 10.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(linalg::cholesky(&a, false)?.to_vec::<f32>()?, [2.0, 0.0, 1.0, 3.0]);
/// let error = linalg::cholesky(&a.neg()?, false).unwrap_err();
/// assert!(error.to_string().contains("not positive-definite"));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If a matrix is not positive-definite, or contains NaN ([`Error::LinAlg`](crate::Error::LinAlg)). If the matrices are not
/// square, or not `float32` or `float64`; if there is no kernel for the device; or if memory runs out.
#[track_caller]
pub fn cholesky(a: impl AsRef<Tensor>, upper: bool) -> Result<Tensor> {
    let a = a.as_ref();
    if !upper || a.rank() < 2 {
        return call_one(Cholesky, &[a]);
    }
    call_one(Cholesky, &[&a.mt()?])?.mt()
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |upper: bool, shape: &[usize]| {
        Case::new(format!("cholesky {upper} {shape:?}"), &[shape], move |ins| {
            let x = ins[0];
            let n = x.shape()[x.rank() - 1];
            let eye = Tensor::eye(n, n, x.device())?.to_dtype(x.dtype())?;
            Ok(smallvec![cholesky(&x.matmul(&x.mt()?)?.add(&eye.mul_scalar(2.0)?)?, upper)?])
        })
    };
    vec![case(false, &[3, 3]), case(true, &[2, 2, 2]), case(false, &[0, 0]), case(false, &[1, 1])]
}
