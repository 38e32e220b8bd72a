//! The trait of layers and models: [`Module`].

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

use plimsoll_tensor::{DType, Device, Error, MemoryFormat, Result, Tensor};

use super::member::{Layer, Member, MemberMut, Members, MembersMut, Replacement, find, find_mut, no_slot};
use super::module_hooks::ModuleHooks;
use super::summary::Summary;
use crate::state_dict::{IncompatibleKeys, SerializeError, StateDict, Strict, TensorSource, load_into};

/// A layer, or a model made of layers. Like `torch.nn.Module`.
///
/// A layer implements `forward` and lists its members ([`members!`](crate::members)); all other methods use that list.
/// Names are the same as in PyTorch's state dicts: the names of the members on the path to a tensor, joined by dots. A
/// module's own parameters come before those of the modules inside it.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let mut model = Sequential::new(&Scope::new(&device, 1))
///     .add("backbone", |s| Linear::new(s, 64, 64))?
///     .add("head", |s| Linear::new(s, 64, 10))?;
/// model.get("backbone").unwrap().requires_grad_(false)?;
/// model.forward(&Tensor::randn(&[8, 64], &device)?)?.sum()?.backward()?;
/// let trained: Vec<_> = model.named_parameters().into_iter().filter(|(_, p)| p.grad().is_some()).collect();
/// assert_eq!(trained.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["head.weight", "head.bias"]);
/// model.to(&Device::sim(SimConfig::new(2 << 30)))?;
/// assert_eq!(model.parameters()[0].label(), "backbone.weight");
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub trait Module: Any + Send + Sync {
    /// Computes the output for this input. A module whose input is not a single tensor omits this method and defines
    /// its own `forward`.
    ///
    /// # Errors
    /// The errors of its operations, for example if sizes do not match or memory runs out.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _ = input;
        let message = format!("{} does not take a single tensor: call its own method", self.kind());
        Err(Error::Argument { op: "forward", message })
    }

    /// Lists the members: see [`members!`](crate::members).
    fn members<'a>(&'a self, list: &mut Members<'a>) {
        let _ = list;
    }

    /// Lists the same members in the same order, mutable.
    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        let _ = list;
    }

    /// The name of the type: `Linear`.
    fn kind(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit("::").next().unwrap_or(path)
    }

    /// The module that this one merely wraps; names, lists and searches then see that module instead.
    #[doc(hidden)]
    fn inner(&self) -> Option<&dyn Module> {
        None
    }

    #[doc(hidden)]
    fn inner_mut(&mut self) -> Option<&mut dyn Module> {
        None
    }

    /// The hooks of a slot.
    #[doc(hidden)]
    fn own_hooks(&self) -> Option<&ModuleHooks> {
        None
    }

    /// Replaces the layer of a slot; returns whether this is a slot.
    #[doc(hidden)]
    fn replace_layer(&mut self, by: &mut Replacement<'_>) -> Result<bool> {
        let _ = by;
        Ok(false)
    }

    /// The module at a path such as `transformer.h.0.attn`. A caller that knows its type can `downcast_ref` it, as
    /// [`Module::apply`] shows. Like `torch.nn.Module.get_submodule`.
    ///
    /// # Errors
    /// If there is no module at this path.
    fn get_submodule(&self, target: &str) -> Result<&dyn Module> {
        find(self, target).map(innermost).ok_or_else(|| {
            let message = format!("`{target}` is not a module of this {}", self.kind());
            Error::Argument { op: "get_submodule", message }
        })
    }

    /// The hooks of the module at a path, which must be in a [`Slot`](super::Slot): functions that its forward and backward pass call.
    ///
    /// # Errors
    /// If there is no slot at this path; the error lists the slots.
    fn hooks(&self, target: &str) -> Result<ModuleHooks> {
        let hooks = find(self, target).and_then(|module| module.own_hooks());
        hooks.cloned().ok_or_else(|| no_slot("hooks", self, target))
    }

    /// Puts a different layer into the [`Slot`](super::Slot) at a path. `make` receives the current layer, which the
    /// new one may keep. Optimizers that have a parameter of the old layer keep it. Like
    /// `torch.nn.Module.set_submodule`.
    ///
    /// # Errors
    /// If there is no slot at this path (the error lists the slots); also the error of `make`. In both cases nothing
    /// has changed.
    fn replace_submodule<L: Layer>(
        &mut self,
        target: &str,
        make: impl FnOnce(Box<dyn Layer>) -> Result<L>,
    ) -> Result<()>
    where
        Self: Sized,
    {
        let mut make = Some(make);
        let mut by = |layer: Box<dyn Layer>| -> Result<Box<dyn Layer>> {
            let Some(make) = make.take() else { return Ok(layer) };
            Ok(Box::new(make(layer)?))
        };
        let replaced = match find_mut(self, target) {
            Some(module) => module.replace_layer(&mut by)?,
            None => false,
        };
        if replaced { Ok(()) } else { Err(no_slot("replace_submodule", self, target)) }
    }

    /// Handles to the parameters, each listed once.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// The parameters with their names, each listed once; a tied parameter is under the first of its names.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        walk(self, &mut |name, member| {
            if let Member::Parameter(parameter) = member
                && seen.insert(parameter.id())
            {
                found.push((name, parameter.tensor().clone()));
            }
        });
        found
    }

    /// The buffers with their names, each listed once.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        walk(self, &mut |name, member| {
            if let Member::Buffer(buffer) = member
                && seen.insert(buffer.id())
            {
                found.push((name, buffer.tensor().clone()));
            }
        });
        found
    }

    /// All modules inside this one, at any depth, with their names; each comes before the modules inside it.
    fn named_modules(&self) -> Vec<(String, &dyn Module)> {
        let mut found = Vec::new();
        walk(self, &mut |name, member| {
            if let Member::Module(module) = member {
                found.push((name, module));
            }
        });
        found
    }

    /// Sets every layer to training mode, which is also the mode of new layers.
    fn train(&self) {
        set_training(self, true);
    }

    /// Sets every layer to evaluation mode: dropout returns its input, batch normalization uses its running statistics. Gradients
    /// are still recorded: see [`plimsoll_tensor::no_grad`].
    fn eval(&self) {
        set_training(self, false);
    }

    /// Makes every parameter require a gradient, or freezes it. Freezing drops a parameter's gradient; forward passes
    /// then save nothing that is needed only for that gradient.
    ///
    /// # Errors
    /// If a parameter's type cannot have a gradient.
    fn requires_grad_(&self, requires_grad: bool) -> Result<()> {
        for parameter in self.parameters() {
            parameter.requires_grad_(requires_grad)?;
            if !requires_grad {
                parameter.clear_grad();
            }
        }
        Ok(())
    }

    /// Drops every parameter's gradient, like PyTorch's `zero_grad(set_to_none=True)`.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Tensor::clear_grad);
    }

    /// Moves every parameter, its gradient and every buffer to a device. All keep their names and their owners; tied
    /// parameters stay tied. Construct optimizers afterwards, because an optimizer updates the parameters that it was
    /// constructed with.
    ///
    /// # Errors
    /// If memory runs out, or if a source has no values, unless the target has none either. On an error the model is
    /// unchanged.
    fn to(&mut self, device: &Device) -> Result<()> {
        want_own_memory("to", &self.parameters())?;
        let mut moved: BTreeMap<usize, Tensor> = BTreeMap::new();
        for (_, tensor) in self.named_parameters().into_iter().chain(self.named_buffers()) {
            moved.insert(tensor.id(), tensor.leaf_to_device(device)?);
        }
        replace(self, &moved);
        Ok(())
    }

    /// Converts every parameter, its gradient and every floating-point buffer to a type, like PyTorch's `Module.to(dtype)`.
    /// Tensors are converted one at a time: the old one is freed before the next is converted.
    ///
    /// # Errors
    /// If the type is not floating-point, or memory runs out, in which case some tensors are already converted.
    fn to_dtype(&mut self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            return Err(Error::DType { op: "to_dtype", expected: "a floating-point type", got: dtype });
        }
        want_own_memory("to_dtype", &self.parameters())?;
        let tensors = self.named_parameters().into_iter().chain(self.named_buffers());
        for (_, tensor) in tensors.filter(|(_, tensor)| tensor.dtype().is_float()) {
            let (id, grad) = (tensor.id(), tensor.grad());
            // The gradient is converted after the old values are freed.
            tensor.clear_grad();
            let converted = match tensor.leaf_to_dtype(dtype) {
                Ok(converted) => converted,
                Err(error) => {
                    tensor.set_grad(grad)?;
                    return Err(error);
                }
            };
            replace(self, &BTreeMap::from([(id, converted.clone())]));
            drop(tensor);
            converted.set_grad(grad.map(|grad| grad.leaf_to_dtype(dtype)).transpose()?)?;
        }
        Ok(())
    }

    /// Converts every parameter with four or five dimensions, its gradient, and such buffers to a memory format, like
    /// PyTorch's `Module.to(memory_format=…)`. Convolutions of channels-last images are fastest if the filters are
    /// channels-last too.
    ///
    /// # Errors
    /// If memory runs out; some tensors are then already converted.
    fn to_memory_format(&mut self, format: MemoryFormat) -> Result<()> {
        want_own_memory("to_memory_format", &self.parameters())?;
        let tensors = self.named_parameters().into_iter().chain(self.named_buffers());
        for (_, tensor) in tensors.filter(|(_, tensor)| matches!(tensor.rank(), 4 | 5)) {
            let converted = BTreeMap::from([(tensor.id(), tensor.leaf_to_memory_format(format)?)]);
            replace(self, &converted);
        }
        Ok(())
    }

    /// Moves every parameter, its gradient and every buffer to the process's host device. Like `torch.nn.Module.cpu`.
    ///
    /// # Errors
    /// The same errors as [`Module::to`].
    fn cpu(&mut self) -> Result<()> {
        self.to(&Device::cpu())
    }

    /// Converts to `float16`. Like `torch.nn.Module.half`.
    ///
    /// # Errors
    /// The same errors as [`Module::to_dtype`].
    fn half(&mut self) -> Result<()> {
        self.to_dtype(DType::F16)
    }

    /// Converts to `bfloat16`. Like `torch.nn.Module.bfloat16`.
    ///
    /// # Errors
    /// The same errors as [`Module::to_dtype`].
    fn bfloat16(&mut self) -> Result<()> {
        self.to_dtype(DType::BF16)
    }

    /// Converts to `float32`. Like `torch.nn.Module.float`.
    ///
    /// # Errors
    /// The same errors as [`Module::to_dtype`].
    fn float(&mut self) -> Result<()> {
        self.to_dtype(DType::F32)
    }

    /// Converts to `float64`. Like `torch.nn.Module.double`.
    ///
    /// # Errors
    /// The same errors as [`Module::to_dtype`].
    fn double(&mut self) -> Result<()> {
        self.to_dtype(DType::F64)
    }

    /// Calls `f` with every module inside this one, then with this one, like `torch.nn.Module.apply`: a module comes
    /// after the modules inside it. `f` can find a layer's type with `downcast_mut`.
    ///
    /// ```
    /// use std::any::Any;
    /// use plimsoll::nn::{Linear, Module, Scope, Sequential};
    /// use plimsoll::{Device, no_grad};
    /// let mut model = Sequential::new(&Scope::new(&Device::cpu(), 1)).add("fc", |s| Linear::new(s, 4, 2))?;
    /// model.apply(&mut |module| {
    ///     let Some(linear) = (module as &mut dyn Any).downcast_mut::<Linear>() else { return Ok(()) };
    ///     no_grad(|| linear.weight().fill_(0.5))
    /// })?;
    /// assert_eq!(model.parameters()[0].to_vec::<f32>()?, [0.5; 8]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first error of `f`.
    fn apply(&mut self, f: &mut dyn FnMut(&mut dyn Module) -> Result<()>) -> Result<()>
    where
        Self: Sized,
    {
        apply(self, f)
    }

    /// Parameters and persistent buffers; a tied parameter is listed under each of its names. The tensors are the model's, not
    /// copies. Like `torch.nn.Module.state_dict`.
    fn state_dict(&self) -> StateDict {
        let mut dict = StateDict::default();
        walk(self, &mut |name, member| match member {
            Member::Parameter(parameter) => dict.insert(name, parameter.tensor().clone()),
            Member::Buffer(buffer) if buffer.is_persistent() => dict.insert(name, buffer.tensor().clone()),
            _ => {}
        });
        dict
    }

    /// Copies the tensors of a state dict or file into the model's tensors, one at a time. Like
    /// `torch.nn.Module.load_state_dict`.
    ///
    /// # Errors
    /// A list of all missing, unexpected and misshaped names ([`crate::serialize::IncompatibleKeys`]), in which case
    /// nothing has changed; also if the file is damaged, or memory runs out.
    fn load_state_dict(
        &self,
        source: &dyn TensorSource,
        strict: Strict,
    ) -> Result<IncompatibleKeys, SerializeError> {
        load_into(&self.state_dict(), self.kind(), source, strict)
    }

    /// Parameters, buffers and bytes of each module; displayed as a table.
    fn summary(&self) -> Summary {
        let mut own = Members::default();
        self.members(&mut own);
        let modules = self.named_modules().into_iter().map(|(name, module)| {
            let mut members = Members::default();
            module.members(&mut members);
            (name, module.kind(), members)
        });
        Summary::of(self.kind(), own, modules)
    }
}

