//! The tensor: values on a device, and its place in the graph of derivatives.
//!
//! A [`Tensor`] is a handle: cloning it copies no values, views share storage, and the last handle frees
//! the bytes. This file has the type, how to make one and how to read one; `ops/` has what can be
//! computed, `autograd/` the way back.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_alloc::Tag;
use smallvec::smallvec;

use crate::autograd::{self, Edge, Node};
use crate::device::Device;
use crate::dispatch::{self, Data};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::label::{self, Category, LabelId};
use crate::op::{Distribution, Op};

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
pub struct Tensor(Arc<Inner>);

struct Inner {
    data: Data,
    /// On leaves only: whether `backward` fills `grad`.
    requires_grad: AtomicBool,
    grad: Mutex<Option<Tensor>>,
    /// The operation that made this tensor, and which of its outputs this is.
    made_by: Option<(Arc<Node>, usize)>,
}

impl Tensor {
    pub(crate) fn from_data(data: Data) -> Tensor {
        Tensor::linked(data, None)
    }

    pub(crate) fn linked(data: Data, made_by: Option<(Arc<Node>, usize)>) -> Tensor {
        let requires_grad = AtomicBool::new(false);
        Tensor(Arc::new(Inner { data, requires_grad, grad: Mutex::new(None), made_by }))
    }

    pub(crate) fn data(&self) -> &Data {
        &self.0.data
    }

