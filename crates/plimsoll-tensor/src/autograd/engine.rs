//! The backward pass: derivatives run newest first, and each is dropped with its saved tensors as soon as it has run.
//!
//! The order decides when memory is freed, and so which addresses are reused:
//!
//! 1. Nodes run in descending order of their sequence number. An operation is recorded after its inputs, so all gradients that
//!    a node waits for have arrived when its turn comes.
//! 2. The hooks of a node's outputs run on their gradients. The derivative is called; then the incoming gradients are dropped;
//!    then the derivative with its saved tensors; only then are its results passed on, in the order of the inputs.
//! 3. A gradient that reaches a leaf is accumulated at once. The first one is stored without a copy if nothing else uses it,
//!    and copied otherwise. A leaf that has hooks, or whose gradient was requested by `grad`, waits for its last gradient.
//! 4. A second gradient for the same output of a node, or for the same waiting leaf, is added to the first: in place if nothing
//!    else uses the first.
//!
//! No lock is held while a derivative or a hook runs, or while memory is allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::anomaly;
use super::grad_mode::{ModeGuard, is_grad_enabled};
use super::plan::Plan;
use crate::autocast_mode;
use crate::error::{Error, Result};
use crate::label::{self, Category, LabelId, Span};
use crate::stream::{self, Stream, with_stream};
use crate::tensor::{Edge, Grads, Keep, Node, Tensor};
use crate::unwind::caught;

/// Gradients that wait for their node, by the node's sequence number.
type Waiting = BTreeMap<u64, (Arc<Node>, Grads)>;

/// One backward pass.
pub(super) struct Pass<'a> {
    plan: Plan,
    /// The tensors whose gradients are returned instead of accumulated in leaves, and the gradients found so far.
    targets: Option<&'a [Edge]>,
    found: Vec<Option<Tensor>>,
    waiting: Waiting,
    /// Leaves that wait for their last gradient, by id.
    leaves: BTreeMap<usize, (Tensor, Option<Tensor>)>,
}

impl<'a> Pass<'a> {
    /// Runs from the roots with their initial gradients. Returns the gradients of the targets.
    pub(super) fn run(
        roots: Vec<(Edge, Tensor)>,
        targets: Option<&'a [Edge]>,
        keep: Keep,
        create_graph: bool,
    ) -> Result<Vec<Option<Tensor>>> {
        let _recorded = ModeGuard::to(create_graph);
        let edges: Vec<Edge> = roots.iter().map(|(edge, _)| edge.clone()).collect();
        let mut pass = Pass {
            plan: Plan::of(&edges, targets),
            targets,
            found: vec![None; targets.map_or(0, <[Edge]>::len)],
            waiting: Waiting::new(),
            leaves: BTreeMap::new(),
        };
        drop(edges);
        for (edge, start) in roots {
            pass.send(&edge, Some(start))?;
        }
        while let Some((_, (node, grads))) = pass.waiting.pop_last() {
            let grads = pass.arrived(&node, grads)?;
            if !pass.plan.needs(&node) {
                continue;
            }
            let results = on_its_stream(&node, grads, |grads| derive(&node, grads, keep))?;
            for (edge, grad) in node.edges().iter().zip(results) {
                if let Some(edge) = edge {
                    pass.send(edge, grad)?;
                }
            }
        }
        // Leaves that an operation leads to, but that got no gradient from it.
        while let Some(&id) = pass.leaves.keys().next() {
            pass.finish(id)?;
        }
        Ok(pass.found)
    }

    /// The gradients of a node's outputs after its hooks. Requested gradients are stored.
    fn arrived(&mut self, node: &Arc<Node>, mut grads: Grads) -> Result<Grads> {
        if let Some(hooks) = node.hooks() {
            for (output, grad) in grads.iter_mut().enumerate() {
                let changed = |grad| hooked(node.name(), node.layer, || hooks.gradient(output, grad));
                *grad = grad.take().map(changed).transpose()?;
            }
        }
        for (i, target) in self.targets.unwrap_or_default().iter().enumerate() {
            if let Edge::Node(to, output) = target
                && Arc::ptr_eq(to, node)
            {
                self.found[i].clone_from(&grads[*output]);
            }
        }
        Ok(grads)
    }

    /// Passes a gradient along an edge.
    fn send(&mut self, edge: &Edge, grad: Option<Tensor>) -> Result<()> {
        match (edge, grad) {
            (Edge::Leaf(leaf), grad) => self.reach_leaf(leaf, grad),
            (Edge::Node(..), None) => Ok(()),
            (Edge::Node(node, output), Some(grad)) => {
                let (_, grads) = self
                    .waiting
                    .entry(node.sequence)
                    .or_insert_with(|| (node.clone(), smallvec![None; node.outputs]));
                let sum = sum_of(grads[*output].take(), grad)?;
                grads[*output] = Some(sum);
                Ok(())
            }
        }
    }

    fn reach_leaf(&mut self, leaf: &Tensor, grad: Option<Tensor>) -> Result<()> {
        let Some(coming) = self.plan.coming.get_mut(&leaf.id()) else {
            return match grad {
                Some(grad) if self.targets.is_none() => accumulate(leaf, grad),
                _ => Ok(()),
            };
        };
        *coming -= 1;
        let last = *coming == 0;
        let (_, slot) = self.leaves.entry(leaf.id()).or_insert_with(|| (leaf.clone(), None));
        if let Some(grad) = grad {
            *slot = Some(sum_of(slot.take(), grad)?);
        }
        if last { self.finish(leaf.id()) } else { Ok(()) }
    }

