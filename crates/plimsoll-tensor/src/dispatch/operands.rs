//! The lists of tensors of a call: its inputs and its outputs.

use smallvec::SmallVec;

use crate::data::Data;
use crate::operator::Meta;
use crate::tensor::Tensor;

/// The outputs of a call, in the operator's order.
pub type Tensors = SmallVec<[Tensor; 1]>;

pub(super) type Inputs<'a> = SmallVec<[&'a Data; 4]>;
pub(super) type Metas<'a> = SmallVec<[Meta<'a>; 4]>;

#[inline]
pub(super) fn meta(data: &Data) -> Meta<'_> {
    Meta { layout: &data.layout, dtype: data.dtype }
}
