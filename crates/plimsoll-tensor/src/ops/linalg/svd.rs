//! The singular value decomposition.

use smallvec::smallvec;

use super::matrices::{Batch, failed, want_matrices};
use crate::autograd::is_grad_enabled;
use crate::caller::Entry;
use crate::cpu::kernels::linalg::{Vectors, svd as kernel, svd_scratch_len};
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

/// `a -> s[, u, vᵀ]`, reduced.
#[derive(Clone, Copy, Debug)]
struct Svd(Vectors);

impl Kernel for Svd {
    fn name(&self) -> &'static str {
        match self.0 {
            Vectors::Both => "linalg_svd",
            Vectors::Omitted => "linalg_svdvals",
        }
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let [a] = call.ins[..] else { unreachable!("inferred") };
        let Batch { count, rows, cols } = Batch::of(a.shape());
        let done = by_float!(a.dtype(), T => {
            let mut outs = call.outs.into_iter().map(|out| out.elements::<T>());
            let mut next = || outs.next().unwrap_or_default();
            let (s, u, vt) = (next(), next(), next());
            kernel((count, self.0), a.elements(), (rows, cols), (u, s, vt), scratch)
        });
        done.map_err(|failure| {
            let message = "the algorithm did not converge: the matrix has an infinite element or a NaN";
            failed(self.name(), a.shape(), failure, message.to_owned())
        })
    }
}

impl Operator for Svd {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a] = operands::inputs(self.name(), ins)?;
        want_matrices(self.name(), a)?;
        let Batch { rows, cols, .. } = Batch::of(a.shape());
        let lead = &a.shape()[..a.rank() - 2];
        let of = |size: &[usize]| Output::new(&[lead, size].concat(), a.dtype);
        let k = rows.min(cols);
        Ok(match self.0 {
            Vectors::Omitted => smallvec![of(&[k])],
            Vectors::Both => smallvec![of(&[k]), of(&[rows, k]), of(&[k, cols])],
        })
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let Batch { count, rows, cols } = Batch::of(ins[0].shape());
        scratch_bytes(svd_scratch_len(count, rows, cols, self.0))
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Batch { count, rows, cols } = Batch::of(ins[0].shape());
        let factor = if self.0 == Vectors::Both { 14 } else { 4 };
        Cost::streaming((factor * count * rows * cols * rows.min(cols)) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(0).and(Saves::output(1)).and(Saves::output(2)).only_if(self.0 == Vectors::Both)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let (of_s, of_u, of_vt) = (at.grad(0), at.grad(1), at.grad(2));
        if of_s.is_none() && of_u.is_none() && of_vt.is_none() {
            return Ok(smallvec![None]);
        }
        let (s, u, vt) = (at.output(0)?, at.output(1)?, at.output(2)?);
        Ok(smallvec![Some(match (of_s, of_u, of_vt) {
            (Some(of_s), None, None) => u.mul(&of_s.unsqueeze(-2)?)?.matmul(&vt)?,
            (of_s, of_u, of_vt) => of_vectors((&s, &u, &vt), of_s, of_u, of_vt)?,
        })])
    }
}

/// The gradient, if singular vectors have gradients. Like PyTorch's `svd_backward`.
#[track_caller]
fn of_vectors(
    (s, u, vt): (&Tensor, &Tensor, &Tensor),
    of_s: Option<&Tensor>,
    of_u: Option<&Tensor>,
    of_vt: Option<&Tensor>,
) -> Result<Tensor> {
    let (row, column) = (s.unsqueeze(-2)?, s.unsqueeze(-1)?);
    let (m, k, n) = (u.shape()[u.rank() - 2], s.shape()[s.rank() - 1], vt.shape()[vt.rank() - 1]);
    // The differences of squared singular values, with ones on the diagonal.
    let ones = Tensor::eye(k, k, s.device())?.to_dtype(s.dtype())?;
    let gaps = row.square()?.sub(&column.square()?)?.add(&ones)?;
    let mut inner: Option<Tensor> = None;
    let mut add = |part: Tensor| -> Result<()> {
        inner = Some(match inner.take() {
            None => part,
            Some(sum) => sum.add(&part)?,
        });
        Ok(())
    };
    if let Some(of_u) = of_u {
        let product = u.mt()?.matmul(of_u)?;
        add(product.sub(&product.mt()?)?.div(&gaps)?.mul(&row)?)?;
    }
    if let Some(of_vt) = of_vt {
        let product = vt.matmul(&of_vt.mt()?)?;
        add(product.sub(&product.mt()?)?.div(&gaps)?.mul(&column)?)?;
    }
    if let Some(of_s) = of_s {
        add(of_s.unsqueeze(-1)?.mul(&ones)?)?;
    }
    let Some(inner) = inner else { unreachable!("one of them has a gradient") };
    let (mut left, mut right) = (u.matmul(&inner)?, None);
    if let Some(of_u) = of_u.filter(|_| m > k) {
        // The part that `u` does not span.
        let scaled = of_u.div(&row)?;
        left = left.add(&scaled.sub(&u.matmul(&u.mt()?.matmul(&scaled)?)?)?)?;
    }
    if let Some(of_vt) = of_vt.filter(|_| n > k) {
        let scaled = of_vt.div(&column)?;
        right = Some(u.matmul(&scaled.sub(&scaled.matmul(&vt.mt()?)?.matmul(vt)?)?)?);
    }
    let through = left.matmul(vt)?;
    right.map_or(Ok(through.clone()), |right| through.add(&right))
}

