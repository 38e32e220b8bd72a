//! A place for a replaceable layer, whose passes can have hooks: [`Slot`].
//!
//! [`Module::replace_submodule`] and [`Module::hooks`] find a slot by its path. A slot does not change names: its
//! layer's parameters have the same names as without it.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Error, Result, Tensor};

use super::{Layer, Members, MembersMut, Module, ModuleHooks, Replacement};

/// A place for a layer. The model calls it like the layer itself, and the layer can be replaced:
///
/// ```
/// use plimsoll::nn::{Layer, Linear, Module, Scope, Slot};
/// use plimsoll::{Device, Result, Tensor, members};
///
/// struct Model {
///     fc: Slot<Linear>,
/// }
///
/// impl Module for Model {
///     members!(fc);
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.fc.forward(x)?.relu()
///     }
/// }
///
/// /// A layer, and its output doubled.
/// #[derive(Clone)]
/// struct Doubled(Box<dyn Layer>);
///
/// impl Module for Doubled {
///     members!(0 = "base_layer");
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.0.forward(x)? * 2.0
///     }
/// }
///
/// let scope = Scope::new(&Device::cpu(), 1);
/// let mut model = Model { fc: Linear::new(&scope.at("fc"), 4, 2)?.into() };
/// model.replace_submodule("fc", |base| Ok(Doubled(base)))?;
/// assert_eq!(model.named_parameters()[0].0, "fc.base_layer.weight");
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// Hooks stay with the slot when its layer is replaced, and clones of the slot share them.
#[derive(Clone, Debug)]
pub struct Slot<M> {
    layer: Held<M>,
    hooks: ModuleHooks,
}

#[derive(Clone, Debug)]
enum Held<M> {
    Own(M),
    Other(Box<dyn Layer>),
}

impl<M: Layer> Slot<M> {
    /// The layer that the slot was made with, if calling it is the same as calling the slot, that is, if it was not
    /// replaced and has no hooks. A model may then use its parameters in an operation that does the work of several
    /// layers.
    pub fn plain(&self) -> Option<&M> {
        match &self.layer {
            Held::Own(layer) if self.hooks.is_empty() => Some(layer),
            _ => None,
        }
    }

    /// Like [`Slot::plain`], mutable, for an option of a model that changes its layers; also with hooks.
    pub(crate) fn own_mut(&mut self) -> Option<&mut M> {
        match &mut self.layer {
            Held::Own(layer) => Some(layer),
            Held::Other(_) => None,
        }
    }

    /// Like [`Slot::plain`], for a model that can only use the layer itself.
    pub(crate) fn want_plain(&self, op: &'static str) -> Result<&M> {
        self.plain().ok_or_else(|| {
            let message = "a layer that several ranks share was replaced or has hooks, which `Scope::tensor_parallel` does not support";
            Error::argument(op, message)
        })
    }

    fn held(&self) -> &dyn Module {
        match &self.layer {
            Held::Own(layer) => layer,
            Held::Other(layer) => layer,
        }
    }
}

impl<M> From<M> for Slot<M> {
    fn from(layer: M) -> Slot<M> {
        Slot { layer: Held::Own(layer), hooks: ModuleHooks::default() }
    }
}

impl<M: Layer + Clone> Module for Slot<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.hooks.run(input, |input| self.held().forward(input))
    }

    fn members<'a>(&'a self, list: &mut Members<'a>) {
        self.held().members(list);
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        match &mut self.layer {
            Held::Own(layer) => layer.members_mut(list),
            Held::Other(layer) => layer.members_mut(list),
        }
    }

    fn kind(&self) -> &'static str {
        self.held().kind()
    }

    fn inner(&self) -> Option<&dyn Module> {
        Some(self.held())
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Module> {
        Some(match &mut self.layer {
            Held::Own(layer) => layer,
            Held::Other(layer) => layer,
        })
    }

    fn own_hooks(&self) -> Option<&ModuleHooks> {
        Some(&self.hooks)
    }

    fn replace_layer(&mut self, by: &mut Replacement<'_>) -> Result<bool> {
        let layer = match &self.layer {
            Held::Own(layer) => layer.clone_layer(),
            Held::Other(layer) => layer.clone(),
        };
        self.layer = Held::Other(by(layer)?);
        Ok(true)
    }
}
