//! Determinants, by LU with partial pivoting.

use smallvec::smallvec;

use super::matrices::{Batch, want_square};
use super::solve::inv;
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::linalg::{Determinant, cofactors, determinants, lu_scratch_len};
use crate::cpu::kernels::number::by_float;
use crate::dispatch::{call, call_one};
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::scratch_bytes;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// The scratch memory of a factorization with `k` right-hand sides for each row.
fn scratch(a: Meta<'_>, k: usize) -> u64 {
    let Batch { count, rows, .. } = Batch::of(a.shape());
    let floats = by_float!(a.dtype, T => lu_scratch_len::<T>(count, rows, k * rows));
    scratch_bytes(floats)
}

fn cost(ins: &[Meta<'_>], outs: &[Meta<'_>], factor: u64) -> Cost {
    let Batch { count, rows, .. } = Batch::of(ins[0].shape());
    Cost::streaming(factor * (count * rows * rows * rows) as u64 * 2 / 3, ins, outs)
}

/// Reshapes one number per matrix so that it broadcasts over the matrices.
#[track_caller]
fn over_matrices(x: &Tensor) -> Result<Tensor> {
    x.unsqueeze(-1)?.unsqueeze(-1)
}

/// `a -> det`, or `a -> sign, log |det|`.
#[derive(Clone, Copy, Debug)]
struct Det(Determinant);

impl Kernel for Det {
    fn name(&self) -> &'static str {
        match self.0 {
            Determinant::Value => "linalg_det",
            Determinant::SignAndLog => "linalg_slogdet",
        }
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let [a] = call.ins[..] else { unreachable!("inferred") };
        let Batch { count, rows, .. } = Batch::of(a.shape());
        by_float!(a.dtype(), T => {
            let mut outs = call.outs.into_iter().map(|out| out.elements::<T>());
            let (out, logs) = (outs.next().unwrap_or_default(), outs.next().unwrap_or_default());
            determinants((self.0, count), a.elements(), rows, (out, logs), scratch);
        });
        Ok(())
    }
}

impl Operator for Det {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a] = operands::inputs(self.name(), ins)?;
        want_square(self.name(), a)?;
        let number = Output::new(&a.shape()[..a.rank() - 2], a.dtype);
        Ok(match self.0 {
            Determinant::Value => smallvec![number],
            Determinant::SignAndLog => smallvec![number.clone(), number],
        })
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        scratch(ins[0], 0)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        cost(ins, outs, 1)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0).only_if(self.0 == Determinant::Value))
    }

    fn has_gradient_kernel(&self) -> bool {
        self.0 == Determinant::Value
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let a = || at.input(0);
        // The sign does not change near a matrix.
        let grad = at.grad(if self.0 == Determinant::Value { 0 } else { 1 });
        let Some(grad) = grad else { return Ok(smallvec![None]) };
        let grad = over_matrices(grad)?;
        Ok(smallvec![Some(match self.0 {
            Determinant::SignAndLog => inv(a()?)?.mt()?.mul(&grad)?,
            Determinant::Value if is_grad_enabled() => {
                inv(a()?)?.mt()?.mul(&grad.mul(&over_matrices(&at.output(0)?)?)?)?
            }
            Determinant::Value => call_one(Cofactors, &[&a()?])?.mul(&grad)?,
        })])
    }
}

/// `a -> the derivatives of its determinant`. `Det` composes the second derivative from tensor operations.
#[derive(Clone, Copy, Debug)]
struct Cofactors;

impl Kernel for Cofactors {
    fn name(&self) -> &'static str {
        "linalg_det_backward"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([a], [out]) = call.split();
        let Batch { count, rows, .. } = Batch::of(a.shape());
        by_float!(a.dtype(), T => cofactors::<T>(count, a.elements(), rows, out.elements(), scratch));
        Ok(())
    }
}

impl Operator for Cofactors {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::new(a.shape(), a.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        scratch(ins[0], 1)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        cost(ins, outs, 4)
    }
}

/// The determinants of square matrices of shape `[…, n, n]`. The derivative at a singular matrix is finite; a second derivative needs a
/// matrix that is not singular. Like `torch.linalg.det`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &Device::cpu())?;
/// assert!((linalg::det(&a)?.item::<f32>()? + 2.0).abs() < 1e-6);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the matrices are not square, or not `float32` or `float64`; if there is no kernel for the device; or if memory runs out.
#[track_caller]
pub fn det(a: impl AsRef<Tensor>) -> Result<Tensor> {
    call_one(Det(Determinant::Value), &[a.as_ref()])
}

/// The signs of the determinants of square matrices of shape `[…, n, n]`, and the logarithms of their magnitudes. A singular matrix has a
/// sign of 0 and a logarithm of negative infinity, and no derivative. Like `torch.linalg.slogdet`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0], &[2, 2], &Device::cpu())?;
/// let (sign, log) = linalg::slogdet(&a)?;
/// assert_eq!([sign.item::<f32>()?, log.item::<f32>()?], [-1.0, 0.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`det`]. The backward pass fails for a singular matrix ([`Error::LinAlg`](crate::Error::LinAlg)).
#[track_caller]
pub fn slogdet(a: impl AsRef<Tensor>) -> Result<(Tensor, Tensor)> {
    let mut outs = call(Det(Determinant::SignAndLog), &[a.as_ref()])?.into_iter();
    let mut next = || outs.next().unwrap_or_else(|| unreachable!("it has two outputs"));
    Ok((next(), next()))
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let regular = |x: &Tensor| {
        let n = x.shape()[x.rank() - 1];
        let eye = Tensor::eye(n, n, x.device())?.to_dtype(x.dtype())?;
        x.mul_scalar(0.5)?.add(&eye.mul_scalar(1.5)?)
    };
    let naive = |ins: &[Vec<f64>]| {
        let det = |a: &[f64]| a[0] * a[3] - a[1] * a[2];
        vec![ins[0].chunks(4).map(det).collect()]
    };
    vec![
        Case::new("det", &[&[3, 2, 2]], |ins| Ok(smallvec![det(ins[0])?])).expect(naive),
        Case::new("det of 3", &[&[3, 3]], move |ins| Ok(smallvec![det(regular(ins[0])?)?])),
        Case::new("slogdet", &[&[2, 3, 3]], move |ins| Ok(smallvec![slogdet(regular(ins[0])?)?.1])),
        Case::new("det of nothing", &[&[0, 0]], |ins| Ok(smallvec![det(ins[0])?]))
            .expect(|_| vec![vec![1.0]]),
    ]
}
