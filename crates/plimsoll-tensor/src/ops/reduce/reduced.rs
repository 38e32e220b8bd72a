//! Code that reductions share: the reduced dimensions and the resulting shapes.

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::operator::Meta;
use crate::ops::dim_index;
use crate::tensor::Tensor;

/// Whether a reduced dimension is kept with size 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Dropped,
    Kept,
}

/// The dimensions that are reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// One flag for each dimension of the input.
    pub(crate) marks: SmallVec<[bool; 6]>,
    pub(crate) keep: Keep,
}

impl Over {
    /// Reduces all dimensions.
    pub(crate) fn all(rank: usize) -> Over {
        Over { marks: SmallVec::from_elem(true, rank), keep: Keep::Dropped }
    }

    /// Reduces these dimensions; all if the list is empty, as in PyTorch.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice.
    pub(crate) fn dims(op: &'static str, rank: usize, dims: &[isize], keep: Keep) -> Result<Over> {
        let mut marks: SmallVec<[bool; 6]> = SmallVec::from_elem(dims.is_empty(), rank);
        for &dim in dims.iter().filter(|&&dim| rank > 0 || !(-1..=0).contains(&dim)) {
            let at = dim_index(op, dim, rank)?;
            if std::mem::replace(&mut marks[at], true) {
                return Err(Error::shape(op, format!("dimension {at} is named twice in {dims:?}")));
            }
        }
        Ok(Over { marks, keep })
    }

    /// The shape of the result.
    pub(crate) fn shape(&self, x: &[usize]) -> Dims {
        match self.keep {
            Keep::Kept => self.kept(x),
            Keep::Dropped => x.iter().zip(&self.marks).filter(|&(_, &mark)| !mark).map(|(&n, _)| n).collect(),
        }
    }

    /// The shape with the reduced dimensions at size 1.
    pub(crate) fn kept(&self, x: &[usize]) -> Dims {
        x.iter().zip(&self.marks).map(|(&n, &mark)| if mark { 1 } else { n }).collect()
    }

    /// The number of elements that each result is computed from.
    pub(crate) fn count(&self, x: &[usize]) -> usize {
        x.iter().zip(&self.marks).filter(|&(_, &mark)| mark).map(|(&n, _)| n).product()
    }

    /// The reduced dimensions.
    pub(crate) fn named(&self) -> Vec<isize> {
        (0..self.marks.len()).filter(|&dim| self.marks[dim]).map(|dim| dim as isize).collect()
    }

    /// Returns an error if a result would be computed from no elements.
    pub(crate) fn want_elements(&self, op: &'static str, x: &Meta<'_>) -> Result<()> {
        if self.count(x.shape()) > 0 || self.shape(x.shape()).contains(&0) {
            return Ok(());
        }
        let message = format!("{:?} has no elements in the reduced dimensions {:?}", x.shape(), self.named());
        Err(Error::shape(op, message))
    }

    /// A result with the reduced dimensions kept at size 1, to broadcast against the input.
    #[track_caller]
    pub(crate) fn broadcastable(&self, result: &Tensor, x: &[usize]) -> Result<Tensor> {
        result.reshape(self.kept(x).as_slice())
    }
}
