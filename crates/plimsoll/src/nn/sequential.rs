//! Layers one after the other.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Result, Tensor};

use super::module::innermost;
use super::{Layer, Members, MembersMut, Module, Scope, Slot};

/// A chain of layers; each one receives the output of the previous one. Each is in a [`Slot`]: it can have hooks, and another layer
/// can take its place. So layers must be `Clone`; clones of the chain share parameters. Like `torch.nn.Sequential`.
///
/// ```
/// use plimsoll::{Device, Tensor, nn, nn::Module};
/// let device = Device::cpu();
/// let model = nn::Sequential::new(&nn::Scope::new(&device, 1))
///     .add("fc1", |s| nn::Linear::new(s, 4, 8))?
///     .add("relu", nn::ReLU::new)?
///     .add("fc2", |s| nn::Linear::new(s, 8, 2))?;
/// let hooks = model.hooks("relu")?;
/// hooks.register_forward_hook(|_input, output| (output * 2.0).map(Some));
/// let names: Vec<_> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
/// assert_eq!(model.forward(&Tensor::ones(&[3, 4], &device)?)?.shape(), [3, 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone)]
pub struct Sequential {
    scope: Scope,
    layers: Vec<(String, Slot<Box<dyn Layer>>)>,
}

impl Sequential {
    /// A chain without layers, which returns its input unchanged.
    pub fn new(scope: &Scope) -> Sequential {
        Sequential { scope: scope.clone(), layers: Vec::new() }
    }

    /// Appends a layer, built under `name` inside this chain's scope.
    ///
    /// # Errors
    /// The same errors as `build`.
    pub fn add<M, F>(mut self, name: &str, build: F) -> Result<Sequential>
    where
        M: Layer,
        F: FnOnce(&Scope) -> Result<M>,
    {
        let layer: Box<dyn Layer> = Box::new(build(&self.scope.at(name))?);
        self.layers.push((name.to_owned(), layer.into()));
        Ok(self)
    }

    /// Appends a layer, named by its number, as in `nn.Sequential(a, b)`.
    ///
    /// # Errors
    /// The same errors as `build`.
    pub fn push<M, F>(self, build: F) -> Result<Sequential>
    where
        M: Layer,
        F: FnOnce(&Scope) -> Result<M>,
    {
        let number = self.len().to_string();
        self.add(&number, build)
    }

    /// The layer with this name.
    pub fn get(&self, name: &str) -> Option<&dyn Module> {
        self.layers.iter().find(|(at, _)| at == name).map(|(_, layer)| innermost(layer))
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.layers.iter().try_fold(input.clone(), |x, (_, layer)| layer.forward(&x))
    }

    fn members<'a>(&'a self, list: &mut Members<'a>) {
        self.layers.iter().for_each(|(name, layer)| list.add(name.as_str(), layer));
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        self.layers.iter_mut().for_each(|(name, layer)| list.add(name.as_str(), layer));
    }
}
