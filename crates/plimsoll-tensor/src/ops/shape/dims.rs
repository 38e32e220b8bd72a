//! Moving, inserting, removing and matching dimensions: short forms of `permute`, `reshape` and `expand`. All results are
//! views.

use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::ops::{ReshapeTo, borrowed, dim_index};
use crate::suite::Case;
use crate::tensor::Tensor;

impl Tensor {
    /// Moves the dimensions `from` to the positions `to`; the others keep their order. Like `torch.movedim`.
    ///
    /// # Errors
    /// If the lists differ in length, or a dimension is out of range or listed twice.
    #[track_caller]
    pub fn movedim(&self, from: &[isize], to: &[isize]) -> Result<Tensor> {
        if from.len() != to.len() {
            let message = format!("{from:?} to {to:?}: both lists must have the same length");
            return Err(Error::shape("movedim", message));
        }
        if self.rank() == 0 && from.len() == 1 && [from[0], to[0]].iter().all(|dim| (-1..=0).contains(dim)) {
            return Ok(self.clone());
        }
        let from = distinct("movedim", from, self.rank())?;
        let to = distinct("movedim", to, self.rank())?;
        let mut rest = (0..self.rank()).filter(|dim| !from.contains(dim));
        let order: Vec<isize> = (0..self.rank())
            .filter_map(|place| match to.iter().position(|&at| at == place) {
                Some(i) => Some(from[i] as isize),
                None => rest.next().map(|dim| dim as isize),
            })
            .collect();
        self.permute(&order)
    }

    /// [`Tensor::movedim`] under NumPy's name. Like `torch.moveaxis`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::movedim`].
    #[track_caller]
    pub fn moveaxis(&self, from: &[isize], to: &[isize]) -> Result<Tensor> {
        self.movedim(from, to)
    }

    /// Swaps two dimensions: `transpose` under another of NumPy's names. Like `torch.swapaxes`.
    ///
    /// # Errors
    /// If dimensions are out of range.
    #[track_caller]
    pub fn swapaxes(&self, a: isize, b: isize) -> Result<Tensor> {
        self.transpose(a, b)
    }