/// # Errors
/// If a parameter is sharded: its rows are elsewhere, and would not be moved.
fn want_own_memory(op: &'static str, parameters: &[Tensor]) -> Result<()> {
    match parameters.iter().find(|parameter| parameter.is_lent()) {
        None => Ok(()),
        Some(parameter) => {
            let message =
                format!("{} is sharded: move and convert a model before `fully_shard`", parameter.label());
            Err(Error::argument(op, message))
        }
    }
}

fn apply(module: &mut dyn Module, f: &mut dyn FnMut(&mut dyn Module) -> Result<()>) -> Result<()> {
    let mut list = MembersMut::default();
    module.members_mut(&mut list);
    for (_, member) in list.0 {
        if let MemberMut::Module(inner) = member {
            apply(inner, f)?;
        }
    }
    f(innermost_mut(module))
}

/// The module itself, or the one that it merely wraps.
pub(super) fn innermost(module: &dyn Module) -> &dyn Module {
    module.inner().map_or(module, innermost)
}

fn innermost_mut(module: &mut dyn Module) -> &mut dyn Module {
    match module.inner().is_some() {
        true => match module.inner_mut() {
            Some(inner) => innermost_mut(inner),
            None => unreachable!("a module that holds another one holds it mutably too"),
        },
        false => module,
    }
}

