//! A leaf in another place, of another type or in another order: a parameter that moves keeps its owner, its gradient and its hooks.

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::shape::memory_format::MemoryFormat;
use crate::tensor::Tensor;

impl Tensor {
    /// This leaf on another device, as PyTorch's `Module.to` moves a parameter: a leaf again, with the same owner, the same
    /// hooks and a gradient that moved along. Itself where it is there already.
    ///
    /// # Errors
    /// A tensor that an operation made; out of memory; a source without values, unless the target has none either.
    pub fn leaf_to_device(&self, device: &Device) -> Result<Tensor> {
        if !self.is_leaf() {
            let message = "an operation made this tensor: move it with `to_device`, which records the move";
            return Err(Error::autograd("leaf_to_device", message));
        }
        self.replaced(|tensor| tensor.to_device(device))
    }

    /// This leaf converted to another type, as PyTorch's `Module.to` converts a parameter: a leaf again, with the same
    /// owner, the same hooks and its gradient converted. Itself where it has the type.
    ///
    /// # Errors
    /// A tensor that an operation made; a leaf that wants a gradient and a type through which none flows; out of memory.
    pub fn leaf_to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if !self.is_leaf() {
            let message = "an operation made this tensor: convert it with `to_dtype`, which records it";
            return Err(Error::autograd("leaf_to_dtype", message));
        }
        self.replaced(|tensor| Ok(owned_like(tensor.to_dtype(dtype)?, tensor)))
    }

    /// This leaf in a memory format, as PyTorch's `Module.to` converts a parameter: a leaf again, with the same owner, the same
    /// hooks and its gradient converted. Itself where it lies so.
    ///
    /// # Errors
    /// A tensor that an operation made; those of [`Tensor::to_memory_format`].
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

    /// A leaf in the place of this one: both its values and its gradient as `change` makes them.
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

/// A converted tensor, with the owner of what it was.
fn owned_like(converted: Tensor, tensor: &Tensor) -> Tensor {
    converted.set_owner(tensor.category(), tensor.label_id());
    converted
}
