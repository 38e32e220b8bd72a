//! Tensors whose bytes leave their device and come back when an operation needs them.
//!
//! Bytes wait in pinned host memory, or a recipe computes them computed. Operators and kernels do not notice; all tensors
//! that share a storage leave and come back together.

use crate::autograd::no_grad;
use crate::error::{Error, Result};
use crate::storage::{Guard, State, Storage};
use crate::tensor::Tensor;
use crate::unwind::caught;

/// Keeps the bytes of a tensor on its device for as long as it lives: [`Tensor::pin`].
///
/// ```
/// use plimsoll_tensor::{Device, State, Tensor};
/// let x = Tensor::ones(&[4], &Device::cpu())?;
/// x.offload()?;
/// let guard = x.pin()?; // brings the bytes back
/// assert_eq!(x.state(), State::Resident);
/// assert!(x.offload().is_err());
/// drop(guard);
/// x.offload()?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[must_use = "the bytes may leave again when the guard is dropped"]
pub struct PinGuard(#[allow(dead_code, reason = "held for its drop")] Guard);

impl std::fmt::Debug for PinGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PinGuard")
    }
}

impl Tensor {
    /// Where the bytes are now.
    pub fn state(&self) -> State {
        self.data().storage.state()
    }

    /// Brings the bytes back to their device and keeps them there until the guard is dropped.
    ///
    /// # Errors
    /// [`Error::NotResident`] with its cause: out of memory, or a recipe that fails.
    pub fn pin(&self) -> Result<PinGuard> {
        self.data().storage.guard("pin").map(PinGuard)
    }

    /// Moves the bytes to pinned host memory and frees them on the device. The next operation that needs them copies them
    /// back. Nothing where they are away already.
    ///
    /// # Errors
    /// A guard that keeps them on the device; a tensor in pinned memory; no pinned memory.
    pub fn offload(&self) -> Result<()> {
        self.device().late_error()?;
        self.data().storage.offload()
    }

    /// Frees the bytes on the device. The next operation that needs them calls `recipe`, on its thread and without
    /// recording, which computes the same values again, in the same shape and type: from other tensors, which the recipe
    /// owns and nobody changes. For activation checkpointing.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, State, Tensor};
    /// let x = Tensor::ones(&[4], &Device::cpu())?;
    /// let y = x.exp()?;
    /// y.evict_with(move || x.exp())?;
    /// assert_eq!(y.state(), State::Evicted);
    /// assert_eq!(y.to_vec::<f32>()?, [1f32.exp(); 4]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A view of a part of its memory; a guard that keeps the bytes on the device; a tensor in pinned memory.
    pub fn evict_with(&self, recipe: impl Fn() -> Result<Tensor> + Send + Sync + 'static) -> Result<()> {
        const NAME: &str = "evict_with";
        if !self.is_whole() {
            let message = format!(
                "{:?} is a view of a part of its memory: evict the tensor that it is a view of",
                self.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        let (shape, dtype, device) = (self.shape().to_vec(), self.dtype(), self.device().clone());
        let storage = move || -> Result<Storage> {
            let computed = no_grad(|| caught(NAME, "its recipe", &recipe))?;
            if (computed.shape(), computed.dtype(), computed.device()) != (&shape[..], dtype, &device) {
                let message = format!("its recipe gave {computed:?} for {shape:?} of {dtype} on {device}");
                return Err(Error::shape(NAME, message));
            }
            let own = computed.is_unique() && computed.is_whole() && !computed.is_pinned();
            let own = if own { computed } else { no_grad(|| computed.copy())? };
            Ok(own.data().storage.clone())
        };
        self.data().storage.evict_with(std::sync::Arc::new(storage))
    }

    /// Whether the elements, row-major, are all that is in the storage.
    fn is_whole(&self) -> bool {
        let bytes = (self.numel() * self.dtype().size()) as u64;
        self.is_contiguous() && bytes == self.data().storage.bytes()
    }
}
