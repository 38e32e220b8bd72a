//! The variants of operators that write at an index: replace or add, by element or by slice, in a copy or in place.

use smallvec::{SmallVec, smallvec};

use super::indices;
use crate::cuda::Placed;
use crate::layout::{Dims, Layout};
use crate::operator::{Meta, Output, Outputs};
use crate::view::In;

/// How the element at an index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replace,
    Add,
}

/// The unit that an index addresses: single elements or slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Indexes {
    /// There is an index for each element of the source.
    Elements,
    /// There is an index for each slice of the source along one dimension.
    Slices,
}

/// Where the result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// To a copy of the tensor.
    Copy,
    /// The result is written to the tensor itself.
    InPlace,
}

impl Indexes {
    /// The strides of an index along the dimensions of a tensor, on a GPU.
    pub(super) fn strides(self, index: &Placed<'_>, rank: usize, dim: usize) -> Dims {
        match self {
            Indexes::Elements => Dims::from_slice(index.layout.strides()),
            Indexes::Slices => {
                indices::along(rank, dim, index.layout.strides().first().copied().unwrap_or(1))
            }
        }
    }
}

impl Form {
    /// The single output, which has the shape of the first input.
    pub(super) fn outputs(self, x: &Meta<'_>) -> Outputs {
        match self {
            Form::Copy => smallvec![Output::new(x.shape(), x.dtype)],
            Form::InPlace => smallvec![Output::in_place(0, x)],
        }
    }

    /// Elements are written to row-major memory.
    pub(super) fn takes(self, input: usize, layout: &Layout) -> bool {
        self == Form::Copy || input != 0 || layout.is_contiguous()
    }

    /// Returns the tensor to copy first, if any, and the other inputs.
    pub(super) fn split<const N: usize>(self, ins: SmallVec<[In<'_>; 4]>) -> (Option<In<'_>>, [In<'_>; N]) {
        let mut ins = ins.into_iter();
        let x = if self == Form::Copy { ins.next() } else { None };
        (x, std::array::from_fn(|_| ins.next().unwrap_or_else(|| unreachable!("inferred"))))
    }
}
