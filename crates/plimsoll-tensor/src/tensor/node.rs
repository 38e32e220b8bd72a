//! A recorded operation: how it is made, what a backward pass reads from it, and how a long chain of them is dropped.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use plimsoll_alloc::StreamId;
use smallvec::SmallVec;

use super::graph::Sizes;
use super::{Derivative, Edge, Grads, Held, Hooks, Node, Tensor};
use crate::data::Data;
use crate::error::{Error, Result};
use crate::few::fill;
use crate::label;
use crate::layout::Dims;
use crate::stream;

impl Edge {
    /// Whether both edges lead to the same place.
    pub(crate) fn is(&self, other: &Edge) -> bool {
        match (self, other) {
            (Edge::Node(a, i), Edge::Node(b, j)) => Arc::ptr_eq(a, b) && i == j,
            (Edge::Leaf(a), Edge::Leaf(b)) => a.is_same(b),
            _ => false,
        }
    }
}

/// Whether the graph survives a backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Free,
    Retain,
}

impl Node {
    /// Records an operation with this many outputs.
    pub(crate) fn new(
        name: &'static str,
        inputs: &[&Tensor],
        outputs: usize,
        derivative: Arc<dyn Derivative>,
        place: Option<Box<str>>,
    ) -> Arc<Node> {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let (mut edges, mut ins) = (SmallVec::new(), Sizes::new());
        // This is done before the node gets its number, because an input that is a view of a changed tensor gets its
        // new node here.
        fill(&mut edges, inputs.iter().map(|input| input.edge()));
        fill(&mut ins, inputs.iter().map(|input| (Dims::from_slice(input.shape()), input.dtype())));
        Arc::new(Node {
            edges,
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            name,
            layer: label::current_layer(),
            outputs,
            stream: inputs.first().map_or(StreamId::default(), |input| stream::current(input.device())),
            ins,
            place,
            hooks: OnceLock::new(),
            derivative: Mutex::new(Some(derivative)),
        })
    }

    /// The operation's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The edges that the inputs' gradients take; `None` for an input that requires none.
    pub(crate) fn edges(&self) -> &[Option<Edge>] {
        &self.edges
    }

    /// Shape and type of each input.
    pub(crate) fn ins(&self) -> &Sizes {
        &self.ins
    }

    /// The place where the operation was called, if anomaly mode recorded it.
    pub(crate) fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// The hooks of its outputs' gradients, if any.
    pub(crate) fn hooks(&self) -> Option<&Arc<Hooks>> {
        self.hooks.get()
    }

    pub(super) fn hooks_or_new(&self) -> &Arc<Hooks> {
        self.hooks.get_or_init(Hooks::new)
    }

    /// Whether the derivative needs the sum of the rows of the output's gradient: the gradient of a bias.
    pub(crate) fn wants_row_sum(&self) -> bool {
        let slot = self.derivative.lock().unwrap_or_else(PoisonError::into_inner);
        let bias = slot.as_ref().and_then(|derivative| derivative.bias());
        bias.is_some_and(|bias| self.edges.get(bias).is_some_and(Option::is_some))
    }

    /// Calls `visit` with each tensor that its derivative keeps.
    pub(crate) fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        let derivative = self.derivative.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(derivative) = derivative {
            derivative.kept(visit);
        }
    }

    /// Whether a backward pass has taken the derivative: its saved tensors are freed when that returns.
    pub(crate) fn is_freed(&self) -> bool {
        self.derivative.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Keeps `held` alive as long as the derivative: until a backward pass has run it, or the graph is dropped.
    pub(crate) fn hold(&self, held: Arc<dyn Held>) {
        let mut slot = self.derivative.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = slot.take().map(|derivative| Arc::new(Holding { derivative, held }) as Arc<dyn Derivative>);
    }

    /// The derivative: taken out, so that dropping it frees its saved tensors, or shared if the graph is kept.
    pub(crate) fn derivative(&self, keep: Keep) -> Result<Arc<dyn Derivative>> {
        let mut slot = self.derivative.lock().unwrap_or_else(PoisonError::into_inner);
        let derivative = if keep == Keep::Retain { slot.clone() } else { slot.take() };
        derivative.ok_or(Error::GraphFreed { node: self.name })
    }
}

/// A derivative, and a value that is dropped with it.
struct Holding {
    derivative: Arc<dyn Derivative>,
    held: Arc<dyn Held>,
}

impl Derivative for Holding {
    fn backward(&self, node: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        self.derivative.backward(node, grads, wanted)
    }

    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        self.derivative.kept(visit);
        self.held.kept(visit);
    }

    fn in_operations(
        &self,
        node: &Arc<Node>,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
        wanted: &[bool],
    ) -> Result<Grads> {
        self.derivative.in_operations(node, saved, grads, wanted)
    }

    fn bias(&self) -> Option<usize> {
        self.derivative.bias()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, {})", self.name, self.sequence)
    }
}

// Note [Long chains]
// Dropping the last handle of a graph would recurse once per link: a chain of 300,000 operations
// overflows the stack. So a node moves its inputs to a list, and the outermost drop works through
// the list.
impl Drop for Node {
    fn drop(&mut self) {
        let mut list = Vec::new();
        let hand_over = |node: &mut Node, list: &mut Vec<Arc<Node>>| {
            // Dropping a leaf drops no node.
            list.extend(node.edges.drain(..).flatten().filter_map(|edge| match edge {
                Edge::Node(node, _) => Some(node),
                Edge::Leaf(_) => None,
            }));
        };
        hand_over(self, &mut list);
        while let Some(node) = list.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                hand_over(&mut node, &mut list);
            }
        }
    }
}