    /// Accumulates or returns the complete gradient of a leaf.
    fn finish(&mut self, id: usize) -> Result<()> {
        let Some((leaf, Some(grad))) = self.leaves.remove(&id) else { return Ok(()) };
        let hooks = leaf.leaf_hooks();
        let grad = match hooks {
            Some(hooks) => hooked(ACCUMULATE, leaf.label_id(), || hooks.gradient(0, grad))?,
            None => grad,
        };
        let Some(targets) = self.targets else {
            accumulate(&leaf, grad)?;
            let Some(hooks) = hooks else { return Ok(()) };
            return hooked(ACCUMULATE, leaf.label_id(), || hooks.accumulated(&leaf));
        };
        for (i, target) in targets.iter().enumerate() {
            if matches!(target, Edge::Leaf(to) if to.is_same(&leaf)) {
                self.found[i] = Some(grad.clone());
            }
        }
        Ok(())
    }
}

/// Calls the hooks of an operation's outputs, or of a leaf.
fn hooked<T>(op: &'static str, owner: LabelId, call: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(op, "it", call).map_err(|cause| {
        let owner = label::text(owner);
        Error::Hook { op, owner, cause: Box::new(cause) }
    })
}

/// The name of the step that accumulates a leaf's gradient. Like PyTorch's `AccumulateGrad`.
const ACCUMULATE: &str = "accumulate_grad";

/// Runs a derivative on the stream that its operation ran on, as PyTorch does. That stream first waits for the caller's stream,
/// which produced the gradients; afterwards the caller's stream waits for it.
fn on_its_stream(node: &Node, grads: Grads, f: impl FnOnce(Grads) -> Result<Grads>) -> Result<Grads> {
    let device = grads.iter().flatten().next().map(Tensor::device);
    let Some(device) = device.filter(|device| stream::current(device) != node.stream) else {
        return f(grads);
    };
    let (here, there) = (device.current_stream(), Stream::numbered(device, node.stream));
    there.wait_stream(&here)?;
    let results = with_stream(&there, || f(grads))?;
    here.wait_stream(&there)?;
    Ok(results)
}

/// Calls one derivative under its layer's name, and checks its results.
fn derive(node: &Arc<Node>, grads: Grads, keep: Keep) -> Result<Grads> {
    let _owner = Span::layer(label::backward_of(node.layer));
    // A derivative computes in the dtypes of its operation, regardless of the current autocast mode.
    let _as_recorded = autocast_mode::lower().map(|_| autocast_mode::ModeGuard::to(None));
    let derivative = node.derivative(keep)?;
    let wanted: SmallVec<[bool; 4]> = node.edges().iter().map(Option::is_some).collect();
    let mut results = derivative.backward(node, &grads, &wanted).map_err(Error::in_layer)?;
    drop(grads);
    drop(derivative);
    if results.len() != wanted.len() {
        let message =
            format!("its derivative returned {} gradients for {} inputs", results.len(), wanted.len());
        return Err(wrong(node, &message));
    }
    for (i, (result, (shape, dtype))) in results.iter_mut().zip(node.ins()).enumerate() {
        let Some(grad) = result else { continue };
        // An input that promotion or autocast converted gets its gradient in the converted dtype: convert it back.
        if grad.dtype() != *dtype && grad.dtype().is_float() && dtype.is_float() {
            *grad = grad.to_dtype(*dtype)?;
        }
        if grad.shape() != shape.as_slice() || grad.dtype() != *dtype {
            let got = format!("{:?} of {}", grad.shape(), grad.dtype());
            let message = format!(
                "its derivative returned a gradient {got} for input {i}, which is {shape:?} of {dtype}"
            );
            return Err(wrong(node, &message));
        }
    }
    anomaly::check(node, &results)?;
    Ok(results)
}

fn wrong(node: &Node, message: &str) -> Error {
    let owner = label::text(node.layer);
    let owner = if owner.is_empty() { owner } else { format!(" (in {owner})") };
    Error::autograd(node.name(), format!("{message}{owner}"))
}

/// The sum of both gradients, computed in place in the first if nothing else uses it.
fn sum_of(first: Option<Tensor>, second: Tensor) -> Result<Tensor> {
    match first {
        None => Ok(second),
        Some(first) if !is_grad_enabled() && first.is_unique() && first.is_contiguous() => {
            first.add_(&second)?;
            Ok(first)
        }
        Some(first) => &first + &second,
    }
}

/// Adds to a leaf's gradient. No lock is held while memory is allocated: an observer of the allocator may read this very
/// gradient.
fn accumulate(leaf: &Tensor, grad: Tensor) -> Result<()> {
    if is_grad_enabled() {
        let sum = leaf.grad().map_or(Ok(grad.clone()), |sum| &sum + &grad)?;
        leaf.put_grad(Some(sum));
        return Ok(());
    }
    if let Some(sum) = leaf.grad() {
        return sum.add_(&grad);
    }
    // Another thread's pass may have set a gradient in the meantime: add to that one.
    match leaf.set_first_grad(first_gradient(leaf, grad)?) {
        None => Ok(()),
        Some((sum, late)) => sum.add_(&late),
    }
}

/// Makes a gradient that nothing else uses, to store in the leaf. Its layout is row-major or the leaf's.
fn first_gradient(leaf: &Tensor, grad: Tensor) -> Result<Tensor> {
    let (category, label) = (Category::Gradient, leaf.label_id());
    let lies_well = || grad.is_contiguous() || grad.data().layout == leaf.data().layout.dense();
    if grad.is_unique() && lies_well() {
        grad.set_owner(category, label);
        return Ok(grad);
    }
    let _owner = Span::of(category, label);
    grad.copy()
}
