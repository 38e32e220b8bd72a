//! A leaf in another place: a parameter that moves keeps its owner, its gradient and its hooks.

use crate::autograd::no_grad;
use crate::device::Device;
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
            return Err(Error::autograd(
                "leaf_to_device",
                "an operation made this tensor: move it with `to_device`, which records the move",
            ));
        }
        if self.device() == device {
            return Ok(self.clone());
        }
        let moved = no_grad(|| self.to_device(device))?;
        let grad = self.grad().map(|grad| no_grad(|| grad.to_device(device))).transpose()?;
        moved.requires_grad_(self.requires_grad())?;
        moved.set_grad(grad);
        moved.share_hooks_of(self);
        Ok(moved)
    }
}
