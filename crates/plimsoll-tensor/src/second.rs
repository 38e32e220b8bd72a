//! Second derivatives.
//!
//! Gradients that a kernel computes cannot be differentiated directly. In a recorded backward pass ([`record`]), the kernel
//! still computes the gradients, so they are bit-identical to those of a plain pass. Only the kernel's inputs are
//! saved, no intermediates. A second derivative then runs the equivalent tensor operations and differentiates those.
//!
//! Within a derivative, a saved tensor must not lead to the tensors that it was computed from: if one of two saved tensors
//! depends on the other, its contribution would be counted twice. [`own`] makes a saved tensor the start of a separate graph.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::autograd::{GradOptions, Saved, enable_grad, grad, is_grad_enabled, place};
use crate::data::Data;
use crate::error::Result;
use crate::tensor::{Derivative, Grads, Keep, Node, Tensor};

/// An input or output of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Input(usize),
    Output(usize),
}

/// An identity operation that passes the gradient on.
struct Alias;

impl Derivative for Alias {
    fn backward(&self, _: &Arc<Node>, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        Ok(smallvec![grads[0].clone()])
    }
}

/// The same values, as the start of a graph: a backward pass that asks for their gradient ends here. If passes are
/// recorded, the graph still continues to `x`.
pub(crate) fn own(x: &Tensor) -> Tensor {
    if !x.dtype().is_float() || !x.requires_grad() {
        return x.clone();
    }
    let node = Node::new("alias", &[x], 1, Arc::new(Alias), None);
    Tensor::linked(x.data().clone(), Some((node, 0)))
}

/// Graph starts with the values of `ins`, for a nested derivative: leaves or, if this pass is recorded, their [`own`].
fn starts(ins: &[Tensor], wanted: impl Fn(usize) -> bool) -> Result<Vec<Tensor>> {
    let start = |(i, x): (usize, &Tensor)| match is_grad_enabled() {
        true => Ok(own(x)),
        false if wanted(i) && x.dtype().is_float() => x.detach().requires_grad_(true),
        false => Ok(x.detach()),
    };
    ins.iter().enumerate().map(start).collect()
}

/// Casts 16-bit floats to their compute type, so that intermediates are not rounded and do not overflow.
fn wide(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { x.to_dtype(x.dtype().accumulator()) } else { Ok(x.clone()) }
}

/// The requested gradients of `ins`, computed from the gradients of `f`'s outputs by differentiating the operations
/// that `f` records.
pub(crate) fn through(
    ins: &[Tensor],
    wanted: impl Fn(usize) -> bool,
    grads: &[Option<Tensor>],
    f: impl FnOnce(&[Tensor]) -> Result<Grads>,
) -> Result<Grads> {
    let mut f = Some(f);
    let once = &mut |starts: &[Tensor]| match f.take() {
        Some(f) => f(starts),
        None => unreachable!("called once"),
    };
    through_operations(ins, &wanted, grads, once)
}

/// [`through`], compiled once, not for each operation.
fn through_operations(
    ins: &[Tensor],
    wanted: &dyn Fn(usize) -> bool,
    grads: &[Option<Tensor>],
    f: &mut dyn FnMut(&[Tensor]) -> Result<Grads>,
) -> Result<Grads> {
    let starts = starts(ins, wanted)?;
    let outs = enable_grad(|| f(&starts.iter().map(wide).collect::<Result<Vec<_>>>()?))?;
    let (mut roots, mut gradients) = (Vec::new(), Vec::new());
    for (out, grad) in outs.iter().zip(grads) {
        if let (Some(out), Some(grad)) = (out.as_ref().filter(|out| out.requires_grad()), grad) {
            roots.push(out);
            gradients.push(Some(grad.to_dtype(out.dtype())?));
        }
    }
    let is_asked = |i: usize| wanted(i) && starts[i].requires_grad();
    let asked: Vec<&Tensor> = (0..ins.len()).filter(|&i| is_asked(i)).map(|i| &starts[i]).collect();
    if roots.is_empty() || asked.is_empty() {
        return Ok(smallvec![None; ins.len()]);
    }
    let options = GradOptions {
        gradients,
        create_graph: is_grad_enabled(),
        allow_unused: true,
        ..GradOptions::default()
    };
    let mut found = grad(&roots, &asked, options)?.into_iter();
    Ok((0..ins.len()).map(|i| if is_asked(i) { found.next().flatten() } else { None }).collect())
}

/// Records the derivative of `node` as an operation whose outputs are the gradients that it computed. Its inputs are the saved
/// tensors, as linked in the graph, and the incoming gradients.
///
/// # Errors
/// If the tensor cannot be saved.
pub(crate) fn record(
    node: &Arc<Node>,
    saved: &[Tensor],
    grads: &[Option<Tensor>],
    wanted: &[bool],
    results: Grads,
) -> Result<Grads> {
    let ins: SmallVec<[&Tensor; 8]> = saved.iter().chain(grads.iter().flatten()).collect();
    if !ins.iter().any(|x| x.requires_grad()) {
        return Ok(results);
    }
    let name = node.name();
    let derivative = RecordedDerivative {
        derivative: node.derivative(Keep::Retain)?,
        of: node.clone(),
        kept: ins.iter().map(|x| Saved::new(x.data(), name)).collect::<Result<_>>()?,
        saved: saved.len(),
        has_grad: grads.iter().map(Option::is_some).collect(),
        wanted: SmallVec::from_slice(wanted),
    };
    let made = Node::new(name, &ins, results.len(), Arc::new(derivative), place());
    let linked = |(i, result): (usize, Option<Tensor>)| {
        result.map(|result| Tensor::linked(result.data().clone(), Some((made.clone(), i))))
    };
    Ok(results.into_iter().enumerate().map(linked).collect())
}

/// A derivative that a kernel computed, with its inputs.
struct RecordedDerivative {
    derivative: Arc<dyn Derivative>,
    of: Arc<Node>,
    /// The saved tensors of the derivative, followed by the incoming gradients.
    kept: SmallVec<[Saved; 6]>,
    saved: usize,
    has_grad: SmallVec<[bool; 4]>,
    wanted: SmallVec<[bool; 4]>,
}

impl Derivative for RecordedDerivative {
    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        self.kept.iter().for_each(|saved| saved.kept(visit));
    }

    fn backward(&self, node: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let mut ins: Vec<Tensor> = Vec::new();
        for (kept, edge) in self.kept.iter().zip(node.edges()) {
            let data = kept.get(node.name())?;
            ins.push(match edge {
                Some(edge) if is_grad_enabled() => Tensor::relinked(data, edge),
                _ => Tensor::from_data(data),
            });
        }
        through(
            &ins,
            |i| wanted[i],
            grads,
            |ins| {
                let (saved, came_in) = ins.split_at(self.saved);
                let mut came_in = came_in.iter().cloned();
                let first: SmallVec<[Option<Tensor>; 4]> =
                    self.has_grad.iter().map(|has| if *has { came_in.next() } else { None }).collect();
                self.derivative.in_operations(&self.of, saved, &first, &self.wanted)
            },
        )
    }
}

/// A tensor that an operation saved, as linked in the graph.
pub(crate) fn linked(node: &Arc<Node>, slot: Option<Slot>, data: Data) -> Tensor {
    match slot {
        Some(Slot::Input(i)) => match &node.edges()[i] {
            Some(edge) => Tensor::relinked(data, edge),
            None => Tensor::from_data(data),
        },
        Some(Slot::Output(i)) if data.dtype.is_float() => Tensor::linked(data, Some((node.clone(), i))),
        _ => Tensor::from_data(data),
    }
}
