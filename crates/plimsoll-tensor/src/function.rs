//! User-defined functions: a forward pass that consists of tensor operations, with a custom derivative.
//!
//! An [`Operator`](crate::Operator) has kernels; a [`Function`] consists of tensor operations. The operations in its forward
//! pass are not recorded; its custom derivative replaces theirs. Like `torch.autograd.Function`.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::autocast;
use crate::autocast_mode::ModeGuard;
use crate::autograd::{Saved, Unpacked, is_grad_enabled, no_grad, observe_seconds, place, tensors_left};
use crate::clock;
use crate::data::Data;
use crate::dispatch::Tensors;
use crate::error::{Error, Result};
use crate::operator::{Autocast, Slot};
use crate::second::{self, linked, own};
use crate::tensor::{Derivative, Edge, Grads, Node, Tensor};
use crate::unwind::caught;

/// A forward pass and its derivative.
///
/// ```
/// use plimsoll_tensor::{Device, Function, FunctionBackward, Grads, Result, Save, Tensor, Tensors, apply};
/// /// The identity, whose gradient is turned around.
/// struct Reversal;
/// impl Function for Reversal {
///     fn name(&self) -> &'static str {
///         "reversal"
///     }
///     fn forward(&self, ins: &[&Tensor], _: &mut Save) -> Result<Tensors> {
///         Ok(vec![ins[0].clone()].into())
///     }
///     fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
///         Ok(vec![at.grad(0).map(Tensor::neg).transpose()?].into())
///     }
/// }
/// let x = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// apply(Reversal, &[&x])?[0].sum()?.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [-1.0; 2]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub trait Function: Send + Sync + 'static {
    /// The name to use in errors.
    fn name(&self) -> &'static str;

    /// The cast that autocast applies to the inputs. If it casts them, autocast is off in `forward`. Like `cast_inputs`
    /// of `torch.amp.custom_fwd`.
    fn autocast(&self) -> Autocast {
        Autocast::AsGiven
    }

    /// The input (such as a bias) whose gradient is the sum over the rows of the output's gradient. The operation that computes
    /// the output's gradient can then compute that sum in the same pass.
    fn bias(&self) -> Option<usize> {
        None
    }

    /// Whether `backward` has both a kernel, used if nothing is recorded, and differentiable tensor operations:
    /// [`Operator::has_gradient_kernel`](crate::Operator::has_gradient_kernel).
    fn has_gradient_kernel(&self) -> bool {
        false
    }

    /// Computes the outputs. Nothing inside is recorded; put the tensors that the derivative needs into `save`.
    ///
    /// # Errors
    /// The errors of its operations.
    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors>;

    /// Computes the gradients of the inputs, in the order of the inputs.
    ///
    /// # Errors
    /// The errors of its operations.
    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads>;
}

/// The tensors that a forward pass saves for the derivative.
#[derive(Debug, Default)]
pub struct Save {
    /// Each tensor with its version at the time it was saved.
    tensors: Vec<(Tensor, u32)>,
    name: &'static str,
    /// Once this many tensors are saved, a recomputed checkpointed piece is complete.
    end: Option<usize>,
    /// [`clock::metered`] seconds on this thread until the last tensor was saved.
    seconds: f64,
}

impl Save {
    /// Saves a tensor: an input, an output, or any other tensor. Like `ctx.save_for_backward`. Save inputs before the
    /// outputs are computed, and do not change a saved tensor in place.
    ///
    /// # Errors
    /// [`checkpoint`](crate::checkpoint::checkpoint) is recomputing the function and needs nothing after this tensor.
    /// Return this error to skip the rest of the work.
    pub fn tensor(&mut self, tensor: &Tensor) -> Result<()> {
        self.tensors.push((tensor.clone(), tensor.data().storage.version()));
        self.seconds = clock::metered_until_now().map_or(0.0, |meter| meter.seconds);
        if self.end != Some(self.tensors.len()) {
            return Ok(());
        }
        self.tensors.iter().try_for_each(|(tensor, _)| Saved::new(tensor.data(), self.name).map(drop))
    }
}

/// The arguments of a function's derivative.
pub struct FunctionBackward<'a> {
    name: &'static str,
    node: &'a Arc<Node>,
    grads: &'a [Option<Tensor>],
    wanted: &'a [bool],
    saved: &'a [(Option<Slot>, Saved)],
    unpacked: Unpacked<usize>,
    /// The tensors that replace the saved ones in a second derivative.
    given: Option<&'a [Tensor]>,
}