    /// All elements as a vector; a copy only if the strides need one. Like `torch.ravel`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn ravel(&self) -> Result<Tensor> {
        self.reshape(&[-1])
    }

    /// The elements in the shape of another tensor; a copy only if the strides need one. Like `Tensor.reshape_as`.
    ///
    /// # Errors
    /// If the number of elements differs, or memory runs out.
    #[track_caller]
    pub fn reshape_as(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        self.reshape(other.shape())
    }

    /// Swaps two dimensions: `transpose` under NumPy's name.
    ///
    /// # Errors
    /// If dimensions are out of range.
    #[track_caller]
    pub fn swapdims(&self, a: isize, b: isize) -> Result<Tensor> {
        self.transpose(a, b)
    }

    /// Splits a dimension into several; one of the sizes may be -1. Like `torch.unflatten`.
    ///
    /// # Errors
    /// If the dimension is out of range, or the product of the sizes is not the dimension's size.
    #[allow(clippy::needless_pass_by_value, reason = "what is passed is a reference already")]
    #[track_caller]
    pub fn unflatten(&self, dim: isize, sizes: impl ReshapeTo) -> Result<Tensor> {
        let dim = dim_index("unflatten", dim, self.rank())?;
        let (size, sizes) = (self.shape()[dim], sizes.sizes());
        let misfit = || {
            let message = format!("{sizes:?} do not multiply to {size}, the size of dimension {dim}");
            Error::shape("unflatten", message)
        };
        let known = sizes
            .iter()
            .filter(|&&n| n != -1)
            .try_fold(1usize, |product, &n| product.checked_mul(usize::try_from(n).ok()?));
        let known = known.ok_or_else(misfit)?;
        let rest = match sizes.iter().filter(|&&n| n == -1).count() {
            0 if known == size && !sizes.is_empty() => 0,
            1 if known > 0 && size.is_multiple_of(known) => size / known,
            _ => return Err(misfit()),
        };
        let mut shape: Dims = self.shape()[..dim].into();
        shape.extend(sizes.iter().map(|&n| usize::try_from(n).unwrap_or(rest)));
        shape.extend_from_slice(&self.shape()[dim + 1..]);
        self.view(shape.as_slice())
    }

    /// Removes the given dimensions that have size 1. Like `torch.squeeze` with a tuple.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice.
    #[track_caller]
    pub fn squeeze_dims(&self, dims: &[isize]) -> Result<Tensor> {
        let dims = distinct("squeeze", dims, self.rank())?;
        let kept = |&(dim, &size): &(usize, &usize)| size != 1 || !dims.contains(&dim);
        let shape: Dims = self.shape().iter().enumerate().filter(kept).map(|(_, &size)| size).collect();
        self.view(shape.as_slice())
    }

    /// Removes all dimensions of size 1. Like `torch.squeeze` without a dimension.
    ///
    /// # Errors
    /// None that a caller could cause.
    #[track_caller]
    pub fn squeeze_all(&self) -> Result<Tensor> {
        self.squeeze_dims(&(0..self.rank() as isize).collect::<Vec<_>>())
    }

    /// Inserts dimensions of size 1 at these positions of the result.
    ///
    /// # Errors
    /// If a position is out of range or listed twice.
    #[track_caller]
    pub fn unsqueeze_dims(&self, dims: &[isize]) -> Result<Tensor> {
        let rank = self.rank() + dims.len();
        let mut places = distinct("unsqueeze", dims, rank)?;
        places.sort_unstable();
        places.iter().try_fold(self.clone(), |x, &place| x.unsqueeze(place as isize))
    }

    /// Broadcasts to the shape of another tensor. Like `Tensor.expand_as`.
    ///
    /// # Errors
    /// If this shape does not broadcast to the new one.
    #[track_caller]
    pub fn expand_as(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        self.expand(other.shape())
    }

    /// Broadcasts to a shape: `expand` under NumPy's name.
    ///
    /// # Errors
    /// If this shape does not broadcast to the new one.
    #[track_caller]
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        self.expand(shape)
    }

    /// Views the elements in the shape of another tensor. Like `Tensor.view_as`.
    ///
    /// # Errors
    /// If the number of elements differs, or the strides need a copy.
    #[track_caller]
    pub fn view_as(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        self.view(other.shape())
    }

    /// Makes the coordinates of a grid from vectors: one tensor for each vector, all of the grid's shape, as views. For
    /// `indexing="xy"`, swap the first two dimensions of the results. Like `torch.meshgrid(indexing="ij")`.
    ///
    /// # Errors
    /// If the tensor has two or more dimensions.
    #[track_caller]
    pub fn meshgrid(vectors: &[impl AsRef<Tensor>]) -> Result<Vec<Tensor>> {
        let vectors = &borrowed(vectors)[..];
        if let Some(other) = vectors.iter().find(|vector| vector.rank() > 1) {
            let message = format!("{:?} is not a vector", other.shape());
            return Err(Error::shape("meshgrid", message));
        }
        let grid: Dims = vectors.iter().map(|vector| vector.numel()).collect();
        let coordinate = |(dim, vector): (usize, &&Tensor)| {
            let mut shape = Dims::from_elem(1, grid.len());
            shape[dim] = grid[dim];
            vector.reshape(shape.as_slice())?.expand(&grid)
        };
        vectors.iter().enumerate().map(coordinate).collect()
    }
}

/// Converts dimensions to indices counted from the front. Fails if one is repeated.
fn distinct(op: &'static str, dims: &[isize], rank: usize) -> Result<Dims> {
    let mut found = Dims::new();
    for &dim in dims {
        let at = dim_index(op, dim, rank)?;
        if found.contains(&at) {
            return Err(Error::shape(op, format!("dimension {at} is named twice in {dims:?}")));
        }
        found.push(at);
    }
    Ok(found)
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let moved = |ins: &[Vec<f64>]| {
        // From [2, 3, 4] to [4, 2, 3].
        vec![(0..24).map(|i| ins[0][i % 6 * 4 + i / 6]).collect()]
    };
    let one = |x: Result<Tensor>| Ok(smallvec::smallvec![x?]);
    vec![
        Case::new("movedim", &[&[2, 3, 4]], move |ins| one(ins[0].movedim(&[-1], &[0]))).expect(moved),
        Case::new("unflatten", &[&[2, 6]], move |ins| one(ins[0].contiguous()?.unflatten(1, &[2, -1]))),
        Case::new("squeeze_dims", &[&[1, 3, 1]], move |ins| one(ins[0].contiguous()?.squeeze_dims(&[0, 1]))),
    ]
}
