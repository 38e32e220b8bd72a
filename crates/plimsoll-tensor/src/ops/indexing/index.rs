//! Indexing with several indices at once, like `x[i, :, j]` and `x[mask]` in PyTorch: `index` and `index_put_`.
//!
//! The indexed dimensions are flattened into one, and their indices into one index. The rest is `index_select`, `index_copy_`
//! and `index_add_`, with their derivatives.

use smallvec::SmallVec;

use super::indices::want_index;
use crate::autograd::no_grad;
use crate::caller::Entry;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::{self, Dims};
use crate::ops::arguments::{dim_index, want_values};
use crate::tensor::Tensor;

/// How to apply a list of indices to a tensor.
struct Plan {
    /// The order of the tensor's dimensions that makes the indexed ones adjacent.
    order: Vec<isize>,
    /// The position of the first indexed dimension in that order, and the number of indexed dimensions.
    first: usize,
    count: usize,
    /// For each position of the result, the index into the flattened indexed dimensions.
    flat: Tensor,
    /// The broadcast shape of the indices.
    shape: Dims,
}

impl Plan {
    fn of(op: &'static str, x: &Tensor, indices: &[Option<&Tensor>]) -> Result<Plan> {
        let mut found: Vec<(usize, Tensor)> = Vec::new();
        let mut dim = 0;
        for index in indices {
            match index {
                None => dim += 1,
                Some(mask) if mask.dtype() == DType::Bool => {
                    let end = dim + mask.rank();
                    if x.shape().get(dim..end) != Some(mask.shape()) {
                        let message = format!(
                            "a mask {:?} does not fit at dimension {dim} of {:?}",
                            mask.shape(),
                            x.shape()
                        );
                        return Err(Error::shape(op, message));
                    }
                    want_values(op, "the mask", mask.device())?;
                    let places = mask.nonzero()?;
                    for column in 0..mask.rank() {
                        found.push((dim + column, places.select(1, column as isize)?));
                    }
                    dim = end;
                }
                Some(index) => {
                    want_index(op, index.dtype())?;
                    found.push((dim, (*index).clone()));
                    dim += 1;
                }
            }
        }
        if dim > x.rank() {
            return Err(Error::shape(op, format!("{dim} indices for {:?}", x.shape())));
        }
        if found.is_empty() {
            return Err(Error::argument(op, "no index: all are `None`"));
        }
        let mut shape = Dims::new();
        for (_, index) in &found {
            shape = layout::broadcast(op, &shape, index.shape())?;
        }
        let flat = no_grad(|| flat(op, x, &found, &shape))?;
        let dims: Vec<usize> = found.iter().map(|(dim, _)| *dim).collect();
        // Adjacent indices keep their place; others come to the front, as in PyTorch.
        let beside = dims.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let first = if beside { dims[0] } else { 0 };
        let mut order: Vec<isize> =
            (0..x.rank()).filter(|at| !dims.contains(at)).map(|at| at as isize).collect();
        order.splice(first..first, dims.iter().map(|&dim| dim as isize));
        Ok(Plan { order, first, count: dims.len(), flat, shape })
    }

    /// The tensor with its indexed dimensions flattened into one.
    #[track_caller]
    fn folded(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.permute(&self.order)?;
        x.flatten(self.first as isize, (self.first + self.count - 1) as isize)
    }

    /// The shape of the result.
    fn result(&self, x: &Tensor) -> Dims {
        let sizes: SmallVec<[usize; 8]> = self.order.iter().map(|&dim| x.shape()[dim as usize]).collect();
        let (before, after) = (&sizes[..self.first], &sizes[self.first + self.count..]);
        before.iter().chain(&self.shape).chain(after).copied().collect()
    }
}

/// Combines the indices into one, in the row-major order of their dimensions. Negative ones count from the end.
#[track_caller]
fn flat(op: &'static str, x: &Tensor, found: &[(usize, Tensor)], shape: &[usize]) -> Result<Tensor> {
    let mut flat: Option<Tensor> = None;
    for (dim, index) in found {
        let size = x.shape()[*dim];
        let index = index.to_dtype(DType::I64)?;
        if index.device().has_values() {
            let values = index.to_vec::<i64>()?;
            let outside = |value: &&i64| **value < -(size as i64) || **value >= size as i64;
            if let Some(value) = values.iter().find(outside) {
                let message = format!("index {value} is out of range for dimension {dim} of size {size}");
                return Err(Error::argument(op, message));
            }
        }
        let wrapped = index.add(&index.lt_scalar(0)?.to_dtype(DType::I64)?.mul_scalar(size as i64)?)?;
        flat = Some(match flat {
            None => wrapped,
            Some(before) => before.mul_scalar(size as i64)?.add(&wrapped)?,
        });
    }
    let flat = flat.unwrap_or_else(|| unreachable!("there is an index"));
    flat.expand(shape)?.reshape(&[-1])
}

