//! The types of the graph: a tensor, the operation that made it, and the hooks of both. They refer to each other, so they are
//! in one file; their methods are in `mod.rs`, `node.rs` and `hooks.rs`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use plimsoll_alloc::StreamId;
use smallvec::SmallVec;

use crate::data::Data;
use crate::dtype::DType;
use crate::error::Result;
use crate::label::LabelId;
use crate::layout::{Dims, Layout};

/// An n-dimensional array on a device.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor};
/// let device = Device::cpu();
/// let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?.requires_grad_(true)?;
/// let x = Tensor::ones(&[1, 2], &device)?;
/// x.matmul(&w)?.sum()?.backward()?;
/// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [1.0; 4]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) data: Data,
    /// On leaves only: whether `backward` fills `grad`.
    pub(super) requires_grad: AtomicBool,
    /// On leaves only: whether another tensor has replaced it in a module.
    pub(super) replaced: AtomicBool,
    pub(super) grad: Mutex<Option<Tensor>>,
    /// The operation that made this tensor. It is out of date after a change in place: use [`Tensor::made_by`].
    pub(super) made_by: Option<MadeBy>,
    /// Its views, or the tensor that it is a view of: needed for changes in place.
    pub(super) lineage: OnceLock<Lineage>,
    /// On leaves only: the hooks that a backward pass calls with the gradient.
    pub(super) hooks: OnceLock<Arc<Hooks>>,
    /// If this is a gradient: the sum of its rows, and the version of its storage when that was computed.
    pub(super) row_sum: Mutex<Option<(Tensor, u32)>>,
}

/// An operation, and the index of one of its outputs.
pub(crate) type MadeBy = (Arc<Node>, usize);

/// A tensor's place among the views of one piece of memory (`lineage.rs`).
pub(super) enum Lineage {
    /// A view that was made without recording, so its base is unknown.
    Unrecorded,
    Member(Box<Member>),
}

pub(super) struct Member {
    pub(super) family: Arc<Family>,
    pub(super) is_base: bool,
    /// The operation that made the values, and how many changes there had been at that time.
    pub(super) made_by: Mutex<(u32, Option<MadeBy>)>,
}

/// A tensor that is not a view, and its views.
pub(super) struct Family {
    /// The layout of the base.
    pub(super) base: Layout,
    /// Whether the base is a leaf that requires a gradient.
    pub(super) is_leaf: AtomicBool,
    /// The number of recorded changes so far.
    pub(super) changes: AtomicU32,
    /// The operation that made the last change, from which the base's values come.
    pub(super) made_by: Mutex<Option<MadeBy>>,
}

/// A handle that does not keep the tensor alive.
pub(crate) struct WeakTensor(pub(super) Weak<Inner>);

/// One gradient per input; `None` if an input requires none.
pub type Grads = SmallVec<[Option<Tensor>; 3]>;

/// The derivative of one recorded operation, with its saved tensors.
pub(crate) trait Derivative: Send + Sync {
    /// Computes the gradients of the inputs, in order, from the gradient of each output (`None` if nothing depends on that
    /// output). `wanted` says which inputs need a gradient.
    fn backward(&self, node: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads>;

    /// Calls `visit` with each tensor that it keeps for the backward pass.
    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        let _ = visit;
    }

    /// Like `backward`, but computed from these tensors in place of the saved ones, with recorded tensor operations. Used to
    /// differentiate a derivative that a kernel computed (`second.rs`).
    fn in_operations(
        &self,
        node: &Arc<Node>,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
        wanted: &[bool],
    ) -> Result<Grads> {
        let _ = saved;
        self.backward(node, grads, wanted)
    }

    /// The input whose gradient is the sum of the rows of the output's gradient, as for a bias.
    fn bias(&self) -> Option<usize> {
        None
    }
}

/// What a node keeps alive besides its derivative.
pub(crate) trait Held: Send + Sync {
    /// Calls `visit` with each tensor that it keeps.
    fn kept(&self, visit: &mut dyn FnMut(&Data));
}

/// The destination of a gradient.
#[derive(Clone)]
pub(crate) enum Edge {
    /// The operation that made the tensor: this is the gradient of its output with this index.
    Node(Arc<Node>, usize),
    /// The `grad` of a leaf.
    Leaf(Tensor),
}

/// Shape and type of each input.
pub(super) type Sizes = SmallVec<[(Dims, DType); 2]>;

/// A recorded operation.
pub(crate) struct Node {
    /// Increases with every recorded operation: a node's inputs always have smaller numbers.
    pub(crate) sequence: u64,
    pub(super) name: &'static str,
    /// The layer that recorded the operation; its derivative runs under the label `<layer> backward`.
    pub(crate) layer: LabelId,
    pub(crate) outputs: usize,
    /// The stream on which the operation was called; its derivative runs on the same stream.
    pub(crate) stream: StreamId,
    pub(super) edges: SmallVec<[Option<Edge>; 3]>,
    /// The shape and dtype that the gradients of the inputs must have.
    pub(super) ins: Sizes,
    /// Where the operation was called, if anomaly mode recorded it.
    pub(super) place: Option<Box<str>>,
    pub(super) hooks: OnceLock<Arc<Hooks>>,
    /// `None` once a backward pass has run it.
    pub(super) derivative: Mutex<Option<Arc<dyn Derivative>>>,
}

/// Called with a gradient. If it returns a tensor, that replaces the gradient.
type GradHook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;
/// Called with a leaf.
type LeafHook = Arc<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// A hook, the operation's output to which it belongs, and its number.
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) output: usize,
    pub(super) hook: Hook,
}

#[derive(Clone)]
pub(super) enum Hook {
    Grad(GradHook),
    Leaf(LeafHook),
    /// Stores the gradient in this tensor, as left by the other hooks.
    Retain(Arc<WeakTensor>),
}

/// The hooks of a leaf or of an operation's outputs.
#[derive(Default)]
pub(crate) struct Hooks(pub(super) Mutex<Vec<Entry>>);

/// Whether any tensor ever had a hook; if not, a backward pass need not look for them.
static ANY: AtomicBool = AtomicBool::new(false);

pub(crate) fn any_hooks() -> bool {
    ANY.load(Ordering::Relaxed)
}

impl Hooks {
    pub(super) fn new() -> Arc<Hooks> {
        ANY.store(true, Ordering::Relaxed);
        Arc::new(Hooks::default())
    }
}