/// `a = u · diag(s) · vᵀ` of matrices `a` of shape `[…, m, n]`: returns `u`, `[…, m, k]`, `s`, `[…, k]`, in descending order, and `vᵀ`, `[…, k, n]`,
/// where `k` is the smaller size. Like `torch.linalg.svd` with `full_matrices=False`.
///
/// The signs of singular vectors are arbitrary, so only functions that do not depend on them have a meaningful derivative. The derivative
/// through the vectors is infinite if two singular values are equal, and through `s` alone it is always finite.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[0.0f32, 2.0, 0.0, 0.0, 0.0, -3.0], &[2, 3], &Device::cpu())?;
/// let (u, s, vt) = linalg::svd(&a)?;
/// assert_eq!((u.shape(), vt.shape()), (&[2, 2][..], &[2, 3][..]));
/// assert!(u.mul(&s)?.matmul(&vt)?.allclose(&a, Default::default())?);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If a matrix has an infinite element or a NaN ([`Error::LinAlg`](crate::Error::LinAlg)). If the tensor has fewer than two dimensions, or is
/// not `float32` or `float64`; if there is no kernel for the device; or if memory runs out.
#[track_caller]
pub fn svd(a: impl AsRef<Tensor>) -> Result<(Tensor, Tensor, Tensor)> {
    let mut outs = call(Svd(Vectors::Both), &[a.as_ref()])?.into_iter();
    let mut next = || outs.next().unwrap_or_else(|| unreachable!("it has three outputs"));
    let (s, u, vt) = (next(), next(), next());
    Ok((u, s, vt))
}

/// The singular values of matrices of shape `[…, m, n]`, in descending order. If a derivative may be needed, the singular vectors are computed
/// and kept too. Like `torch.linalg.svdvals`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let a = Tensor::from_slice(&[0.0f64, 2.0, 3.0, 0.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(linalg::svdvals(&a)?.to_vec::<f64>()?, [3.0, 2.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`svd`].
#[track_caller]
pub fn svdvals(a: impl AsRef<Tensor>) -> Result<Tensor> {
    let a = a.as_ref();
    let vectors = if is_grad_enabled() && a.requires_grad() { Vectors::Both } else { Vectors::Omitted };
    Ok(call(Svd(vectors), &[a])?.remove(0))
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    // Far from equal singular values.
    let apart = |x: &Tensor| {
        let _entry = Entry::here();
        let (rows, cols) = (x.shape()[x.rank() - 2], x.shape()[x.rank() - 1]);
        let scale = Tensor::linspace(1.0, 4.0, cols, x.device())?;
        let diagonal = Tensor::eye(rows, cols, x.device())?.mul(&scale)?.to_dtype(x.dtype())?;
        x.mul_scalar(0.2)?.add(&diagonal)
    };
    let values = |shape: &[usize]| {
        Case::new(format!("svdvals {shape:?}"), &[shape], move |ins| Ok(smallvec![svdvals(apart(ins[0])?)?]))
    };
    // Products in which the signs of the vectors cancel.
    let vectors = |shape: &[usize]| {
        Case::new(format!("svd {shape:?}"), &[shape], move |ins| {
            let (u, s, vt) = svd(apart(ins[0])?)?;
            Ok(smallvec![u.matmul(&vt)?, u.square()?, vt.square()?.mul(&s.unsqueeze(-1)?)?])
        })
    };
    vec![
        values(&[4, 2]),
        values(&[2, 2, 3]),
        values(&[0, 3]),
        values(&[1, 1]),
        vectors(&[3, 3]),
        vectors(&[4, 2]),
        vectors(&[2, 3]),
    ]
}
