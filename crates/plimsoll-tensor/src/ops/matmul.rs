//! Matrix products, batched and broadcast.

use smallvec::smallvec;

use super::elementwise;
use super::{want_number, want_same};
use crate::cpu::kernels::matmul::{MatmulShape, MatrixStrides, Product};
use crate::cpu::kernels::strided::fill;
use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims, Layout};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `a, b -> out`: over the last two dimensions; the leading ones broadcast.
#[derive(Clone, Copy, Debug)]
struct Matmul;

impl Kernel for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::product::matmul(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        match call.outs[0].dtype() {
            DType::I64 => products::<i64>(call),
            DType::F64 => products::<f64>(call),
            _ => products::<f32>(call),
        }
        Ok(())
    }
}

/// Where the leading dimensions do not have one common stride, the products are made one by one.
fn products<T: Product>(call: CpuCall<'_>) {
    let ([a, b], [out]) = call.split();
    let lead = out.shape().len() - 2;
    let (leading, [m, n]) = (&out.shape()[..lead], [out.shape()[lead], out.shape()[lead + 1]]);
    let k = a.shape()[a.shape().len() - 1];
    if k == 0 || out.layout().is_empty() {
        // Sums of nothing, or no sums: an input without elements has no place to begin a matrix at.
        return fill(out.elements(), T::default());
    }
    let (a_layout, b_layout) = (with_lead(a.layout(), leading, m, k), with_lead(b.layout(), leading, k, n));
    let matrix = |layout: &Layout, batch: usize| MatrixStrides {
        batch,
        row: layout.strides()[lead],
        col: layout.strides()[lead + 1],
    };
    let (a, b, out) = (a.elements(), b.elements(), out.elements());
    let shape = MatmulShape { batch: 1, m, k, n };
    let c_strides = MatrixStrides::row_major(m, n);
    let batch: usize = leading.iter().product();
    if let (Some(a_batch), Some(b_batch)) = (lead_stride(&a_layout, lead), lead_stride(&b_layout, lead)) {
        let shape = MatmulShape { batch, ..shape };
        let (a, b) = ((a, matrix(&a_layout, a_batch)), (b, matrix(&b_layout, b_batch)));
        return T::matmul(&shape, a, b, None, (out, c_strides));
    }
    let at = |layout: &Layout, mut index: usize| {
        (0..lead).rev().fold(0, |at, dim| {
            let place = index % leading[dim];
            index /= leading[dim];
            at + place * layout.strides()[dim]
        })
    };
    for i in 0..batch {
        let a = (&a[at(&a_layout, i)..], matrix(&a_layout, 0));
        let b = (&b[at(&b_layout, i)..], matrix(&b_layout, 0));
        T::matmul(&shape, a, b, None, (&mut out[i * m * n..][..m * n], c_strides));
    }
}

/// A stack of matrices broadcast to the output's leading dimensions.
fn with_lead(layout: &Layout, leading: &[usize], rows: usize, cols: usize) -> Layout {
    let shape: Dims = leading.iter().copied().chain([rows, cols]).collect();
    layout.expand(&shape).unwrap_or_else(|| unreachable!("{layout:?} does not broadcast to {shape:?}"))
}

/// The one distance between neighbouring matrices, where the leading dimensions have one.
fn lead_stride(layout: &Layout, lead: usize) -> Option<usize> {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut dims = (0..lead).rev().filter(|&dim| shape[dim] != 1);
    let Some(last) = dims.next() else { return Some(0) };
    let stride = strides[last];
    let mut span = stride * shape[last];
    dims.all(|dim| {
        let fits = strides[dim] == span;
        span *= shape[dim];
        fits
    })
    .then_some(stride)
}

impl Operator for Matmul {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = elementwise::inputs("matmul", ins)?;
        want_number("matmul", a.dtype)?;
        want_same("matmul", ins)?;
        let misfit = || Error::shape("matmul", format!("{:?} times {:?}", a.shape(), b.shape()));
        let ([a_lead @ .., m, k], [b_lead @ .., k2, n]) = (a.shape(), b.shape()) else {
            return Err(misfit());
        };
        if k != k2 {
            return Err(misfit());
        }
        let mut shape = layout::broadcast("matmul", a_lead, b_lead)?;
        shape.extend([*m, *n]);
        Ok(smallvec![Output::new(&shape, a.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let k = ins[0].shape().last().copied().unwrap_or(1);
        Cost::streaming(2 * (outs[0].layout.len() * k) as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).only_if(wanted[1]).and(Saves::input(1).only_if(wanted[0]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let to_a = || grad.matmul(&at.input(1)?.transpose(-1, -2)?)?.sum_to(at.shape(0));
        let to_b = || at.input(0)?.transpose(-1, -2)?.matmul(grad)?.sum_to(at.shape(1));
        Ok(smallvec![at.wants(0).then(to_a).transpose()?, at.wants(1).then(to_b).transpose()?])
    }
}

impl Tensor {
    /// Matrix product over the last two dimensions; leading ones broadcast, a vector is a row on the left
    /// and a column on the right. As `torch.matmul`.
    ///
    /// # Errors
    /// Inner sizes that differ, leading sizes that do not broadcast, a scalar; out of memory.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() == 1 {
            return self.unsqueeze(0)?.matmul(other)?.squeeze(if other.rank() == 1 { 0 } else { -2 });
        }
        if other.rank() == 1 {
            return self.matmul(&other.unsqueeze(1)?)?.squeeze(-1);
        }
        call_one(Matmul, &[self, other])
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |[batch, m, k, n]: [usize; 4], repeats: bool| {
        move |ins: &[Vec<f64>]| {
            let at = |i: usize, row: usize, col: usize| -> f64 {
                let b = if repeats { 0 } else { i * k * n };
                (0..k).map(|j| ins[0][(i * m + row) * k + j] * ins[1][b + j * n + col]).sum()
            };
            let all =
                (0..batch).flat_map(|i| (0..m).flat_map(move |row| (0..n).map(move |col| (i, row, col))));
            vec![all.map(|(i, row, col)| at(i, row, col)).collect()]
        }
    };
    let case = |shapes: &[&[usize]]| Case::new(format!("matmul {shapes:?}"), shapes, |ins| call(Matmul, ins));
    vec![
        case(&[&[3, 4], &[4, 5]]).expect(naive([1, 3, 4, 5], false)),
        case(&[&[2, 3, 4], &[2, 4, 2]]).expect(naive([2, 3, 4, 2], false)),
        case(&[&[2, 3, 4], &[4, 2]]).expect(naive([2, 3, 4, 2], true)),
        case(&[&[2, 1, 2, 3], &[3, 3, 2]]),
        case(&[&[3, 0], &[0, 2]]).expect(|_| vec![vec![0.0; 6]]),
    ]
}
