//! The members of a module, by name: parameters, buffers, its mode, and modules inside it.
//!
//! A layer lists its fields once, with the macro [`members!`](crate::members); everything that [`super::Module`] does to a
//! complete model goes through these lists.

use std::borrow::Cow;

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

/// A field that can be a member. Implemented for parameters, buffers, modes and modules, and options of them.
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
