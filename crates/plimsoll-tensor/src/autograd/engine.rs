//! The way back: derivatives newest first, each dropped with what it saved as soon as it has run.
//!
//! The order decides when memory is freed and so which addresses are reused. It is:
//!
//! 1. Nodes run in falling order of their sequence number. An operation is recorded after its inputs, so
//!    every gradient that a node waits for is there when its turn comes.
//! 2. A node's derivative is called; then the gradients that came in are dropped; then the derivative with
//!    its saved tensors; and only then do its results travel on, in the order of the inputs.
//! 3. A gradient that reaches a leaf is accumulated at once. The first one is kept as it is where nobody
//!    else looks at it, and copied otherwise.
//! 4. A second gradient for the same output of a node is added to the first, in place where that is seen
//!    by nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::grad_mode::no_grad;
use crate::error::{Error, Result};
use crate::label::{self, Category, Span};
use crate::tensor::{Edge, Grads, Keep, Node, Tensor};

/// How a backward pass starts and ends.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The gradient to start from; `None` means 1 and needs a scalar.
    pub gradient: Option<Tensor>,
    /// Keep the graph, and what it saved, for another backward pass.
    pub retain_graph: bool,
}

/// Gradients on their way, by the sequence number of the node they wait at.
type Waiting = BTreeMap<u64, (Arc<Node>, Grads)>;

impl Tensor {
    /// Computes the gradients of this scalar with respect to every leaf that wants one, and frees the
    /// graph on the way. As `Tensor.backward()`.
    ///
    /// # Errors
    /// A tensor that is not a scalar, or that wants no gradient; a graph that was freed before; a saved
    /// tensor that was changed in place; out of memory.
    pub fn backward(&self) -> Result<()> {
        self.backward_with(BackwardOptions::default())
    }

    /// [`Tensor::backward`] with a gradient to start from, or keeping the graph for another pass.
    ///
    /// # Errors
    /// As [`Tensor::backward`]; a starting gradient of another shape.
    pub fn backward_with(&self, options: BackwardOptions) -> Result<()> {
        backward(self, options)
    }
}

fn backward(root: &Tensor, options: BackwardOptions) -> Result<()> {
    let Some(edge) = root.edge() else {
        let message = "this tensor wants no gradient: nothing it was made from requires one, or it was made \
                       without recording";
        return Err(Error::autograd("backward", message));
    };
    let start = starting_gradient(root, options.gradient)?;
    let keep = if options.retain_graph { Keep::Retain } else { Keep::Free };
    no_grad(|| {
        let mut waiting = Waiting::new();
        send(&mut waiting, &edge, start)?;
        while let Some((_, (node, grads))) = waiting.pop_last() {
            let results = run(&node, grads, keep)?;
            for (edge, grad) in node.edges().iter().zip(results) {
                if let (Some(edge), Some(grad)) = (edge, grad) {
                    send(&mut waiting, edge, grad)?;
                }
            }
        }
        Ok(())
    })
}

fn starting_gradient(root: &Tensor, given: Option<Tensor>) -> Result<Tensor> {
    match given {
        None if root.numel() == 1 => root.ones_like(),
        None => Err(Error::autograd(
            "backward",
            format!(
                "{:?} is not a scalar: reduce it first, or give the gradient to start from",
                root.shape()
            ),
        )),
        Some(grad) if grad.shape() == root.shape() && grad.dtype() == root.dtype() => Ok(grad.detach()),
        Some(grad) => Err(Error::shape(
            "backward",
            format!("a gradient of {:?} for a tensor of {:?}", grad.shape(), root.shape()),
        )),
    }
}

/// Calls one derivative, under its layer's name.
fn run(node: &Arc<Node>, grads: Grads, keep: Keep) -> Result<Grads> {
    let _owner = Span::layer(label::backward_of(node.layer));
    let derivative = node.derivative(keep)?;
    let wanted: SmallVec<[bool; 4]> = node.edges().iter().map(Option::is_some).collect();
    let results = derivative.backward(node, &grads, &wanted)?;
    drop(grads);
    drop(derivative);
    Ok(results)
}

/// Passes a gradient on.
fn send(waiting: &mut Waiting, edge: &Edge, grad: Tensor) -> Result<()> {
    match edge {
        Edge::Leaf(leaf) => accumulate(leaf, grad),
        Edge::Node(node, output) => {
            let (_, grads) =
                waiting.entry(node.sequence).or_insert_with(|| (node.clone(), smallvec![None; node.outputs]));
            grads[*output] = Some(match grads[*output].take() {
                None => grad,
                Some(first) if first.is_unique() && first.is_contiguous() => {
                    first.add_(&grad)?;
                    first
                }
                Some(first) => (&first + &grad)?,
            });
            Ok(())
        }
    }
}

/// Adds to a leaf's gradient. Memory is asked for with no lock of ours held: an observer of what the
/// allocator does may read this very gradient.
fn accumulate(leaf: &Tensor, grad: Tensor) -> Result<()> {
    assert_eq!(leaf.shape(), grad.shape(), "a gradient's shape is its tensor's");
    if let Some(sum) = leaf.grad() {
        return sum.add_(&grad);
    }
    // Another thread's pass may have been first meanwhile: then its gradient is the one to add to.
    match leaf.set_first_grad(first_gradient(leaf, grad)?) {
        None => Ok(()),
        Some((sum, late)) => sum.add_(&late),
    }
}

/// A gradient that nobody else looks at, as the leaf's own.
fn first_gradient(leaf: &Tensor, grad: Tensor) -> Result<Tensor> {
    let (category, label) = (Category::Gradient, leaf.label_id());
    if grad.is_unique() && grad.is_contiguous() {
        grad.set_owner(category, label);
        return Ok(grad);
    }
    let _owner = Span::of(category, label);
    grad.copy()
}