impl Tensor {
    /// Selects elements with one index for each of the first dimensions. An index is an integer tensor, which may count from
    /// the end and is broadcast against the others; a `bool` mask, which covers as many dimensions as it has; or `None`, which
    /// selects a complete dimension. Like `x[i, :, j]` and `x[mask]` in PyTorch.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::arange(6, &device)?.reshape(&[2, 3])?;
    /// let (row, column) = (Tensor::from_slice(&[0i64, 1], &[2], &device)?, Tensor::from_slice(&[-1i64, 0], &[2], &device)?);
    /// assert_eq!(x.index(&[Some(&row), Some(&column)])?.to_vec::<i64>()?, [2, 3]);
    /// assert_eq!(x.index(&[None, Some(&column)])?.to_vec::<i64>()?, [2, 0, 5, 3]);
    /// assert_eq!(x.index(&[Some(&x.gt_scalar(3)?)])?.to_vec::<i64>()?, [4, 5]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are more indices than dimensions; if indices are out of range or of a wrong dtype; if shapes do not
    /// broadcast; if a mask's shape differs from its dimensions, or the device computes no values; or if memory runs
    /// out.
    #[track_caller]
    pub fn index(&self, indices: &[Option<&Tensor>]) -> Result<Tensor> {
        let _entry = Entry::here();
        let plan = Plan::of("index", self, indices)?;
        let picked = plan.folded(self)?.index_select(plan.first as isize, &plan.flat)?;
        picked.reshape(plan.result(self).as_slice())
    }

    /// Writes `values`, broadcast, at these indices, given as for [`Tensor::index`]. With `accumulate`, adds them instead, once
    /// for every time that an element is indexed. Like `x[i, :, j] = values` and `Tensor.index_put_`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::index`] and [`Tensor::add_`], or if the values do not broadcast to the result of
    /// `index`.
    #[track_caller]
    pub fn index_put_(
        &self,
        indices: &[Option<&Tensor>],
        values: impl AsRef<Tensor>,
        accumulate: bool,
    ) -> Result<()> {
        let values = values.as_ref();
        const NAME: &str = "index_put_";
        let plan = Plan::of(NAME, self, indices)?;
        let wide = plan.result(self);
        let values = values.to_dtype(self.dtype())?.expand(&wide)?;
        let (first, last) = (plan.first as isize, (plan.first + plan.shape.len()) as isize - 1);
        let values = match plan.shape.len() {
            0 => values.unsqueeze(dim_index(NAME, first, values.rank() + 1)? as isize)?,
            _ => values.flatten(first, last)?,
        };
        let folded = plan.folded(self)?;
        let put = |target: &Tensor| match accumulate {
            true => target.index_add_(first, &plan.flat, &values),
            false => target.index_copy_(first, &plan.flat, &values),
        };
        if folded.shares_storage(self) {
            return put(&folded);
        }
        // Its indexed dimensions cannot be flattened without a copy: change a copy, and copy it back.
        put(&folded)?;
        let mut back = vec![0; plan.order.len()];
        plan.order.iter().enumerate().for_each(|(to, &from)| back[from as usize] = to as isize);
        let sizes: Vec<usize> = plan.order.iter().map(|&dim| self.shape()[dim as usize]).collect();
        self.copy_(&folded.reshape(sizes.as_slice())?.permute(&back)?)
    }

    /// Splits a dimension at these indices: before the first, between them, after the last. Like `torch.tensor_split(indices)`.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn tensor_split(&self, places: &[usize], dim: isize) -> Result<Vec<Tensor>> {
        let size = self.shape()[dim_index("tensor_split", dim, self.rank())?];
        let starts = std::iter::once(0).chain(places.iter().copied());
        let ends = places.iter().copied().chain([size]);
        let part = |(start, end): (usize, usize)| {
            let (start, end) = (start.min(size), end.min(size));
            self.narrow(dim, start.min(end), end.saturating_sub(start))
        };
        starts.zip(ends).map(part).collect()
    }
}
