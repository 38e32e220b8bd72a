//! The members of a module, by name: parameters, buffers, its mode, and the modules inside it. Also modules of any type
//! ([`Layer`]), and how to find them by path.
//!
//! A layer lists its fields once, with the macro [`members!`](crate::members); everything that [`super::Module`] does
//! with a whole model uses these lists.

use std::borrow::Cow;
use std::fmt;

use plimsoll_tensor::{Error, Result, Tensor};

use super::{Buffer, Mode, Module, Parameter};

/// A member of a module.
#[derive(Clone, Copy)]
pub enum Member<'a> {
    /// A trained tensor.
    Parameter(&'a Parameter),
    /// A tensor that is not trained.
    Buffer(&'a Buffer),
    /// The `training` flag.
    Mode(&'a Mode),
    /// A module inside this one.
    Module(&'a dyn Module),
}

/// A member that can be changed.
pub enum MemberMut<'a> {
    /// A trained tensor.
    Parameter(&'a mut Parameter),
    /// A tensor that is not trained.
    Buffer(&'a mut Buffer),
    /// A module inside this one.
    Module(&'a mut dyn Module),
}

/// A field that can be a member. Implemented for parameters, buffers, modes, modules, and options of these.
pub trait IsMember {
    /// The field as a member; `None` for an empty option.
    fn member(&self) -> Option<Member<'_>>;
    /// The field as a member, mutable.
    fn member_mut(&mut self) -> Option<MemberMut<'_>>;
}

impl IsMember for Parameter {
    fn member(&self) -> Option<Member<'_>> {
        Some(Member::Parameter(self))
    }

    fn member_mut(&mut self) -> Option<MemberMut<'_>> {
        Some(MemberMut::Parameter(self))
    }
}

impl IsMember for Buffer {
    fn member(&self) -> Option<Member<'_>> {
        Some(Member::Buffer(self))
    }

    fn member_mut(&mut self) -> Option<MemberMut<'_>> {
        Some(MemberMut::Buffer(self))
    }
}

impl IsMember for Mode {
    fn member(&self) -> Option<Member<'_>> {
        Some(Member::Mode(self))
    }

    /// A mode can be changed through a shared reference.
    fn member_mut(&mut self) -> Option<MemberMut<'_>> {
        None
    }
}

impl<M: Module> IsMember for M {
    fn member(&self) -> Option<Member<'_>> {
        Some(Member::Module(self))
    }

    fn member_mut(&mut self) -> Option<MemberMut<'_>> {
        Some(MemberMut::Module(self))
    }
}

impl<T: IsMember> IsMember for Option<T> {
    fn member(&self) -> Option<Member<'_>> {
        self.as_ref().and_then(T::member)
    }

    fn member_mut(&mut self) -> Option<MemberMut<'_>> {
        self.as_mut().and_then(T::member_mut)
    }
}

/// The members of one module, in order. Names are PyTorch's attribute names.
#[derive(Default)]
pub struct Members<'a>(pub(super) Vec<(Cow<'a, str>, Member<'a>)>);

impl<'a> Members<'a> {
    /// Lists a field.
    pub fn add(&mut self, name: impl Into<Cow<'a, str>>, field: &'a impl IsMember) {
        if let Some(member) = field.member() {
            self.0.push((name.into(), member));
        }
    }

    /// Lists a module of any type.
    pub fn module(&mut self, name: impl Into<Cow<'a, str>>, module: &'a dyn Module) {
        self.0.push((name.into(), Member::Module(module)));
    }
}

/// The members of one module, mutable, in the same order.
#[derive(Default)]
pub struct MembersMut<'a>(pub(super) Vec<(Cow<'a, str>, MemberMut<'a>)>);

impl<'a> MembersMut<'a> {
    /// Lists a field.
    pub fn add(&mut self, name: impl Into<Cow<'a, str>>, field: &'a mut impl IsMember) {
        if let Some(member) = field.member_mut() {
            self.0.push((name.into(), member));
        }
    }

    /// Lists a module of any type.
    pub fn module(&mut self, name: impl Into<Cow<'a, str>>, module: &'a mut dyn Module) {
        self.0.push((name.into(), MemberMut::Module(module)));
    }
}

/// A module that can be cloned; clones share parameters. Every module that is `Clone` is a layer.
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
    #[track_caller]
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

/// Makes a layer from the one that it replaces.
pub type Replacement<'a> = dyn FnMut(Box<dyn Layer>) -> Result<Box<dyn Layer>> + 'a;

/// The module at a path, as listed by its owner.
pub(super) fn find<'a, M: Module + ?Sized>(module: &'a M, path: &str) -> Option<&'a dyn Module> {
    let mut list = Members::default();
    module.members(&mut list);
    list.0.into_iter().find_map(|(name, member)| {
        let Member::Module(inner) = member else { return None };
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
        let MemberMut::Module(inner) = member else { return None };
        match path.strip_prefix(&*name)? {
            "" => Some(inner),
            rest => find_mut(inner, rest.strip_prefix('.')?),
        }
    })
}

/// The error for a path that has no module, or one that is not in a slot; it lists the slots.
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
        if let Member::Module(inner) = member {
            let path = if prefix.is_empty() { name.into_owned() } else { format!("{prefix}.{name}") };
            if inner.own_hooks().is_some() {
                slots.push(path.clone());
            }
            list_slots(inner, &path, slots);
        }
    }
}

/// The name of a field for [`members!`](crate::members): the name of `r#box` is `box`.
#[doc(hidden)]
pub fn field_name(field: &'static str) -> &'static str {
    field.strip_prefix("r#").unwrap_or(field)
}

/// Lists the fields of a layer that are parameters, buffers, modes and layers, inside `impl Module`. A field's name is
/// its name in state dicts; `field = "name"` gives it another.
///
/// ```
/// use plimsoll::nn::{Init, Linear, Module, Parameter, Scope};
/// use plimsoll::{Device, Result, Tensor, members};
///
/// /// A block of two products with a learned scale.
/// struct Block {
///     up: Linear,
///     down: Linear,
///     scale: Parameter,
/// }
///
/// impl Block {
///     fn new(scope: &Scope, width: usize) -> Result<Block> {
///         Ok(Block {
///             up: Linear::new(&scope.at("up"), width, 4 * width)?,
///             down: Linear::new(&scope.at("down"), 4 * width, width)?,
///             scale: scope.parameter("gamma", &[width], Init::Ones)?,
///         })
///     }
/// }
///
/// impl Module for Block {
///     members!(up, down, scale = "gamma");
///
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let update = self.down.forward(&self.up.forward(x)?.relu()?)?;
///         x + &(&update * &*self.scale)?
///     }
/// }
///
/// let block = Block::new(&Scope::new(&Device::cpu(), 1), 8)?;
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["gamma", "up.weight", "up.bias", "down.weight", "down.bias"]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[macro_export]
macro_rules! members {
    (@name $field:tt) => { $crate::nn::field_name(stringify!($field)) };
    (@name $field:tt $name:literal) => { $name };
    ($($field:tt $(= $name:literal)?),* $(,)?) => {
        fn members<'a>(&'a self, list: &mut $crate::nn::Members<'a>) {
            $(list.add($crate::members!(@name $field $($name)?), &self.$field);)*
        }

        fn members_mut<'a>(&'a mut self, list: &mut $crate::nn::MembersMut<'a>) {
            $(list.add($crate::members!(@name $field $($name)?), &mut self.$field);)*
        }
    };
}