    /// A tensor with these values, row-major, and this shape. As `torch.tensor`.
    ///
    /// # Errors
    /// A shape that does not have as many elements as `values`; out of memory.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(bytemuck::cast_slice(values), T::DTYPE, shape, device)
    }

    /// A tensor from the native-endian bytes of its elements, row-major.
    ///
    /// # Errors
    /// A byte count that is not the shape's; out of memory.
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
        let needed = crate::layout::checked_len(shape)? * dtype.size();
        if bytes.len() != needed {
            let got = bytes.len();
            let message = format!("shape {shape:?} of {dtype} has {needed} bytes, the values have {got}");
            return Err(Error::shape("from_bytes", message));
        }
        let data = Data::alloc(device, shape, dtype, "tensor")?;
        dispatch::write(&data, bytes)?;
        Ok(Tensor::from_data(data))
    }

    /// Room for a tensor whose values are whatever is there. As `torch.empty`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn empty(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        Data::alloc(device, shape, dtype, "tensor").map(Tensor::from_data)
    }

    /// Zeros in 32-bit floating point. As `torch.zeros`.
    ///
    /// # Errors
    /// Out of memory, as for every constructor.
    pub fn zeros(shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::filled(shape, 0.0, DType::F32, "zeros", device)
    }

    /// Ones in 32-bit floating point. As `torch.ones`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn ones(shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::filled(shape, 1.0, DType::F32, "ones", device)
    }

    /// One value everywhere, converted to `dtype`. As `torch.full`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn full(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled(shape, value, dtype, "full", device)
    }

    /// Zeros of another tensor's shape and type, on its device. As `torch.zeros_like`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::filled(self.shape(), 0.0, self.dtype(), "zeros_like", self.device())
    }

    /// Ones of another tensor's shape and type, on its device. As `torch.ones_like`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::filled(self.shape(), 1.0, self.dtype(), "ones_like", self.device())
    }

    fn filled(
        shape: &[usize],
        value: f64,
        dtype: DType,
        name: &'static str,
        device: &Device,
    ) -> Result<Tensor> {
        dispatch::create(device, &Op::Fill(value), shape, dtype, name).map(Tensor::from_data)
    }

    /// `0, 1, …, n - 1` as 64-bit integers. As `torch.arange(n)`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn arange(n: usize, device: &Device) -> Result<Tensor> {
        let op = Op::Arange { start: 0.0, step: 1.0 };
        dispatch::create(device, &op, &[n], DType::I64, "arange").map(Tensor::from_data)
    }

    /// Values from the standard normal distribution. As `torch.randn`; see [`Device::manual_seed`].
    ///
    /// # Errors
    /// Out of memory.
    pub fn randn(shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::random(shape, Distribution::Normal { mean: 0.0, std: 1.0 }, "randn", device)
    }

    /// Values drawn evenly from 0 up to, not including, 1. As `torch.rand`; see [`Device::manual_seed`].
    ///
    /// # Errors
    /// Out of memory.
    pub fn rand(shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::random(shape, Distribution::Uniform { low: 0.0, high: 1.0 }, "rand", device)
    }

    fn random(shape: &[usize], from: Distribution, name: &'static str, device: &Device) -> Result<Tensor> {
        let op = Op::Random(from, device.next_random());
        dispatch::create(device, &op, shape, DType::F32, name).map(Tensor::from_data)
    }

    /// Sizes, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.data().layout.shape()
    }

    /// Distance between neighbours of each dimension in the storage, in elements.
    pub fn strides(&self) -> &[usize] {
        self.data().layout.strides()
    }

    /// Number of dimensions. As `Tensor.dim`.
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

    /// Where the values are.
    pub fn device(&self) -> &Device {
        self.data().storage.device()
    }

    /// Whether the elements lie row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.data().layout.is_contiguous()
    }

    /// The elements, row-major.
    ///
    /// # Errors
    /// Another element type than `T`; a device that computes no values; out of memory where a view must
    /// be gathered first.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.read("to_vec")
    }

    /// The value of a tensor with one element.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; more or fewer elements than one.
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            return Err(Error::shape(
                "item",
                format!("{:?} has {} elements, not one", self.shape(), self.numel()),
            ));
        }
        Ok(self.read::<T>("item")?[0])
    }

    fn read<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::DType { op, expected: T::DTYPE.name(), got: self.dtype() });
        }
        if !self.device().has_values() {
            return Err(Error::NoValues { op, device: self.device().name().to_owned() });
        }
        let bytes = dispatch::read(self.detach().contiguous()?.data(), op)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// The same values on another device; itself where it is there already. Gradients flow back, as through
    /// PyTorch's `Tensor.to`.
    ///
    /// # Errors
    /// Out of memory; a source without values, unless the target has none either.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let moved = if device.has_values() {
            let bytes = dispatch::read(self.detach().contiguous()?.data(), "to_device")?;
            Tensor::from_bytes(&bytes, self.dtype(), self.shape(), device)?
        } else {
            Tensor::empty(self.shape(), self.dtype(), device)?
        };
        let back = ToDeviceBack { device: self.device().clone() };
        Ok(autograd::link(moved.data().clone(), &[self], |_, _| back))
    }

    /// Marks a leaf as wanting a gradient, or not; gives back a handle of it. As `Tensor.requires_grad_`.
    ///
    /// # Errors
    /// A tensor that an operation made (it wants what its inputs want; `detach` it first); a type through
    /// which no gradient flows.
    pub fn requires_grad_(&self, requires_grad: bool) -> Result<Tensor> {
        if self.0.made_by.is_some() {
            return Err(Error::autograd(
                "requires_grad_",
                "only a leaf can be marked; this tensor was made by an operation: detach it first",
            ));
        }
        if requires_grad && !self.dtype().is_float() {
            return Err(Error::DType { op: "requires_grad_", expected: "float32", got: self.dtype() });
        }
        self.0.requires_grad.store(requires_grad, Ordering::Relaxed);
        Ok(self.clone())
    }

    /// Whether gradients flow to or through this tensor.
    pub fn requires_grad(&self) -> bool {
        self.0.made_by.is_some() || self.0.requires_grad.load(Ordering::Relaxed)
    }

    /// Whether no recorded operation made this tensor.
    pub fn is_leaf(&self) -> bool {
        self.0.made_by.is_none()
    }

    /// The gradient that backward passes have accumulated here; leaves only.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.grad.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the gradient; `None` drops it, as `zero_grad(set_to_none=True)`.
    pub fn set_grad(&self, grad: Option<Tensor>) {
        let old = std::mem::replace(&mut *self.0.grad.lock().unwrap_or_else(PoisonError::into_inner), grad);
        drop(old); // after the lock: freeing may take the allocator's
    }

    /// Makes `first` the gradient where there is none yet; where there is one, gives back both.
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

    /// The same values outside the graph: shares storage, wants no gradient. As `Tensor.detach`.
    pub fn detach(&self) -> Tensor {
        Tensor::from_data(self.data().clone())
    }

    /// Computes the gradients of this scalar with respect to every leaf that wants one, and frees the
    /// graph on the way. As `Tensor.backward()`.
    ///
    /// # Errors
    /// A tensor that is not a scalar, or that wants no gradient; a graph that was freed before; a saved
    /// tensor that was changed in place; out of memory.
    pub fn backward(&self) -> Result<()> {
        self.backward_with(autograd::BackwardOptions::default())
    }

    /// [`Tensor::backward`] with a gradient to start from, or keeping the graph for another pass.
    ///
    /// # Errors
    /// As [`Tensor::backward`]; a starting gradient of another shape.
    pub fn backward_with(&self, options: autograd::BackwardOptions) -> Result<()> {
        autograd::backward(self, options)
    }

    /// Tells the allocator what these bytes are for and whose they are. Views share their storage's tag.
    pub fn set_owner(&self, category: Category, label: LabelId) {
        self.data().storage.retag(Tag { category, label });
    }

    /// What these bytes are for.
    pub fn category(&self) -> Category {
        self.data().storage.tag().category
    }

    /// Whose these bytes are: a parameter's path, a layer, or the operation that made them.
    pub fn label(&self) -> String {
        label::text(self.label_id())
    }

    pub(crate) fn label_id(&self) -> LabelId {
        self.data().storage.tag().label
    }

    /// Where the gradient of this tensor goes: to the operation that made it, or into the leaf.
    pub(crate) fn edge(&self) -> Option<Edge> {
        match &self.0.made_by {
            Some((node, output)) => Some(Edge::Node(node.clone(), *output)),
            None => self.requires_grad().then(|| Edge::Leaf(self.clone())),
        }
    }

    /// Whether this handle is the only one, and nothing else looks at its storage.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.data().storage.is_unique()
    }

    /// Whether both are handles of one tensor (not merely equal values or shared storage).
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

struct ToDeviceBack {
    device: Device,
}

impl autograd::Backward for ToDeviceBack {
    fn name(&self) -> &'static str {
        "to_device"
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<autograd::Grads> {
        Ok(smallvec![grads[0].as_ref().map(|grad| grad.to_device(&self.device)).transpose()?])
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}, {}, {}", self.shape(), self.dtype(), self.device())?;
        if let Some((node, _)) = &self.0.made_by {
            write!(f, ", made by {}", node.name())?;
        } else if self.requires_grad() {
            f.write_str(", requires grad")?;
        }
        f.write_str(")")
    }
}
