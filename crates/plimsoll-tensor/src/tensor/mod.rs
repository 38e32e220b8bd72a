//! The tensor: values on a device, and their place in the autograd graph.
//!
//! A [`Tensor`] is a handle: cloning it copies no values, views share storage, and the last handle frees the bytes. This file
//! has the tensor's properties, `graph.rs` the types of the graph, `node.rs` the methods of [`Node`] (a recorded operation),
//! `hooks.rs` the methods for hooks, and `freed.rs` a hook that runs when a tensor's memory is freed. `ops/` makes
//! tensors, reads them and computes with them, `dispatch/` links them into the graph, and `autograd/` has the backward
//! pass.

mod freed;
mod graph;
mod hooks;
mod lineage;
mod node;
mod row_sum;
mod sharing;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use plimsoll_alloc::Tag;

use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::inference;
use crate::label::{self, Category, LabelId};
use crate::stream::Stream;

pub use freed::Freed;
pub(crate) use graph::{Derivative, Edge, Held, Hooks, MadeBy, Node, WeakTensor, any_hooks};
pub use graph::{Grads, Tensor};
pub use hooks::HookHandle;
pub(crate) use lineage::gradient_of_base;
pub(crate) use node::Keep;
pub use sharing::StorageUses;

use graph::Inner;

impl WeakTensor {
    pub(crate) fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
}

