//! Matrix products, batched and broadcast.

use smallvec::smallvec;

use super::short_products;
use crate::cpu::kernels::matmul::{MatmulShape, MatrixStrides, Product};
use crate::cpu::kernels::short_matmul::short_matmul;
use crate::cpu::kernels::strided::fill;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims, Layout};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{want_number, want_same};
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
        cuda::matmul::product::matmul(call)
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        short_products::cpu_type(dtype)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        match call.outs[0].dtype() {
            DType::I64 => products::<i64>(call),
            DType::F64 => products::<f64>(call),
            DType::F32 => products::<f32>(call),
            _ => of_shorts(call),
        }
        Ok(())
    }
}

fn products<T: Product>(call: CpuCall<'_>) {
    let ([a, b], [out]) = call.split();
    let plan = Plan::of([a.layout(), b.layout()], out.shape());
    let (a, b, out) = (a.elements(), b.elements(), out.elements());
    if plan.is_empty() {
        return fill(out, T::default());
    }
    plan.for_each(|shape, [a_at, b_at, to], [a_strides, b_strides]| {
        let len = shape.batch * shape.m * shape.n;
        let to = (&mut out[to..][..len], MatrixStrides::row_major(shape.m, shape.n));
        T::matmul(shape, (&a[a_at..], a_strides), (&b[b_at..], b_strides), None, to);
    });
}

fn of_shorts(mut call: CpuCall<'_>) {
    let (scratch, dtype) = (call.scratch(), call.outs[0].dtype());
    let ([a, b], [out]) = call.split();
    let plan = Plan::of([a.layout(), b.layout()], out.shape());
    let (a, b, out) = (a.bytes(), b.bytes(), out.bytes());
    if plan.is_empty() {
        return out.fill(0);
    }
    plan.for_each(|shape, [a_at, b_at, to], [a_strides, b_strides]| {
        let len = shape.batch * shape.m * shape.n;
        let (a, b) = ((&a[2 * a_at..], a_strides), (&b[2 * b_at..], b_strides));
        short_matmul(dtype, shape, a, b, None, &mut out[2 * to..][..2 * len], scratch, |_, _| {});
    });
}

/// The products that a call consists of: one over all matrices or, if the leading dimensions have no common stride, one for
/// each matrix.
struct Plan {
    shape: MatmulShape,
    layouts: [Layout; 2],
    lead: usize,
}

impl Plan {
    fn of([a, b]: [&Layout; 2], out: &[usize]) -> Plan {
        let lead = out.len() - 2;
        let (leading, [m, n]) = (&out[..lead], [out[lead], out[lead + 1]]);
        let k = a.shape()[a.rank() - 1];
        let shape = MatmulShape { batch: leading.iter().product(), m, k, n };
        Plan { shape, layouts: [with_lead(a, leading, m, k), with_lead(b, leading, k, n)], lead }
    }

    /// Whether the output or the sums are empty. An input without elements has no position at which a matrix could begin.
    fn is_empty(&self) -> bool {
        let MatmulShape { batch, m, k, n } = self.shape;
        batch * m * k * n == 0
    }

    /// Runs `product(shape, first elements of a, b and the output, strides of a and b)`.
    fn for_each(&self, mut product: impl FnMut(&MatmulShape, [usize; 3], [MatrixStrides; 2])) {
        let matrix = |layout: &Layout, batch: usize| MatrixStrides {
            batch,
            row: layout.strides()[self.lead],
            col: layout.strides()[self.lead + 1],
        };
        let [a, b] = &self.layouts;
        if let (Some(a_batch), Some(b_batch)) = (lead_stride(a, self.lead), lead_stride(b, self.lead)) {
            return product(&self.shape, [0; 3], [matrix(a, a_batch), matrix(b, b_batch)]);
        }
        let shape = MatmulShape { batch: 1, ..self.shape };
        for i in 0..self.shape.batch {
            let at = |layout: &Layout| {
                let mut index = i;
                (0..self.lead).rev().fold(0, |at, dim| {
                    let place = index % layout.shape()[dim];
                    index /= layout.shape()[dim];
                    at + place * layout.strides()[dim]
                })
            };
            product(&shape, [at(a), at(b), i * shape.m * shape.n], [matrix(a, 0), matrix(b, 0)]);
        }
    }
}

/// A stack of matrices broadcast to the output's leading dimensions.
fn with_lead(layout: &Layout, leading: &[usize], rows: usize, cols: usize) -> Layout {
    let shape: Dims = leading.iter().copied().chain([rows, cols]).collect();
    layout.expand(&shape).unwrap_or_else(|| unreachable!("{layout:?} does not broadcast to {shape:?}"))
}

/// The common stride between neighbouring matrices, if the leading dimensions have one.
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
        let [a, b] = operands::inputs("matmul", ins)?;
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

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let plan = Plan::of([ins[0].layout, ins[1].layout], outs[0].shape());
        if plan.is_empty() { 0 } else { short_products::scratch(&plan.shape, outs[0].dtype, device) }
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
    /// Matrix product over the last two dimensions. Leading dimensions broadcast; a vector is a row on the left and a column on
    /// the right. Like `torch.matmul`.
    ///
    /// # Errors
    /// If the inner sizes differ, the leading sizes do not broadcast, a tensor is a scalar, or memory runs out.
    #[track_caller]
    pub fn matmul(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        if self.rank() == 1 {
            return self.unsqueeze(0)?.matmul(other)?.squeeze(if other.rank() == 1 { 0 } else { -2 });
        }
        if other.rank() == 1 {
            return self.matmul(&other.unsqueeze(1)?)?.squeeze(-1);
        }
        call_one(Matmul, &[self, other])
    }
}

/// Cases for the conformance suite.
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
