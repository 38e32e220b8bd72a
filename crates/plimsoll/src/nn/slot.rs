//! A place for a layer that another layer can take, and whose passes can have hooks: [`Slot`].
//!
//! [`Module::replace_submodule`] and [`Module::hooks`] find a slot by its path. A slot adds nothing to names: its layer's parameters
//! have the names that they have without it.

use std::fmt;

use plimsoll_tensor::{Error, Result, Tensor};

use super::{Members, MembersMut, Module, ModuleHooks};

/// A module that can be cloned; clones share parameters. Every module that is `Clone` is one.
///
/// ```
/// use plimsoll::nn::{Layer, Linear, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let linear: Box<dyn Layer> = Box::new(Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?);
/// assert!(linear.clone().parameters()[0].is_same(&linear.parameters()[0]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub trait Layer: Module {
    /// A clone of this module.
    fn clone_layer(&self) -> Box<dyn Layer>;
}

impl<M: Module + Clone> Layer for M {
    fn clone_layer(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Layer> {
    fn clone(&self) -> Box<dyn Layer> {
        (**self).clone_layer()
    }
}

impl fmt::Debug for dyn Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl Module for Box<dyn Layer> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }

    fn members<'a>(&'a self, list: &mut Members<'a>) {
        (**self).members(list);
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        (**self).members_mut(list);
    }

    fn kind(&self) -> &'static str {
        (**self).kind()
    }

    fn inner(&self) -> Option<&dyn Module> {
        Some(&**self)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Module> {
        Some(&mut **self)
    }
}

/// A place for a layer. Its model calls it like the layer, and another layer can take the place:
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
    /// The layer that the slot was made with, if calling it is the same as calling the slot: if it was not replaced and has no
    /// hooks. A model may then use its parameters in an operation that does the work of several layers.
    pub fn plain(&self) -> Option<&M> {
        match &self.layer {
            Held::Own(layer) if self.hooks.is_empty() => Some(layer),
            _ => None,
        }
    }

    /// [`Slot::plain`], for a model that can only use the layer itself.
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
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
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

/// Makes a layer from the one that it replaces.
pub type Replacement<'a> = dyn FnMut(Box<dyn Layer>) -> Result<Box<dyn Layer>> + 'a;

/// The module at a path, as the list of its owner has it.
pub(super) fn find<'a, M: Module + ?Sized>(module: &'a M, path: &str) -> Option<&'a dyn Module> {
    let mut list = Members::default();
    module.members(&mut list);
    list.0.into_iter().find_map(|(name, member)| {
        let super::Member::Module(inner) = member else { return None };
        match path.strip_prefix(&*name)? {
            "" => Some(inner),
            rest => find(inner, rest.strip_prefix('.')?),
        }
    })
}

/// [`find`], mutable.
pub(super) fn find_mut<'a, M: Module + ?Sized>(module: &'a mut M, path: &str) -> Option<&'a mut dyn Module> {
    let mut list = MembersMut::default();
    module.members_mut(&mut list);
    list.0.into_iter().find_map(|(name, member)| {
        let super::MemberMut::Module(inner) = member else { return None };
        match path.strip_prefix(&*name)? {
            "" => Some(inner),
            rest => find_mut(inner, rest.strip_prefix('.')?),
        }
    })
}

/// The error for a path without a module, or with one that is not in a slot: it lists the slots.
pub(super) fn no_slot<M: Module + ?Sized>(op: &'static str, module: &M, path: &str) -> Error {
    let mut slots = Vec::new();
    list_slots(module, "", &mut slots);
    let what = if find(module, path).is_some() { "is not in a slot" } else { "is not a module" };
    let known = match slots.len() {
        0 => "the model has no slots: make the field a `Slot`".to_owned(),
        1..=8 => format!("slots are {}", slots.join(", ")),
        count => format!("the {count} slots are {}, … {}", slots[..4].join(", "), slots[count - 1]),
    };
    Error::Argument { op, message: format!("`{path}` {what} of this {}; {known}", module.kind()) }
}

fn list_slots<M: Module + ?Sized>(module: &M, prefix: &str, slots: &mut Vec<String>) {
    let mut list = Members::default();
    module.members(&mut list);
    for (name, member) in list.0 {
        if let super::Member::Module(inner) = member {
            let path = if prefix.is_empty() { name.into_owned() } else { format!("{prefix}.{name}") };
            if inner.own_hooks().is_some() {
                slots.push(path.clone());
            }
            list_slots(inner, &path, slots);
        }
    }
}