/// Replaces parameters and buffers, which are identified by their ids.
pub(crate) fn replace<M: Module + ?Sized>(module: &mut M, by: &BTreeMap<usize, Tensor>) {
    walk_mut(module, &mut |member| match member {
        MemberMut::Parameter(parameter) => {
            if let Some(tensor) = by.get(&parameter.id()) {
                parameter.replace(tensor.clone());
            }
        }
        MemberMut::Buffer(buffer) => {
            if let Some(tensor) = by.get(&buffer.id()) {
                buffer.replace(tensor.clone());
            }
        }
        MemberMut::Module(_) => {}
    });
}

fn set_training<M: Module + ?Sized>(module: &M, training: bool) {
    walk(module, &mut |_, member| {
        if let Member::Mode(mode) = member {
            mode.set_training(training);
        }
    });
}

/// Calls `visit` with every member at any depth and its name. A module's own tensors come first, as in PyTorch.
pub(super) fn walk<'a, M: Module + ?Sized>(module: &'a M, visit: &mut dyn FnMut(String, Member<'a>)) {
    let mut list = Members::default();
    module.members(&mut list);
    walk_list(list, "", visit);
}

fn walk_list<'a>(list: Members<'a>, prefix: &str, visit: &mut dyn FnMut(String, Member<'a>)) {
    let (inner, own): (Vec<_>, Vec<_>) =
        list.0.into_iter().partition(|(_, member)| matches!(member, Member::Module(_)));
    for (name, member) in own {
        if let Member::Parameter(parameter) = member {
            parameter.set_listed();
        }
        visit(join(prefix, &name), member);
    }
    for (name, member) in inner {
        let path = join(prefix, &name);
        visit(
            path.clone(),
            match member {
                Member::Module(module) => Member::Module(innermost(module)),
                own => own,
            },
        );
        if let Member::Module(module) = member {
            let mut list = Members::default();
            module.members(&mut list);
            walk_list(list, &path, visit);
        }
    }
}

pub(super) fn walk_mut<M: Module + ?Sized>(module: &mut M, visit: &mut dyn FnMut(MemberMut<'_>)) {
    let mut list = MembersMut::default();
    module.members_mut(&mut list);
    for (_, member) in list.0 {
        match member {
            MemberMut::Module(inner) => walk_inner_mut(inner, visit),
            own => visit(own),
        }
    }
}

fn walk_inner_mut(module: &mut dyn Module, visit: &mut dyn FnMut(MemberMut<'_>)) {
    walk_mut(module, visit);
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}
