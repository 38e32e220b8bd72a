//! Parts of a tensor as views: ranges with steps, single indices, diagonals, windows.
//!
//! All of them have the same derivative: zeros in the complete shape, with the gradient where the part was.

use std::ops::{Bound, RangeBounds};

use smallvec::smallvec;

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::strided::{copy_strided, fill};
use crate::cpu::kernels::unfold::{Windows, unfold_backward};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// `x -> part`: some of the elements.
#[derive(Clone, Copy, Debug)]
enum Part {
    Narrow { dim: usize, start: usize, len: usize },
    Slice { dim: usize, start: usize, len: usize, step: usize },
    Select { dim: usize, index: usize },
    Diagonal { dims: (usize, usize), offset: isize },
    Unfold { dim: usize, size: usize, step: usize },
}

impl Part {
    /// The layout of the part, within a tensor of the layout `whole`.
    fn of(self, whole: &Layout) -> Layout {
        match self {
            Part::Narrow { dim, start, len } => whole.narrow(dim, start, len),
            Part::Slice { dim, start, len, step } => whole.slice(dim, start, len, step),
            Part::Select { dim, index } => whole.select(dim, index),
            Part::Diagonal { dims, offset } => {
                let (right, down) = (offset.max(0).unsigned_abs(), offset.min(0).unsigned_abs());
                whole.diagonal(dims, (right, down))
            }
            Part::Unfold { dim, size, step } => whole.unfold(dim, size, step),
        }
    }

    /// Whether an element can occur several times in the part.
    fn overlaps(self) -> bool {
        matches!(self, Part::Unfold { size, step, .. } if size > step)
    }

    /// The name of the derivative.
    fn backward_name(self) -> &'static str {
        match self {
            Part::Narrow { .. } => "narrow_backward",
            Part::Slice { .. } => "slice_backward",
            Part::Select { .. } => "select_backward",
            Part::Diagonal { .. } => "diagonal_backward",
            Part::Unfold { .. } => "unfold_backward",
        }
    }
}

impl Kernel for Part {
    fn name(&self) -> &'static str {
        match self {
            Part::Narrow { .. } => "narrow",
            Part::Slice { .. } => "slice",
            Part::Select { .. } => "select",
            Part::Diagonal { .. } => "diagonal",
            Part::Unfold { .. } => "unfold",
        }
    }
}

impl Operator for Part {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        if let Part::Narrow { dim, start, len } = *self {
            let size = x.shape()[dim];
            if start.checked_add(len).is_none_or(|end| end > size) {
                let message = format!("{start}..{start}+{len} is outside dimension {dim} of size {size}");
                return Err(Error::shape("narrow", message));
            }
        }
        Ok(smallvec![Output::view(0, self.of(x.layout), x.dtype)])
    }

    fn cost(&self, _: &[Meta<'_>], _: &[Meta<'_>]) -> Cost {
        Cost::default()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        Ok(smallvec![Some(call_one(Whole { part: *self, shape: at.shape(0).into() }, &[grad])?)])
    }
}

/// `part -> whole`: zeros around a part; overlapping windows are summed.
#[derive(Clone, Debug)]
struct Whole {
    part: Part,
    shape: Dims,
}

impl Kernel for Whole {
    fn name(&self) -> &'static str {
        self.part.backward_name()
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        if self.part.overlaps() { dtype.accumulator() } else { dtype }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (part, whole) = (call.ins[0], call.outs[0]);
        if let Part::Unfold { dim, size, step } = self.part
            && self.part.overlaps()
        {
            return cuda::shape::remap::unfold_backward(call, dim, [size, step]);
        }
        if part.len() < whole.len() {
            cuda::elementwise::fill(call, 0.0, whole)?;
        }
        let at = self.part.of(whole.layout);
        cuda::elementwise::copy(call, part, whole.part(&at))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([part], [whole]) = call.split();
        if let Part::Unfold { dim, size, step } = self.part
            && self.part.overlaps()
        {
            let windows = Windows { dim, size, step, count: part.shape()[dim] };
            by_float!(part.dtype(), T => {
                let grad = (part.elements::<T>(), part.strides());
                unfold_backward(&self.shape, windows, grad, whole.elements());
            });
            return Ok(());
        }
        let at = self.part.of(whole.layout());
        by_word!(part.dtype(), W => {
            let whole = whole.words::<W>();
            if part.layout().len() < whole.len() {
                fill(whole, 0);
            }
            if !at.is_empty() {
                let place = &mut whole[at.offset()..at.end()];
                copy_strided(part.shape(), part.words(), part.strides(), place, at.strides());
            }
        });
        Ok(())
    }
}

impl Operator for Whole {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [part] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::new(&self.shape, part.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        Ok(smallvec![Some(call_one(self.part, &[grad])?)])
    }
}

impl Tensor {
    /// Elements `start..start + len` of one dimension. Like `torch.narrow`.
    ///
    /// # Errors
    /// If a range is outside the dimension.
    #[track_caller]
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<Tensor> {
        call_one(Part::Narrow { dim: dim_index("narrow", dim, self.rank())?, start, len }, &[self])
    }

