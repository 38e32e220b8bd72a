//! One recorded operation: its derivative, and where the gradients of its inputs go.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::grad_mode::is_grad_enabled;
use crate::dispatch::Data;
use crate::error::{Error, Result};
use crate::label::{self, LabelId};
use crate::layout::Layout;
use crate::tensor::Tensor;

/// One gradient per input; `None` where an input wants none.
pub(crate) type Grads = SmallVec<[Option<Tensor>; 3]>;

/// The derivative of one operation, with what it saved.
pub(crate) trait Backward: Send + Sync {
    /// The operation's name, for errors: `matmul`, `conv2d`.
    fn name(&self) -> &'static str;

    /// Gradients of the inputs, in their order, from the gradient of each output (`None` where nothing
    /// depends on that output). `wanted` says for each input whether its gradient is asked for.
    fn backward(&self, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads>;
}

/// Where a gradient goes.
pub(crate) enum Edge {
    /// To the operation that made the tensor, as the gradient of this output.
    Node(Arc<Node>, usize),
    /// Into the `grad` of a leaf.
    Leaf(Tensor),
}

/// A recorded operation.
pub(crate) struct Node {
    /// Rises with every recorded operation: a node's inputs always have smaller numbers.
    pub(crate) sequence: u64,
    name: &'static str,
    /// The layer that recorded it; its derivative works under `<layer> backward`.
    pub(crate) layer: LabelId,
    pub(crate) outputs: usize,
    edges: SmallVec<[Option<Edge>; 3]>,
    /// Gone once a backward pass has run it.
    derivative: Mutex<Option<Arc<dyn Backward>>>,
}

/// Whether the graph survives a backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Free,
    Retain,
}

impl Node {
    fn new(derivative: impl Backward + 'static, inputs: &[&Tensor], outputs: usize) -> Arc<Node> {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        Arc::new(Node {
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            name: derivative.name(),
            layer: label::current_layer(),
            outputs,
            edges: inputs.iter().map(|input| input.edge()).collect(),
            derivative: Mutex::new(Some(Arc::new(derivative))),
        })
    }

    /// The operation's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Where the inputs' gradients go; `None` for an input that wants none.
    pub(crate) fn edges(&self) -> &[Option<Edge>] {
        &self.edges
    }

    /// The derivative: taken out, so that dropping it frees what it saved, or shared.
    pub(crate) fn derivative(&self, keep: Keep) -> Result<Arc<dyn Backward>> {
        let mut slot = self.derivative.lock().unwrap_or_else(PoisonError::into_inner);
        let derivative = if keep == Keep::Retain { slot.clone() } else { slot.take() };
        derivative.ok_or(Error::GraphFreed { node: self.name })
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, {})", self.name, self.sequence)
    }
}

// Note [Long chains]
// Dropping the last handle of a graph would recurse once per link: a chain of 300,000 operations
// overflows the stack. So a node hands its inputs to a list and the outermost drop works through it.
impl Drop for Node {
    fn drop(&mut self) {
        let mut list: Vec<Edge> = self.edges.drain(..).flatten().collect();
        while let Some(edge) = list.pop() {
            if let Edge::Node(node, _) = edge
                && let Some(mut node) = Arc::into_inner(node)
            {
                list.extend(node.edges.drain(..).flatten());
            }
        }
    }
}

/// Makes an operation's output a tensor, recorded if recording is on and an input wants a gradient.
/// `derivative` is told which inputs do, so that it saves only what they need; it is called only then.
pub(crate) fn link<B: Backward + 'static>(
    out: Data,
    inputs: &[&Tensor],
    derivative: impl FnOnce(&Data, &[bool]) -> B,
) -> Tensor {
    if !is_grad_enabled() || !inputs.iter().any(|input| input.requires_grad()) {
        return Tensor::from_data(out);
    }
    let wanted: SmallVec<[bool; 4]> = inputs.iter().map(|input| input.requires_grad()).collect();
    let node = Node::new(derivative(&out, &wanted), inputs, 1);
    Tensor::linked(out, Some((node, 0)))
}

/// [`link`] for a view: the input's storage under another layout.
pub(crate) fn link_view<B: Backward + 'static>(
    input: &Tensor,
    layout: Layout,
    derivative: impl FnOnce() -> B,
) -> Tensor {
    let data = Data { storage: input.data().storage.clone(), layout, dtype: input.dtype() };
    link(data, &[input], |_, _| derivative())
}
