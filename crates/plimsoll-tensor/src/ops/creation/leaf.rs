//! Moves and converts leaves: a parameter on another device, or in a different dtype or memory format, keeps its owner, gradient
//! and hooks.

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::shape::memory_format::MemoryFormat;
use crate::storage::State;
use crate::tensor::Tensor;

impl Tensor {
    /// Moves this leaf to another device, as PyTorch's `Module.to` moves a parameter. The result is a leaf with the
    /// same owner and hooks, and its gradient moves too. Returns the leaf itself if it is already there.
    ///
    /// # Errors
    /// If the tensor is not a leaf; if memory runs out; or if a source has no values, unless the target has none
    /// either.
    #[track_caller]
    pub fn leaf_to_device(&self, device: &Device) -> Result<Tensor> {
        if !self.is_leaf() {
            let message = "an operation made this tensor: move it with `to_device`, which records the move";
            return Err(Error::autograd("leaf_to_device", message));
        }
        self.replaced(|tensor| tensor.to_device(device))
    }

    /// Converts this leaf to a different dtype, as PyTorch's `Module.to` converts a parameter. The result is a leaf with the same
    /// owner and hooks, and its gradient is converted too. Returns the leaf itself if it already has the dtype. If the
    /// values are [evicted](crate::State::Evicted), they are converted when they are computed.
    ///
    /// # Errors
    /// If the tensor is not a leaf, a leaf requires a gradient and a dtype that cannot have one, or memory runs out.
    #[track_caller]
    pub fn leaf_to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if !self.is_leaf() {
            let message = "an operation made this tensor: convert it with `to_dtype`, which records it";
            return Err(Error::autograd("leaf_to_dtype", message));
        }
        self.replaced(|tensor| {
            if tensor.state() != State::Evicted || tensor.dtype() == dtype {
                return Ok(owned_like(tensor.to_dtype(dtype)?, tensor));
            }
            let converted = Tensor::empty(tensor.shape(), dtype, tensor.device())?;
            let from = tensor.detach();
            converted.evict_with(move || from.to_dtype(dtype))?;
            Ok(owned_like(converted, tensor))
        })
    }

    /// Converts this leaf to a memory format, as PyTorch's `Module.to` converts a parameter. The result is a leaf with the same
    /// owner and hooks, and its gradient is converted too. Returns the leaf itself if it already has the format.
    ///
    /// # Errors
    /// If the tensor is not a leaf; also errors of [`Tensor::to_memory_format`].
    #[track_caller]
    pub fn leaf_to_memory_format(&self, format: MemoryFormat) -> Result<Tensor> {
        if !self.is_leaf() {
            let message =
                "an operation made this tensor: convert it with `to_memory_format`, which records it";
            return Err(Error::autograd("leaf_to_memory_format", message));
        }
        self.replaced(|tensor| {
            if tensor.is_in_memory_format(format) {
                return Ok(tensor.clone());
            }
            // The result is a view, and a leaf must not be one.
            Ok(owned_like(tensor.to_memory_format(format)?.detach(), tensor))
        })
    }

    /// A leaf that replaces this one: `change` converts the values and the gradient.
    #[track_caller]
    fn replaced(&self, change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let leaf = no_grad(|| change(self))?;
        if leaf.is_same(self) {
            return Ok(leaf);
        }
        let grad = self.grad().map(|grad| no_grad(|| change(&grad))).transpose()?;
        leaf.requires_grad_(self.requires_grad())?;
        leaf.put_grad(grad);
        leaf.share_hooks_of(self);
        Ok(leaf)
    }
}

/// A converted tensor, with the owner of the original.
#[track_caller]
fn owned_like(converted: Tensor, tensor: &Tensor) -> Tensor {
    converted.set_owner(tensor.category(), tensor.label_id());
    converted
}