    /// Every `step`-th element of a range of one dimension, as a view. Like Python's `x[start:end:step]`: negative
    /// bounds count from the end, and bounds out of range are clamped.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::arange(10, &Device::cpu())?;
    /// assert_eq!(x.slice(0, 1..-1, 3)?.to_vec::<i64>()?, [1, 4, 7]);
    /// assert_eq!(x.slice(0, -2.., 1)?.to_vec::<i64>()?, [8, 9]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the dimension is out of range, or the step is 0.
    #[allow(clippy::needless_pass_by_value, reason = "ranges are passed by value everywhere")]
    #[track_caller]
    pub fn slice(&self, dim: isize, range: impl RangeBounds<isize>, step: usize) -> Result<Tensor> {
        let dim = dim_index("slice", dim, self.rank())?;
        if step == 0 {
            return Err(Error::argument("slice", "a step of 0 never reaches the end: use at least 1"));
        }
        let size = self.shape()[dim];
        // Sizes are below isize::MAX, which is checked when tensors are made.
        let clamped = |at: isize| {
            let at = if at < 0 { at.saturating_add_unsigned(size) } else { at };
            usize::try_from(at).unwrap_or(0).min(size)
        };
        let start = match range.start_bound() {
            Bound::Included(&at) => clamped(at),
            Bound::Excluded(&at) => clamped(at) + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&-1) | Bound::Unbounded => size,
            Bound::Included(&at) => clamped(at.saturating_add(1)),
            Bound::Excluded(&at) => clamped(at),
        };
        let len = end.saturating_sub(start).div_ceil(step);
        call_one(Part::Slice { dim, start, len, step }, &[self])
    }

    /// Element `index` of one dimension, which is removed, as a view. A negative index counts from the end. Like `torch.select`.
    ///
    /// # Errors
    /// If a dimension is out of range, or an index is outside it.
    #[track_caller]
    pub fn select(&self, dim: isize, index: isize) -> Result<Tensor> {
        let dim = dim_index("select", dim, self.rank())?;
        let size = self.shape()[dim];
        let at = if index < 0 { index.checked_add_unsigned(size) } else { Some(index) };
        let at = at.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < size);
        let index = at.ok_or_else(|| {
            Error::shape(
                "select",
                format!("index {index} is out of range for dimension {dim} of size {size}"),
            )
        })?;
        call_one(Part::Select { dim, index }, &[self])
    }

    /// The diagonal of two dimensions, as a view: the two are removed, and the diagonal is a new last dimension. A positive
    /// `offset` is right of the main diagonal, a negative one below it. Like `torch.diagonal(offset, dim1, dim2)`.
    ///
    /// # Errors
    /// If a dimension is out of range, or the two are the same.
    #[track_caller]
    pub fn diagonal(&self, offset: isize, a: isize, b: isize) -> Result<Tensor> {
        let dims = (dim_index("diagonal", a, self.rank())?, dim_index("diagonal", b, self.rank())?);
        if dims.0 == dims.1 {
            return Err(Error::shape("diagonal", format!("dimension {} is named twice", dims.0)));
        }
        call_one(Part::Diagonal { dims, offset }, &[self])
    }

    /// Windows of `size` elements of a dimension, each `step` after the previous one, as a view. The dimension then counts the
    /// windows, and a new last dimension has their elements. Like `Tensor.unfold`.
    ///
    /// # Errors
    /// If the dimension is out of range, the windows are larger than it, or the step is 0.
    #[track_caller]
    pub fn unfold(&self, dim: isize, size: usize, step: usize) -> Result<Tensor> {
        let dim = dim_index("unfold", dim, self.rank())?;
        let whole = self.shape()[dim];
        if size > whole || step == 0 {
            let message = format!(
                "size {size} and step {step} for dimension {dim} of size {whole}: the size must be at most \
                 {whole}, and the step at least 1"
            );
            return Err(Error::shape("unfold", message));
        }
        call_one(Part::Unfold { dim, size, step }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |part: Part, order: fn(usize) -> usize, len: usize| {
        let values = move |ins: &[Vec<f64>]| vec![(0..len).map(|i| ins[0][order(i)]).collect()];
        Case::new(format!("{part:?}"), &[&[3, 4]], move |ins| call(part, ins)).expect(values)
    };
    let whole = |part: Part, shape: &'static [usize]| {
        let name = format!("{}, {part:?}", part.backward_name());
        Case::new(name, &[shape], move |ins| call(Whole { part, shape: Dims::from_slice(&[3, 4]) }, ins))
    };
    vec![
        case(Part::Narrow { dim: 1, start: 1, len: 2 }, |i| i / 2 * 4 + 1 + i % 2, 6),
        case(Part::Slice { dim: 1, start: 1, len: 2, step: 2 }, |i| i / 2 * 4 + 1 + i % 2 * 2, 6),
        case(Part::Select { dim: 0, index: 2 }, |i| 8 + i, 4),
        case(Part::Diagonal { dims: (0, 1), offset: 1 }, |i| 1 + i * 5, 3),
        case(Part::Unfold { dim: 1, size: 3, step: 1 }, |i| i / 6 * 4 + i / 3 % 2 + i % 3, 18),
        case(Part::Unfold { dim: 1, size: 1, step: 2 }, |i| i / 2 * 4 + i % 2 * 2, 6),
        whole(Part::Narrow { dim: 1, start: 1, len: 2 }, &[3, 2]),
        whole(Part::Diagonal { dims: (1, 0), offset: -1 }, &[3]),
        whole(Part::Unfold { dim: 0, size: 2, step: 1 }, &[2, 4, 2]),
    ]
}
