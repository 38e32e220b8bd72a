//! A leaf in another place or of another type: a parameter that moves keeps its owner, its gradient and its hooks.

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
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
        self.replaced(|tensor| {
            let converted = tensor.to_dtype(dtype)?;
            converted.set_owner(tensor.category(), tensor.label_id());
            Ok(converted)
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
        leaf.set_grad(grad);
        leaf.share_hooks_of(self);
        Ok(leaf)
    }
}
