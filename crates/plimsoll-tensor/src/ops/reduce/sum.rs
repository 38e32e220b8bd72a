//! Sums and means over any set of dimensions.

use smallvec::{SmallVec, smallvec};

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::reduce;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Dims;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, want_float};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// Whether a reduced dimension is kept with size 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduced {
    Dropped,
    Kept,
}

/// `x -> out`: the sum over the marked dimensions, times `scale`.
#[derive(Clone, Debug)]
struct SumOver {
    name: &'static str,
    /// One flag for each dimension of the input.
    marks: SmallVec<[bool; 6]>,
    reduced: Reduced,
    /// 1 for a sum, `1 / count` for a mean.
    scale: f64,
}

impl Kernel for SumOver {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, out) = (call.ins[0], call.outs[0]);
        cuda::reduce::sum(call, x, out, &self.marks, self.scale)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        if out.dtype() == DType::I64 {
            reduce::sum_whole(x.shape(), x.elements(), x.strides(), &self.marks, out.elements());
            return Ok(());
        }
        by_float!(out.dtype(), T => {
            let out = out.elements::<T>();
            reduce::sum(x.shape(), x.elements(), x.strides(), &self.marks, out);
            if self.scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.scale as T);
            }
        });
        Ok(())
    }
}

/// The shape with reduced dimensions of size 1.
fn kept(shape: &[usize], marks: &[bool]) -> Dims {
    shape.iter().zip(marks).map(|(&n, &mark)| if mark { 1 } else { n }).collect()
}

impl Operator for SumOver {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name, ins)?;
        // Integers and `bool` are summed in `int64`; their mean would not be an integer.
        let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
        if self.name == "mean" {
            want_float(self.name, x.dtype)?;
        }
        let shape: Dims = match self.reduced {
            Reduced::Kept => kept(x.shape(), &self.marks),
            Reduced::Dropped => {
                x.shape().iter().zip(&self.marks).filter(|&(_, &mark)| !mark).map(|(&n, _)| n).collect()
            }
        };
        Ok(smallvec![Output::new(&shape, dtype)])
    }

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let results = outs[0].layout.len();
        match device.kind {
            DeviceKind::Cuda if results > 0 => {
                cuda::reduce::sum_scratch(results, ins[0].layout.len() / results, outs[0].dtype)
            }
            _ => 0,
        }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let grad = if self.scale == 1.0 { grad.clone() } else { grad.mul_scalar(self.scale)? };
        let kept = kept(at.shape(0), &self.marks);
        Ok(smallvec![Some(grad.reshape(kept.as_slice())?.expand(at.shape(0))?)])
    }
}

/// The sum of the rows of a gradient: the attached one, or computed now.
#[track_caller]
pub(in crate::ops) fn sum_of_rows(grad: &Tensor) -> Result<Tensor> {
    match grad.take_row_sum() {
        Some(sum) => Ok(sum),
        None if grad.rank() < 2 => Ok(grad.clone()),
        None => grad.sum_dims(&(0..grad.rank() as isize - 1).collect::<Vec<_>>()),
    }
}

impl Tensor {
    /// The sum of all elements, a scalar. Integers and `bool` give `int64`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn sum(&self) -> Result<Tensor> {
        self.reduce("sum", None, Reduced::Dropped)
    }

    /// The sums over some dimensions, which are removed; over all if the list is empty. Like `torch.sum(dim=…)`.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn sum_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("sum", Some(dims), Reduced::Dropped)
    }

    /// The sums over some dimensions, which are kept with size 1; over all if the list is empty. Like `torch.sum(dim=…,
    /// keepdim=True)`.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn sum_keepdim(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("sum", Some(dims), Reduced::Kept)
    }

    /// The mean of all elements, a scalar; NaN if there are none.
    ///
    /// # Errors
    /// If the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn mean(&self) -> Result<Tensor> {
        self.reduce("mean", None, Reduced::Dropped)
    }

    /// The means over some dimensions, which are removed; over all if the list is empty. Like `torch.mean(dim=…)`.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn mean_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("mean", Some(dims), Reduced::Dropped)
    }

    /// The means over some dimensions, which are kept with size 1; over all if the list is empty.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn mean_keepdim(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("mean", Some(dims), Reduced::Kept)
    }

    /// `None` means all dimensions.
    #[track_caller]
    fn reduce(&self, name: &'static str, dims: Option<&[isize]>, reduced: Reduced) -> Result<Tensor> {
        let named = dims.unwrap_or_default();
        let mut marks: SmallVec<[bool; 6]> = SmallVec::from_elem(named.is_empty(), self.rank());
        // A scalar counts as having a dimension 0 here, as in PyTorch.
        for &dim in named.iter().filter(|&&dim| self.rank() > 0 || !(-1..=0).contains(&dim)) {
            let dim = dim_index(name, dim, self.rank())?;
            if marks[dim] {
                let message = format!("dimension {dim} is named twice in {named:?}");
                return Err(Error::shape(name, message));
            }
            marks[dim] = true;
        }
        let count: usize =
            self.shape().iter().zip(&marks).filter(|&(_, &mark)| mark).map(|(&n, _)| n).product();
        let scale = if name == "mean" { 1.0 / count as f64 } else { 1.0 };
        call_one(SumOver { name, marks, reduced, scale }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let op = |name, marks: [bool; 3], reduced, scale| SumOver {
        name,
        marks: marks.as_slice().into(),
        reduced,
        scale,
    };
    let outer = op("sum", [true, false, true], Reduced::Dropped, 1.0);
    let inner = op("mean", [false, true, false], Reduced::Kept, 1.0 / 3.0);
    let all = op("sum", [true; 3], Reduced::Dropped, 1.0);
    // For the shape [2, 3, 4]: the middle dimension is kept; or it is reduced.
    let middle = |ins: &[Vec<f64>]| {
        let at = |j: usize| (0..8).map(|i| ins[0][i / 4 * 12 + j * 4 + i % 4]).sum::<f64>();
        vec![(0..3).map(at).collect()]
    };
    let mean = |ins: &[Vec<f64>]| {
        let at = |i: usize| (0..3).map(|j| ins[0][i / 4 * 12 + j * 4 + i % 4]).sum::<f64>() / 3.0;
        vec![(0..8).map(at).collect()]
    };
    let case = |op: SumOver| Case::new(format!("{op:?}"), &[&[2, 3, 4]], move |ins| call(op.clone(), ins));
    vec![
        case(outer).expect(middle),
        case(inner).expect(mean),
        case(all).expect(|ins| vec![vec![ins[0].iter().sum()]]),
    ]
}
