//! Systems of equations with a triangular matrix: `solve_triangular`.

use smallvec::smallvec;

use super::matrices::{Batch, expanded, want_right_sides};
use crate::cpu::kernels::linalg::{Triangle, solve_triangular as kernel, triangular_scratch_len};
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

/// `a, b -> x` with `a x = b`, of which only one triangle of `a` is read.
#[derive(Clone, Copy, Debug)]
struct SolveTriangular(Triangle);

impl Kernel for SolveTriangular {
    fn name(&self) -> &'static str {
        "linalg_solve_triangular"
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([a, b], [x]) = call.split();
        let Batch { count, rows, cols } = Batch::of(b.shape());
        by_float!(b.dtype(), T => {
            let x = x.elements::<T>();
            x.copy_from_slice(b.elements());
            kernel(count, (a.elements(), self.0), (rows, cols), x, scratch);
        });
        Ok(())
    }
}

impl Operator for SolveTriangular {
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
        let floats = by_float!(outs[0].dtype, T => triangular_scratch_len::<T>(count, rows, cols));
        scratch_bytes(floats)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let Batch { count, rows, cols } = Batch::of(outs[0].shape());
        Cost::streaming((count * rows * rows * cols) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let Triangle { upper, unit } = self.0;
        let to_b = substitute(&at.input(0)?.mt()?, grad, Triangle { upper: !upper, unit })?;
        let to_a = || {
            let full = to_b.matmul(&at.output(0)?.mt()?)?.neg()?;
            let beside = isize::from(unit);
            if upper { full.triu(beside) } else { full.tril(-beside) }
        };
        let to_a = at.wants(0).then(to_a).transpose()?;
        Ok(smallvec![to_a, at.wants(1).then_some(to_b)])
    }
}

/// Solves `a x = b`; both are batches of the same size.
#[track_caller]
pub(super) fn substitute(a: &Tensor, b: &Tensor, triangle: Triangle) -> Result<Tensor> {
    call_one(SolveTriangular(triangle), &[a, b])
}

/// The options of [`solve_triangular`]. By default the matrix is a lower triangle on the left side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriangularOptions {
    /// Reads the upper triangle instead of the lower one.
    pub upper: bool,
    /// Solves `a x = b`; otherwise `x a = b`.
    pub left: bool,
    /// Assumes that the diagonal is 1, and does not read it.
    pub unitriangular: bool,
}

impl Default for TriangularOptions {
    fn default() -> TriangularOptions {
        TriangularOptions { upper: false, left: true, unitriangular: false }
    }
}

/// Solves `a x = b`, or `x a = b`, for triangular matrices `a` of shape `[…, n, n]`. Elements outside the triangle are not read. `b` is
/// `[…, n, k]` (`[…, k, n]` on the other side), and `x` has its shape; batches are broadcast. A zero on the diagonal leads to infinities.
/// Like `torch.linalg.solve_triangular`.
///
/// ```
/// use plimsoll_tensor::linalg::{TriangularOptions, solve_triangular};
/// use plimsoll_tensor::{Device, Tensor};
/// let a = Tensor::from_slice(&[2.0f32, 9.0, 1.0, 4.0], &[2, 2], &Device::cpu())?;
/// let b = Tensor::from_slice(&[2.0f32, 9.0], &[2, 1], &Device::cpu())?;
/// assert_eq!(solve_triangular(&a, &b, TriangularOptions::default())?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the shapes do not match; if the dtypes differ or are not `float32` or `float64`; if there is no kernel for the device; or if memory
/// runs out.
#[track_caller]
pub fn solve_triangular(
    a: impl AsRef<Tensor>,
    b: impl AsRef<Tensor>,
    options: TriangularOptions,
) -> Result<Tensor> {
    let (a, b) = expanded("linalg_solve_triangular", a.as_ref(), b.as_ref())?;
    let TriangularOptions { upper, left, unitriangular: unit } = options;
    if left {
        return substitute(&a, &b, Triangle { upper, unit });
    }
    if a.shape().last() != b.shape().last() {
        let message = format!("{:?} times {:?}: the columns differ", b.shape(), a.shape());
        return Err(Error::shape("linalg_solve_triangular", message));
    }
    substitute(&a.mt()?, &b.mt()?, Triangle { upper: !upper, unit })?.mt()
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |upper: bool, unit: bool, shapes: &[&[usize]]| {
        let triangle = Triangle { upper, unit };
        Case::new(format!("{triangle:?} {shapes:?}"), shapes, move |ins| {
            // Away from singular matrices.
            let a = ins[0].affine(0.4, 0.0)?.add(&Tensor::eye(3, 3, ins[0].device())?.affine(2.0, 0.0)?)?;
            let a = if ins[1].dtype() == a.dtype() { a } else { a.to_dtype(ins[1].dtype())? };
            Ok(smallvec![substitute(&a, ins[1], triangle)?])
        })
    };
    let left = TriangularOptions { left: false, ..TriangularOptions::default() };
    let other_side = Case::new("solve_triangular, right", &[&[2, 2], &[3, 2]], move |ins| {
        let a = ins[0].affine(0.4, 0.0)?.add(&Tensor::eye(2, 2, ins[0].device())?.affine(2.0, 0.0)?)?;
        let a = a.to_dtype(ins[1].dtype())?;
        Ok(smallvec![solve_triangular(&a, ins[1], left)?])
    });
    vec![
        case(false, false, &[&[2, 3, 3], &[2, 3, 2]]),
        case(true, false, &[&[3, 3], &[3, 1]]),
        case(true, true, &[&[3, 3], &[3, 2]]),
        case(false, true, &[&[3, 3], &[3, 0]]),
        other_side,
    ]
}
