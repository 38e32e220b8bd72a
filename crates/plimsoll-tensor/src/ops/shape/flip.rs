//! Reverses the order of a dimension (`flip`), or rotates it (`roll`). Both copy, because strides are never negative.

use smallvec::{SmallVec, smallvec};

use crate::cpu::kernels::remap::{Axis, remap};
use crate::cuda::shape::remap::Source;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `x -> out`: reorders the elements of some dimensions.
#[derive(Clone, Debug)]
enum Reorder {
    /// One flag for each dimension.
    Flip(SmallVec<[bool; 6]>),
    /// One shift for each dimension.
    Roll(SmallVec<[isize; 6]>),
}

impl Kernel for Reorder {
    fn name(&self) -> &'static str {
        match self {
            Reorder::Flip(_) => "flip",
            Reorder::Roll(_) => "roll",
        }
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        if call.outs[0].is_empty() {
            return Ok(());
        }
        let shape = call.ins[0].shape();
        let axis = |(dim, &size): (usize, &usize)| match self {
            Reorder::Flip(marks) if marks[dim] => Source::Turned,
            Reorder::Flip(_) => Source::Same { before: 0 },
            Reorder::Roll(shifts) => {
                Source::Circle { before: shifts[dim].rem_euclid(size as isize) as usize }
            }
        };
        let axes: SmallVec<[Source; 6]> = shape.iter().enumerate().map(axis).collect();
        cuda::shape::remap::remap(call, &axes, 0)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        if out.layout().is_empty() {
            return Ok(());
        }
        let axis = |(dim, &size): (usize, &usize)| match self {
            Reorder::Flip(marks) if marks[dim] => Axis::flipped(size),
            Reorder::Flip(_) => Axis::same(size),
            Reorder::Roll(shifts) => Axis::rolled(size, shifts[dim].rem_euclid(size as isize) as usize),
        };
        let axes: SmallVec<[Axis; 4]> = x.shape().iter().enumerate().map(axis).collect();
        by_word!(x.dtype(), W => remap::<W>(&axes, x.words(), x.strides(), out.words()));
        Ok(())
    }
}

impl Operator for Reorder {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let inverse = match self {
            Reorder::Flip(_) => self.clone(),
            Reorder::Roll(shifts) => Reorder::Roll(shifts.iter().map(|shift| shift.wrapping_neg()).collect()),
        };
        Ok(smallvec![Some(call_one(inverse, &[grad])?)])
    }
}

impl Tensor {
    /// Returns a copy with the order of some dimensions reversed. Like `torch.flip`.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice, or memory runs out.
    #[track_caller]
    pub fn flip(&self, dims: &[isize]) -> Result<Tensor> {
        let mut marks: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.rank());
        for &dim in dims {
            let at = dim_index("flip", dim, self.rank())?;
            if std::mem::replace(&mut marks[at], true) {
                return Err(Error::shape("flip", format!("dimension {at} is named twice in {dims:?}")));
            }
        }
        call_one(Reorder::Flip(marks), &[self])
    }

    /// Returns a copy with the elements of each dimension of `dims` moved by its shift; elements that leave at one end enter at
    /// the other. If `dims` is empty and there is one shift, the tensor is rolled as one flat row. Like `torch.roll`.
    ///
    /// # Errors
    /// If a dimension is out of range, the numbers of shifts and dimensions differ, or memory runs out.
    #[track_caller]
    pub fn roll(&self, shifts: &[isize], dims: &[isize]) -> Result<Tensor> {
        if dims.is_empty() && shifts.len() == 1 {
            return self.reshape(&[-1])?.roll(shifts, &[0])?.reshape(self.shape());
        }
        if shifts.len() != dims.len() || shifts.is_empty() {
            let message = format!(
                "shifts {shifts:?} for dimensions {dims:?}: needs one shift for each dimension, and at least one"
            );
            return Err(Error::argument("roll", message));
        }
        let mut all: SmallVec<[isize; 6]> = SmallVec::from_elem(0, self.rank());
        for (&shift, &dim) in shifts.iter().zip(dims) {
            let dim = dim_index("roll", dim, self.rank())?;
            // Reduced modulo the size, so that several shifts of one dimension add up.
            all[dim] += shift.checked_rem_euclid(self.shape()[dim] as isize).unwrap_or(0);
        }
        call_one(Reorder::Roll(all), &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let turned =
        |ins: &[Vec<f64>]| vec![ins[0].chunks(4).flat_map(|row| row.iter().rev().copied()).collect()];
    let rolled = |ins: &[Vec<f64>]| vec![(0..12).map(|i| ins[0][(i + 8) % 12]).collect()];
    let marks = SmallVec::from_slice(&[false, true]);
    vec![
        Case::new("flip", &[&[3, 4]], move |ins| call(Reorder::Flip(marks.clone()), ins)).expect(turned),
        Case::new("flip both", &[&[3, 4]], |ins| Ok(smallvec![ins[0].flip(&[0, 1])?])),
        Case::new("roll", &[&[3, 4]], |ins| Ok(smallvec![ins[0].roll(&[1], &[0])?])).expect(rolled),
        Case::new("roll both", &[&[3, 4]], |ins| Ok(smallvec![ins[0].roll(&[-1, 6], &[0, 1])?])),
    ]
}