impl FunctionBackward<'_> {
    /// The gradient of an output; `None` if nothing depends on it.
    pub fn grad(&self, output: usize) -> Option<&Tensor> {
        self.grads.get(output).and_then(Option::as_ref)
    }

    /// Whether the gradient of an input is needed.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted.get(input) == Some(&true)
    }

    /// Whether the operation that made this input needs the sum over the rows of its gradient.
    pub(crate) fn wants_row_sum(&self, input: usize) -> bool {
        self.given.is_none() && self.node.edges()[input].as_ref().is_some_and(Edge::wants_row_sum)
    }

    /// Whether the derivative may change `tensor`, the saved tensor at index `i`, in place: this pass frees the graph, and
    /// nothing else uses these bytes.
    pub(crate) fn owns(&self, i: usize, tensor: &Tensor) -> bool {
        let is_kept = self.saved.get(i).is_some_and(|(_, saved)| !saved.is_packed());
        self.given.is_none() && is_kept && self.node.is_freed() && tensor.data().storage.ref_count() == 2
    }

    /// The saved tensor at index `i`. If the derivative is itself recorded and the tensor was an input or an output, it is part
    /// of the graph. A nested backward pass inside the derivative that asks for its gradient ends at this tensor.
    ///
    /// # Errors
    /// If fewer tensors were saved, or the tensor was changed in place after it was saved.
    pub fn saved(&self, i: usize) -> Result<Tensor> {
        Ok(if is_grad_enabled() && self.given.is_none() { own(&self.linked(i)?) } else { self.linked(i)? })
    }

    fn linked(&self, i: usize) -> Result<Tensor> {
        let Some((slot, saved)) = self.saved.get(i) else {
            let message = format!("tensor {i} of {} saved ones", self.saved.len());
            return Err(Error::argument(self.name, message));
        };
        if let Some(given) = self.given {
            return Ok(given[i].clone());
        }
        let data = self.unpacked.get(i, saved, self.name)?;
        Ok(if is_grad_enabled() { linked(self.node, *slot, data) } else { Tensor::from_data(data) })
    }
}

/// A function that has run and was recorded.
struct Applied<F> {
    function: F,
    saved: Vec<(Option<Slot>, Saved)>,
}

impl<F: Function> Derivative for Applied<F> {
    fn backward(&self, node: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let name = self.function.name();
        let unpacked = Unpacked::default();
        let at = FunctionBackward { name, node, grads, wanted, saved: &self.saved, unpacked, given: None };
        let gradients = || caught(name, "`backward`", || self.function.backward(&at));
        if !is_grad_enabled() || !self.function.has_gradient_kernel() {
            return gradients();
        }
        let results = no_grad(gradients)?;
        let saved = (0..self.saved.len()).map(|i| at.linked(i)).collect::<Result<Vec<_>>>()?;
        second::record(node, &saved, grads, wanted, results)
    }

    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        self.saved.iter().for_each(|(_, saved)| saved.kept(visit));
    }

    fn in_operations(
        &self,
        node: &Arc<Node>,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
        wanted: &[bool],
    ) -> Result<Grads> {
        let name = self.function.name();
        let (unpacked, given) = (Unpacked::default(), Some(saved));
        let at = FunctionBackward { name, node, grads, wanted, saved: &self.saved, unpacked, given };
        caught(name, "`backward`", || self.function.backward(&at))
    }

    fn bias(&self) -> Option<usize> {
        self.function.bias()
    }
}

/// Runs a function and records it as one operation.
///
/// # Errors
/// The errors of its forward pass.
pub fn apply<F: Function>(function: F, ins: &[&Tensor]) -> Result<Tensors> {
    if !autocast::is_enabled() || function.autocast() == Autocast::AsGiven {
        return record(function, ins);
    }
    let cast = autocast::inputs(function.autocast(), ins)?;
    let _off = ModeGuard::to(None);
    match &cast {
        Some(cast) => record(function, &cast.iter().collect::<SmallVec<[&Tensor; 4]>>()),
        None => record(function, ins),
    }
}

fn record<F: Function>(function: F, ins: &[&Tensor]) -> Result<Tensors> {
    let is_recorded = is_grad_enabled() && ins.iter().any(|input| input.requires_grad());
    let name = function.name();
    let mut save = Save { name, end: tensors_left().filter(|_| is_recorded), ..Save::default() };
    let outs = no_grad(|| caught(name, "`forward`", || function.forward(ins, &mut save)))
        .map_err(Error::in_layer)?;
    if !is_recorded {
        return Ok(outs.iter().map(Tensor::detach).collect());
    }
    let slot = |tensor: &Tensor| {
        let input = ins.iter().position(|input| input.is_same(tensor)).map(Slot::Input);
        input.or_else(|| outs.iter().position(|out| out.is_same(tensor)).map(Slot::Output))
    };
    if let Some((_, version)) =
        save.tensors.iter().find(|(it, version)| it.data().storage.version() != *version)
    {
        let message = format!(
            "`forward` changes a tensor in place that it has saved (version {version}): save it afterwards"
        );
        return Err(Error::autograd(name, message));
    }
    let saved = save.tensors.iter().map(|(tensor, _)| Ok((slot(tensor), Saved::new(tensor.data(), name)?)));
    let saved = saved.collect::<Result<Vec<_>>>()?;
    if !saved.is_empty() {
        observe_seconds(save.seconds);
    }
    let node = Node::new(name, ins, outs.len(), Arc::new(Applied { function, saved }), place());
    let linked = |(i, out): (usize, &Tensor)| {
        Tensor::linked(out.data().clone(), out.dtype().is_float().then(|| (node.clone(), i)))
    };
    Ok(outs.iter().enumerate().map(linked).collect())
}
