//! Layers of one type in a list: [`ModuleList`].

use std::ops::{Deref, DerefMut};

use plimsoll_tensor::checkpoint::Step;
use plimsoll_tensor::{Result, Tensor};

use super::{Members, MembersMut, Module, Scope};

/// Layers of one type, named `0`, `1`, … Like `torch.nn.ModuleList`. The list has no `forward`; the model that owns it
/// does.
///
/// ```
/// use plimsoll::nn::{Linear, Module, ModuleList, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let blocks = ModuleList::new(&Scope::new(&device, 1).at("h"), 3, |s| Linear::new(s, 8, 8))?;
/// let y = blocks.iter().try_fold(Tensor::ones(&[2, 8], &device)?, |x, block| block.forward(&x))?;
/// assert_eq!((y.shape(), blocks[2].weight().label().as_str()), (&[2, 8][..], "h.2.weight"));
/// assert_eq!(blocks.named_parameters()[5].0, "2.bias");
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModuleList<M>(Vec<M>);

impl<M: Module> ModuleList<M> {
    /// `count` layers; each is built inside `scope`, under its number.
    ///
    /// # Errors
    /// The same errors as `build`.
    pub fn new(scope: &Scope, count: usize, build: impl Fn(&Scope) -> Result<M>) -> Result<ModuleList<M>> {
        (0..count).map(|i| build(&scope.at(&i.to_string()))).collect::<Result<Vec<M>>>().map(ModuleList)
    }
}

impl<M: Module + Clone> ModuleList<M> {
    /// The layers as functions of one tensor, for [`checkpoint_sequential`](crate::checkpoint::checkpoint_sequential) and a
    /// [`Checkpointer`](crate::checkpoint::Checkpointer). They share the layers' parameters as they are now: make them again after
    /// the model has moved to another device.
    ///
    /// ```
    /// use plimsoll::checkpoint::{Budget, Checkpointer};
    /// use plimsoll::nn::{Linear, ModuleList, Scope};
    /// use plimsoll::{Device, Tensor};
    /// let device = Device::cpu();
    /// let blocks = ModuleList::new(&Scope::new(&device, 1), 16, |s| Linear::new(s, 8, 8))?;
    /// let checkpointer = Checkpointer::new(Budget::Auto); // keep it next to the blocks
    /// let x = Tensor::ones(&[64, 8], &device)?;
    /// checkpointer.forward(&blocks.steps(), &x)?.sum()?.backward()?;
    /// assert!(blocks[0].weight().grad().is_some());
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn steps(&self) -> Vec<Step> {
        let step = |layer: &M| {
            let layer = layer.clone();
            Step::new(move |x: &Tensor| layer.forward(x))
        };
        self.0.iter().map(step).collect()
    }
}

impl<M> From<Vec<M>> for ModuleList<M> {
    fn from(layers: Vec<M>) -> ModuleList<M> {
        ModuleList(layers)
    }
}

impl<M> Deref for ModuleList<M> {
    type Target = [M];

    fn deref(&self) -> &[M] {
        &self.0
    }
}

impl<M> DerefMut for ModuleList<M> {
    fn deref_mut(&mut self) -> &mut [M] {
        &mut self.0
    }
}

impl<M: Module> Module for ModuleList<M> {
    fn members<'a>(&'a self, list: &mut Members<'a>) {
        self.0.iter().enumerate().for_each(|(i, layer)| list.add(i.to_string(), layer));
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        self.0.iter_mut().enumerate().for_each(|(i, layer)| list.add(i.to_string(), layer));
    }
}
