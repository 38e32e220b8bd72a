//! A layer whose weight is trained as a length and a direction for each output.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Result, Tensor, no_grad};

use super::weighted::{Weighted, members_mut_of, members_of};
use super::{Init, Members, MembersMut, Module, Parameter, Scope};

/// A layer whose weight is a direction times a length for each row. Like `torch.nn.utils.parametrizations.weight_norm`, with the
/// same names in state dicts: `original0` is the lengths, `original1` the directions.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, WeightNorm};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let scope = Scope::new(&device, 1);
/// let layer = WeightNorm::new(&scope, Linear::new(&scope, 4, 2)?)?;
/// assert_eq!(layer.named_parameters()[1].0, "parametrizations.weight.original0");
/// assert_eq!(layer.forward(&Tensor::ones(&[3, 4], &device)?)?.shape(), [3, 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightNorm<L> {
    layer: L,
    length: Parameter,
}

impl<L: Weighted> WeightNorm<L> {
    /// Wraps a layer that was made in the same scope; the weight keeps its value.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, layer: L) -> Result<WeightNorm<L>> {
        let lengths = lengths(&layer.weight().detach())?;
        let length = scope.parameter("parametrizations.weight.original0", lengths.shape(), Init::Ones)?;
        no_grad(|| length.copy_(&lengths))?;
        Ok(WeightNorm { layer, length })
    }

    /// The wrapped layer, whose weight holds the directions.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// The weight: directions times lengths.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn weight(&self) -> Result<Tensor> {
        let direction = self.layer.weight();
        direction.mul(&self.length.div(&lengths(direction)?)?)
    }
}

/// The length of each row; reduced dimensions are kept with size 1.
fn lengths(weight: &Tensor) -> Result<Tensor> {
    weight.norm_keepdim(2.0, &(1..weight.rank() as isize).collect::<Vec<_>>())
}

impl<L: Weighted> Module for WeightNorm<L> {
    fn members<'a>(&'a self, list: &mut Members<'a>) {
        let mut own = Members::default();
        members_of(&self.layer, &mut own, "parametrizations.weight.original1");
        let direction = own.0.pop();
        list.0.append(&mut own.0);
        list.add("parametrizations.weight.original0", &self.length);
        list.0.extend(direction);
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        let mut own = MembersMut::default();
        members_mut_of(&mut self.layer, &mut own, "parametrizations.weight.original1");
        let direction = own.0.pop();
        list.0.append(&mut own.0);
        list.add("parametrizations.weight.original0", &mut self.length);
        list.0.extend(direction);
    }

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.layer.forward_with(input, &self.weight()?)
    }
}
