//! Layers that can run with another tensor instead of their weight, as spectral and weight normalization require.

use plimsoll_tensor::label::Span;
use plimsoll_tensor::{Result, Tensor};

use super::member::{Member, MemberMut};
use super::{Linear, Members, MembersMut, Module, Parameter};

/// A layer whose weight can be replaced by a tensor computed from trained ones.
pub trait Weighted: Module {
    /// Its weight.
    fn weight(&self) -> &Parameter;

    /// The output with this weight instead of the layer's own weight.
    ///
    /// # Errors
    /// As its `forward`.
    fn forward_with(&self, input: &Tensor, weight: &Tensor) -> Result<Tensor>;

    /// The dimension of the weight that counts outputs.
    fn output_dim(&self) -> isize {
        0
    }
}

impl Weighted for Linear {
    fn weight(&self) -> &Parameter {
        Linear::weight(self)
    }

    #[track_caller]
    fn forward_with(&self, input: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label());
        input.linear(weight, self.bias().map(|bias| bias.tensor()))
    }
}

/// Lists the members of a layer, with its weight last and under the name `original`.
pub(super) fn members_of<'a>(layer: &'a impl Module, list: &mut Members<'a>, original: &'static str) {
    let mut own = Members::default();
    layer.members(&mut own);
    let (weight, rest): (Vec<_>, Vec<_>) = own.0.into_iter().partition(|(name, _)| name == "weight");
    list.0.extend(rest);
    list.0.extend(weight.into_iter().map(|(_, member): (_, Member<'a>)| (original.into(), member)));
}

/// Like [`members_of`], mutable.
pub(super) fn members_mut_of<'a>(
    layer: &'a mut impl Module,
    list: &mut MembersMut<'a>,
    original: &'static str,
) {
    let mut own = MembersMut::default();
    layer.members_mut(&mut own);
    let (weight, rest): (Vec<_>, Vec<_>) = own.0.into_iter().partition(|(name, _)| name == "weight");
    list.0.extend(rest);
    list.0.extend(weight.into_iter().map(|(_, member): (_, MemberMut<'a>)| (original.into(), member)));
}