/// Methods that take a tensor accept it owned, borrowed, or as a layer's parameter.
impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl Tensor {
    pub(crate) fn from_data(data: Data) -> Tensor {
        Tensor::linked(data, None)
    }

    pub(crate) fn linked(data: Data, made_by: Option<MadeBy>) -> Tensor {
        let requires_grad = AtomicBool::new(false);
        Tensor(Arc::new(Inner {
            data,
            requires_grad,
            replaced: AtomicBool::new(false),
            grad: Mutex::new(None),
            made_by,
            lineage: OnceLock::new(),
            hooks: OnceLock::new(),
            row_sum: Mutex::new(None),
        }))
    }

    pub(crate) fn data(&self) -> &Data {
        &self.0.data
    }

    /// The sizes of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.data().layout.shape()
    }

    /// The distance in the storage between neighbours along each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        self.data().layout.strides()
    }

    /// The number of dimensions. Like `Tensor.dim`.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.data().layout.len()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.data().dtype
    }

    /// The device that holds the values.
    pub fn device(&self) -> &Device {
        self.data().storage.device()
    }

    /// Whether the elements are row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.data().layout.is_contiguous()
    }

    /// Sets whether a leaf requires a gradient. Returns another handle to the tensor. Like `Tensor.requires_grad_`.
    ///
    /// # Errors
    /// If an operation made the tensor (it requires a gradient if its inputs do; `detach` it first), the dtype cannot
    /// have a gradient, or the tensor was made in [`inference_mode`](crate::inference_mode) and is used outside it.
    pub fn requires_grad_(&self, requires_grad: bool) -> Result<Tensor> {
        if !self.is_leaf() {
            return Err(Error::autograd(
                "requires_grad_",
                "only a leaf can be marked; this tensor was made by an operation: detach it first",
            ));
        }
        if requires_grad && !self.dtype().is_float() {
            return Err(Error::DType { op: "requires_grad_", expected: "float32", got: self.dtype() });
        }
        if requires_grad && self.is_inference() && !inference::is_enabled() {
            return Err(Error::autograd(
                "requires_grad_",
                "an inference tensor (made in `inference_mode`) cannot require a gradient outside of that mode: `copy` it first",
            ));
        }
        self.0.requires_grad.store(requires_grad, Ordering::Relaxed);
        self.views_know_of_leaf(requires_grad);
        Ok(self.clone())
    }

    /// Whether gradients flow to or through this tensor.
    pub fn requires_grad(&self) -> bool {
        !self.is_leaf() || self.0.requires_grad.load(Ordering::Relaxed)
    }

    /// Whether its memory was allocated in [`inference_mode`](crate::inference_mode), so that it can never be recorded. Like
    /// `Tensor.is_inference`.
    pub fn is_inference(&self) -> bool {
        self.data().storage.is_inference()
    }

    /// Whether no recorded operation made this tensor.
    pub fn is_leaf(&self) -> bool {
        !self.has_history()
    }

    /// The gradient that backward passes have accumulated here; leaves only.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.grad.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the gradient; `None` drops it ([`Tensor::clear_grad`]).
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let w = Tensor::ones(&[2], &device)?.requires_grad_(true)?;
    /// w.set_grad(Tensor::ones(&[2], &device)?)?;
    /// let error = w.set_grad(Tensor::ones(&[3], &device)?).unwrap_err();
    /// assert_eq!(error.to_string(), "set_grad: a gradient [3] of a tensor [2]: both need the same shape");
    /// assert_eq!(w.grad().unwrap().shape(), [2]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the gradient's shape, dtype or device differs from this tensor's. The old gradient is then kept.
    pub fn set_grad(&self, grad: impl Into<Option<Tensor>>) -> Result<()> {
        const NAME: &str = "set_grad";
        let Some(grad) = grad.into() else {
            self.clear_grad();
            return Ok(());
        };
        if grad.device() != self.device() {
            let (first, second) = (self.device().name().to_owned(), grad.device().name().to_owned());
            return Err(Error::Device { op: NAME, first, second });
        }
        if grad.shape() != self.shape() {
            let message = format!(
                "a gradient {:?} of a tensor {:?}: both need the same shape",
                grad.shape(),
                self.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        if grad.dtype() != self.dtype() {
            return Err(Error::DType { op: NAME, expected: self.dtype().name(), got: grad.dtype() });
        }
        self.put_grad(Some(grad));
        Ok(())
    }

    /// Drops the gradient, like `zero_grad(set_to_none=True)`.
    pub fn clear_grad(&self) {
        self.put_grad(None);
    }

    pub(crate) fn put_grad(&self, grad: Option<Tensor>) {
        let old = std::mem::replace(&mut *self.0.grad.lock().unwrap_or_else(PoisonError::into_inner), grad);
        drop(old); // outside the lock: freeing may take the allocator's lock
    }

    /// Records that another tensor has replaced this leaf in its module, so that code that still updates this one can report
    /// it.
    pub fn set_replaced(&self) {
        self.0.replaced.store(true, Ordering::Relaxed);
    }

    /// Whether another tensor has replaced this leaf: [`Tensor::set_replaced`].
    pub fn is_replaced(&self) -> bool {
        self.0.replaced.load(Ordering::Relaxed)
    }

    /// Sets `first` as the gradient if there is none yet; otherwise returns the existing gradient and `first`.
    pub(crate) fn set_first_grad(&self, first: Tensor) -> Option<(Tensor, Tensor)> {
        let mut slot = self.0.grad.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some(sum) => Some((sum.clone(), first)),
            None => {
                *slot = Some(first);
                None
            }
        }
    }

    /// Shares the hooks of `replaced`, the leaf that this one replaces.
    pub(crate) fn share_hooks_of(&self, replaced: &Tensor) {
        if let Some(hooks) = replaced.0.hooks.get() {
            // A newly created leaf has no hooks.
            let _ = self.0.hooks.set(hooks.clone());
        }
    }

    /// The same values outside the graph. The result shares storage and requires no gradient. Like `Tensor.detach`.
    pub fn detach(&self) -> Tensor {
        Tensor::from_data(self.data().clone())
    }

    /// Tells the allocator the category and the owner of these bytes. Views share their storage's tag.
    pub fn set_owner(&self, category: Category, label: LabelId) {
        self.data().storage.retag(Tag { category, label });
    }

    /// Tells the allocator that work on `stream` uses these bytes, in addition to the stream that they were allocated for.
    /// After the last handle is dropped, the memory is not reused until the work queued on `stream` by then is done. Operations
    /// call this themselves. Call it yourself for other uses, or on a synchronous device to make its allocator behave
    /// like a GPU's. Like `Tensor.record_stream`.
    ///
    /// # Errors
    /// If the stream belongs to another device.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        if stream.device() != self.device() {
            return Err(Error::Device {
                op: "record_stream",
                first: self.device().name().to_owned(),
                second: stream.device().name().to_owned(),
            });
        }
        self.data().storage.record_stream(stream.id());
        Ok(())
    }

    /// The stream that these bytes were allocated for.
    pub fn stream(&self) -> Stream {
        Stream::numbered(self.device(), self.data().storage.stream())
    }

    /// The memory category of these bytes.
    pub fn category(&self) -> Category {
        self.data().storage.tag().category
    }

    /// The owner of these bytes: a parameter's path, a layer, or the operation that made them.
    pub fn label(&self) -> String {
        label::text(self.label_id())
    }

    /// The number of in-place changes to the bytes so far, by any tensor that shares them. Like
    /// `torch.Tensor._version`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::zeros(&[4], &Device::cpu())?;
    /// let before = x.version();
    /// x.narrow(0, 0, 2)?.mul_scalar_(2.0)?;
    /// assert_eq!(x.version(), before + 1);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn version(&self) -> u32 {
        self.data().storage.version()
    }

    pub(crate) fn label_id(&self) -> LabelId {
        self.data().storage.tag().label
    }

    /// A tensor with these values that is an output of a node in the graph.
    pub(crate) fn relinked(data: Data, edge: &Edge) -> Tensor {
        match edge {
            Edge::Node(node, output) => Tensor::linked(data, Some((node.clone(), *output))),
            Edge::Leaf(leaf) => leaf.clone(),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.0))
    }

    /// A number that differs between tensors that are alive at the same time, and is equal for handles to the same
    /// tensor. Like Python's `id`.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The hooks of this leaf, if it has any.
    pub(crate) fn leaf_hooks(&self) -> Option<&Arc<Hooks>> {
        self.0.hooks.get()
    }

    /// The hooks for this tensor's gradient, and the index of the output that they belong to.
    fn hooks(&self, op: &'static str) -> Result<(Arc<Hooks>, usize)> {
        match self.made_by() {
            Some((node, output)) => Ok((node.hooks_or_new().clone(), output)),
            None if self.requires_grad() => Ok((self.0.hooks.get_or_init(Hooks::new).clone(), 0)),
            None => Err(Error::autograd(
                op,
                "this tensor does not require a gradient: mark it with `requires_grad_` first",
            )),
        }
    }

    /// The edge along which this tensor's gradient flows: to the operation that made it, or into the leaf.
    pub(crate) fn edge(&self) -> Option<Edge> {
        match self.made_by() {
            Some((node, output)) => Some(Edge::Node(node, output)),
            None => self.requires_grad().then(|| Edge::Leaf(self.clone())),
        }
    }

    /// Whether this is the only handle, and no other tensor uses its storage.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.data().storage.is_unique()
    }

    /// Whether both are handles to the same tensor; equal values or shared storage are not enough.
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}, {}, {}", self.shape(), self.dtype(), self.device())?;
        if let Some((node, _)) = self.made_by() {
            write!(f, ", made by {}", node.name())?;
        } else if self.requires_grad() {
            f.write_str(", requires grad")?;
        }
        f.write_str(")")
    }
}
