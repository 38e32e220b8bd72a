//! The QR factorization.

use smallvec::smallvec;

use super::matrices::{Batch, want_matrices};
use super::triangular::substitute;
use crate::cpu::kernels::linalg::{Triangle, qr as kernel, qr_scratch_len};
use crate::cpu::kernels::number::by_float;
use crate::dispatch::call;
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::scratch_bytes;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `a -> q, r`, reduced.
#[derive(Clone, Copy, Debug)]
struct Qr;

impl Kernel for Qr {
    fn name(&self) -> &'static str {
        "linalg_qr"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([a], [q, r]) = call.split();
        let Batch { count, rows, cols } = Batch::of(a.shape());
        by_float!(a.dtype(), T => {
            kernel::<T>(count, a.elements(), (rows, cols), (q.elements(), r.elements()), scratch);
        });
        Ok(())
    }
}

impl Operator for Qr {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a] = operands::inputs(self.name(), ins)?;
        want_matrices(self.name(), a)?;
        let Batch { rows, cols, .. } = Batch::of(a.shape());
        let lead = &a.shape()[..a.rank() - 2];
        let of = |size: [usize; 2]| Output::new(&[lead, &size].concat(), a.dtype);
        let k = rows.min(cols);
        Ok(smallvec![of([rows, k]), of([k, cols])])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let Batch { count, rows, cols } = Batch::of(ins[0].shape());
        let floats = by_float!(ins[0].dtype, T => qr_scratch_len::<T>(count, rows, cols));
        scratch_bytes(floats)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Batch { count, rows, cols } = Batch::of(ins[0].shape());
        Cost::streaming((4 * count * rows * cols * rows.min(cols)) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(0).and(Saves::output(1))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let (of_q, of_r) = (at.grad(0), at.grad(1));
        if of_q.is_none() && of_r.is_none() {
            return Ok(smallvec![None]);
        }
        let (q, r) = (at.output(0)?, at.output(1)?);
        let Batch { rows, cols, .. } = Batch::of(at.shape(0));
        if rows >= cols {
            return Ok(smallvec![Some(of_tall(&q, &r, of_q, of_r)?)]);
        }
        // `a = q [r₁ r₂]`, where `q r₁` is the factorization of the first columns, and `r₂ = qᵀ a₂`.
        let (r1, r2) = (r.narrow(-1, 0, rows)?, r.narrow(-1, rows, cols - rows)?);
        let Some(of_r) = of_r else {
            let first = of_tall(&q, &r1, of_q, None)?;
            return Ok(smallvec![Some(Tensor::cat(&[first, q.matmul(&r2)?.zeros_like()?], -1)?)]);
        };
        let (of_r1, of_r2) = (of_r.narrow(-1, 0, rows)?, of_r.narrow(-1, rows, cols - rows)?);
        let through_r2 = q.matmul(&r2)?.matmul(&of_r2.mt()?)?;
        let of_q = of_q.map_or(Ok(through_r2.clone()), |of_q| of_q.add(&through_r2))?;
        let first = of_tall(&q, &r1, Some(&of_q), Some(&of_r1))?;
        Ok(smallvec![Some(Tensor::cat(&[first, q.matmul(&of_r2)?], -1)?)])
    }
}

/// The gradient of a matrix with at least as many rows as columns: `(gq + q s) r⁻ᵀ`, where `s` is the upper triangle of `gr rᵀ - qᵀ gq`, made
/// symmetric.
#[track_caller]
fn of_tall(q: &Tensor, r: &Tensor, of_q: Option<&Tensor>, of_r: Option<&Tensor>) -> Result<Tensor> {
    let from_r = of_r.map(|of_r| of_r.matmul(&r.mt()?)).transpose()?;
    let from_q = of_q.map(|of_q| q.mt()?.matmul(of_q)).transpose()?;
    let full = match (from_r, from_q) {
        (Some(from_r), Some(from_q)) => from_r.sub(&from_q)?,
        (Some(from_r), None) => from_r,
        (None, Some(from_q)) => from_q.neg()?,
        (None, None) => unreachable!("one of them has a gradient"),
    };
    let symmetric = full.triu(0)?.add(&full.triu(1)?.mt()?)?;
    let within = q.matmul(&symmetric)?;
    let sum = of_q.map_or(Ok(within.clone()), |of_q| within.add(of_q))?;
    // From the right: `x rᵀ = sum` is `r xᵀ = sumᵀ`.
    substitute(r, &sum.mt()?, Triangle { upper: true, unit: false })?.mt()
}

/// `a = q r` of matrices `a` of shape `[…, m, n]`: the columns of `q`, `[…, m, k]`, are orthonormal, and `r`, `[…, k, n]`, is upper triangular,
/// where `k` is the smaller size. Like `torch.linalg.qr` with the mode `reduced`, with the same signs.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[3.0f32, 4.0], &[2, 1], &Device::cpu())?;
/// let (q, r) = linalg::qr(&a)?;
/// assert_eq!((q.shape(), r.to_vec::<f32>()?), (&[2, 1][..], vec![-5.0]));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the tensor has fewer than two dimensions, or is not `float32` or `float64`; if there is no kernel for the device; or if memory runs
/// out.
#[track_caller]
pub fn qr(a: impl AsRef<Tensor>) -> Result<(Tensor, Tensor)> {
    let mut outs = call(Qr, &[a.as_ref()])?.into_iter();
    let mut next = || outs.next().unwrap_or_else(|| unreachable!("it has two outputs"));
    Ok((next(), next()))
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |shape: &[usize]| {
        Case::new(format!("qr {shape:?}"), &[shape], |ins| {
            let x = ins[0];
            let (rows, cols) = (x.shape()[x.rank() - 2], x.shape()[x.rank() - 1]);
            let eye = Tensor::eye(rows, cols, x.device())?.to_dtype(x.dtype())?;
            let (q, r) = qr(x.mul_scalar(0.4)?.add(&eye.mul_scalar(2.0)?)?)?;
            Ok(smallvec![q, r])
        })
    };
    let only_r = Case::new("qr, r only", &[&[2, 3]], |ins| {
        Ok(smallvec![qr(ins[0].add(&Tensor::eye(2, 3, ins[0].device())?.to_dtype(ins[0].dtype())?)?)?.1])
    });
    vec![case(&[4, 2]), case(&[3, 3]), case(&[2, 2, 4]), case(&[3, 0]), case(&[0, 2]), only_r]
}
