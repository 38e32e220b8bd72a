//! The tensors of a layer: parameters, which are trained, and buffers, which are not.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use plimsoll_tensor::label::{Category, LabelId, intern};
use plimsoll_tensor::{Result, Tensor};

use super::made::{Made, Model};
use super::tensor_parallel::Part;

/// A trained tensor. Like `torch.nn.Parameter`: a leaf that requires a gradient.
///
/// Its name is its path in the model ([`super::Module::named_parameters`]); its owner is the label under which its
/// bytes are counted ([`Tensor::label`]). [`super::Scope`] makes the two equal. A clone refers to the same parameter,
/// so clone a parameter to tie weights.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::Device;
/// // An output layer that shares its weight with another layer.
/// let scope = Scope::new(&Device::cpu(), 1);
/// let first = Linear::without_bias(&scope.at("first"), 4, 4)?;
/// let tied = Linear::of(&scope.at("tied"), first.weight().clone(), None);
/// let model = Sequential::new(&scope).add("first", |_| Ok(first))?.add("tied", |_| Ok(tied))?;
/// assert_eq!(model.parameters().len(), 1);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone)]
pub struct Parameter {
    tensor: Tensor,
    made: Arc<Made>,
}

impl Parameter {
    /// Turns a leaf into a parameter: it requires a gradient, and its bytes are counted as a parameter's.
    ///
    /// # Errors
    /// If the tensor is the result of an operation, or a type cannot have a gradient.
    pub fn new(tensor: &Tensor) -> Result<Parameter> {
        Parameter::made(tensor, &tensor.label(), None)
    }

    /// Like [`Parameter::new`], as a parameter of a model under construction.
    pub(super) fn made(tensor: &Tensor, path: &str, model: Option<&Arc<Model>>) -> Result<Parameter> {
        let tensor = tensor.requires_grad_(true)?;
        tensor.set_owner(Category::Parameter, label_of(&tensor));
        let made = Made::of(&tensor, path, model, false);
        Ok(Parameter { tensor, made })
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Records that this is one rank's part of a parameter that several ranks share.
    pub(super) fn set_part(&self, part: Part) {
        self.made.set_part(part);
    }

    /// Records that a module lists this parameter.
    pub(super) fn set_listed(&self) {
        self.made.set_listed();
    }

    /// Temporarily replaces the parameter's tensor. Returns the previous one.
    pub(super) fn swap(&mut self, tensor: Tensor) -> Tensor {
        std::mem::replace(&mut self.tensor, tensor)
    }

    pub(super) fn replace(&mut self, tensor: Tensor) {
        if tensor.is_same(&self.tensor) {
            return;
        }
        self.made = self.made.replaced_by(&tensor);
        self.tensor.set_replaced();
        self.tensor = tensor;
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parameter").field(&self.tensor).finish()
    }
}

/// The values, as PyTorch prints them:
///
/// ```
/// use plimsoll::nn::{Init, Scope};
/// let gamma = Scope::new(&plimsoll::Device::cpu(), 1).parameter("gamma", &[2], Init::Ones)?;
/// assert_eq!(gamma.to_string(), "Parameter containing:\ntensor([1., 1.], requires_grad=True)");
/// # Ok::<(), plimsoll::Error>(())
/// ```
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameter containing:\n{}", self.tensor)
    }
}

impl AsRef<Tensor> for Parameter {
    fn as_ref(&self) -> &Tensor {
        &self.tensor
    }
}

/// A parameter as an optional argument, such as a bias: `x.linear(&self.weight, &self.bias)`.
impl<'a> From<&'a Parameter> for Option<&'a Tensor> {
    fn from(parameter: &'a Parameter) -> Option<&'a Tensor> {
        Some(parameter)
    }
}

impl Deref for Parameter {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

/// A tensor that belongs to a layer and is not trained, such as running means. Like `torch.nn.Buffer`.
///
/// ```
/// use plimsoll::nn::{Init, Scope};
/// use plimsoll::{Device, Tensor};
/// let scope = Scope::new(&Device::cpu(), 1).at("bn");
/// let mean = scope.buffer("running_mean", |device| Tensor::zeros(&[8], device))?;
/// assert_eq!((mean.label(), mean.requires_grad()), ("bn.running_mean".to_owned(), false));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffer {
    tensor: Tensor,
    persistent: bool,
}

impl Buffer {
    /// Turns a tensor into a buffer: its bytes are counted as a buffer's.
    pub fn new(tensor: &Tensor) -> Buffer {
        tensor.set_owner(Category::Buffer, label_of(tensor));
        Buffer { tensor: tensor.clone(), persistent: true }
    }

    /// The same buffer, left out of state dicts; `persistent=False` in PyTorch.
    #[must_use]
    pub fn not_persistent(mut self) -> Buffer {
        self.persistent = false;
        self
    }

    /// Whether state dicts include the buffer.
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Temporarily replaces the buffer's tensor. Returns the previous one.
    pub(super) fn swap(&mut self, tensor: Tensor) -> Tensor {
        std::mem::replace(&mut self.tensor, tensor)
    }

    pub(super) fn replace(&mut self, tensor: Tensor) {
        self.tensor = tensor;
    }
}

/// The values, like those of a tensor.
impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.tensor, f)
    }
}

impl AsRef<Tensor> for Buffer {
    fn as_ref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Deref for Buffer {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

fn label_of(tensor: &Tensor) -> LabelId {
    intern(&tensor.label())
}

/// `tensor + &parameter` and so on, for owned and borrowed tensors.
macro_rules! operators {
    ($($trait:ident $method:ident)*) => {$(
        impl std::ops::$trait<&Parameter> for Tensor {
            type Output = Result<Tensor>;
            fn $method(self, parameter: &Parameter) -> Result<Tensor> {
                Tensor::$method(&self, parameter)
            }
        }

        impl std::ops::$trait<&Parameter> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, parameter: &Parameter) -> Result<Tensor> {
                Tensor::$method(self, parameter)
            }
        }
    )*};
}
operators!(Add add Sub sub Mul mul Div div);
