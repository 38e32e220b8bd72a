//! What operators that write at an index are: what happens to an element, what an index is for, whether a copy changes.

use smallvec::{SmallVec, smallvec};

use super::indices;
use crate::cuda::Placed;
use crate::layout::{Dims, Layout};
use crate::operator::{Meta, Output, Outputs};
use crate::view::In;

/// What happens to an element that an index names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replace,
    Add,
}

/// What an index has a place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Indexes {
    /// Each element of the source.
    Elements,
    /// Each index of one dimension of the source.
    Slices,
}

/// Where the result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In a copy of the tensor.
    Copy,
    /// In the tensor itself.
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
    /// The one output, of the shape of the first input.
    pub(super) fn outputs(self, x: &Meta<'_>) -> Outputs {
        match self {
            Form::Copy => smallvec![Output::new(x.shape(), x.dtype)],
            Form::InPlace => smallvec![Output::in_place(0, x)],
        }
    }

    /// Elements are put into row-major memory.
    pub(super) fn takes(self, input: usize, layout: &Layout) -> bool {
        self == Form::Copy || input != 0 || layout.is_contiguous()
    }

    /// The tensor to copy first, if any, and the other inputs.
    pub(super) fn split<const N: usize>(self, ins: SmallVec<[In<'_>; 4]>) -> (Option<In<'_>>, [In<'_>; N]) {
        let mut ins = ins.into_iter();
        let x = if self == Form::Copy { ins.next() } else { None };
        (x, std::array::from_fn(|_| ins.next().unwrap_or_else(|| unreachable!("inferred"))))
    }
}
