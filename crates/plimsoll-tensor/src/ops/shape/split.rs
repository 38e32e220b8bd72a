//! Splits a tensor along a dimension into views, in one operation whose derivative concatenates the gradients.

use smallvec::{SmallVec, smallvec};

use super::cat::{Part, cat_parts};
use crate::dispatch::call;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::layout::Dims;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> parts`: splits a dimension into these sizes.
#[derive(Clone, Debug)]
struct Split {
    dim: usize,
    sizes: Dims,
}

impl Kernel for Split {
    fn name(&self) -> &'static str {
        "split"
    }
}

impl Operator for Split {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("split", ins)?;
        let mut start = 0;
        let part = |&size: &usize| {
            let layout = x.layout.narrow(self.dim, start, size);
            start += size;
            Output::view(0, layout, x.dtype)
        };
        Ok(self.sizes.iter().map(part).collect())
    }

    fn cost(&self, _: &[Meta<'_>], _: &[Meta<'_>]) -> Cost {
        Cost::default()
    }

    /// A part without a gradient counts as zeros.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let part = |(i, &size): (usize, &usize)| at.grad(i).map_or(Part::Zeros(size), Part::Given);
        let parts: SmallVec<[Part<'_>; 4]> = self.sizes.iter().enumerate().map(part).collect();
        if parts.iter().all(|part| matches!(part, Part::Zeros(_))) {
            return Ok(smallvec![None]);
        }
        Ok(smallvec![Some(cat_parts("split_backward", &parts, self.dim)?)])
    }
}

impl Tensor {
    /// Splits a dimension into views of `size` elements each; the last may have fewer. Like `torch.split`.
    ///
    /// # Errors
    /// If the dimension is out of range, or the size is 0 and the dimension has elements.
    #[track_caller]
    pub fn split(&self, size: usize, dim: isize) -> Result<Vec<Tensor>> {
        let dim = dim_index("split", dim, self.rank())?;
        let whole = self.shape()[dim];
        if size == 0 && whole != 0 {
            return Err(Error::argument(
                "split",
                format!("parts of 0 elements of a dimension of size {whole}"),
            ));
        }
        let count = if whole == 0 { 1 } else { whole.div_ceil(size) };
        let sizes = (0..count).map(|i| size.min(whole - i * size)).collect();
        self.split_into(dim, sizes)
    }

    /// Splits a dimension into views of these sizes. Like `torch.split` with a list.
    ///
    /// # Errors
    /// If the dimension is out of range, or the sum of the sizes is not the dimension's size.
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: &[usize], dim: isize) -> Result<Vec<Tensor>> {
        let dim = dim_index("split_with_sizes", dim, self.rank())?;
        let whole = self.shape()[dim];
        if sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) != Some(whole) {
            let message = format!("{sizes:?} do not add up to {whole}, the size of dimension {dim}");
            return Err(Error::shape("split_with_sizes", message));
        }
        self.split_into(dim, sizes.into())
    }

    /// Splits a dimension into at most `count` views, all but the last of the same size. As in `torch.chunk`, there are fewer
    /// if that size fills the dimension earlier.
    ///
    /// # Errors
    /// If a dimension is out of range, or a count is 0.
    #[track_caller]
    pub fn chunk(&self, count: usize, dim: isize) -> Result<Vec<Tensor>> {
        let dim = dim_index("chunk", dim, self.rank())?;
        if count == 0 {
            return Err(Error::argument("chunk", "0 chunks: needs at least 1"));
        }
        match self.shape()[dim] {
            0 => self.split_into(dim, Dims::from_elem(0, count)),
            whole => self.split(whole.div_ceil(count), dim as isize),
        }
    }

    /// One view for each index of a dimension, which is removed. Like `torch.unbind`.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn unbind(&self, dim: isize) -> Result<Vec<Tensor>> {
        let dim = dim_index("unbind", dim, self.rank())?;
        let parts = self.split_into(dim, Dims::from_elem(1, self.shape()[dim]))?;
        parts.iter().map(|part| part.squeeze(dim as isize)).collect()
    }

    #[track_caller]
    fn split_into(&self, dim: usize, sizes: Dims) -> Result<Vec<Tensor>> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(call(Split { dim, sizes }, &[self])?.into_vec())
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let columns = |ins: &[Vec<f64>]| {
        let part = |from: usize, to: usize| ins[0].chunks(5).flat_map(|row| row[from..to].to_vec()).collect();
        vec![part(0, 3), part(3, 5)]
    };
    vec![
        Case::new("split", &[&[2, 5]], |ins| Ok(ins[0].split(3, -1)?.into())).expect(columns),
        Case::new("one part of a split", &[&[2, 5]], |ins| Ok(smallvec![ins[0].split(2, 1)?.remove(1)])),
        Case::new("unbind", &[&[2, 3]], |ins| Ok(ins[0].unbind(0)?.into())),
    ]
}
