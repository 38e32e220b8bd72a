//! Offloading and eviction: the bytes of a tensor leave its device, and are brought back when an operation needs
//! them.
//!
//! The bytes wait in pinned host memory, or a recipe computes them again. Operators and kernels do not need to know
//! about this. All tensors that share a storage are moved together.

use crate::autocast;
use crate::autocast_mode;
use crate::autograd::no_grad;
use crate::error::{Error, Result};
use crate::storage::{Guard, State, Storage};
use crate::tensor::Tensor;
use crate::unwind::caught;

/// Keeps the bytes of a tensor on its device until dropped: [`Tensor::pin`].
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
    /// [`Error::NotResident`] with its cause: out of memory, or a failed recipe. A lent tensor ([`Tensor::lent`]).
    pub fn pin(&self) -> Result<PinGuard> {
        if self.is_lent() {
            let message = "a parameter of a sharded model has no memory of its own, so it cannot be kept there: copy it";
            return Err(Error::argument("pin", message));
        }
        self.data().storage.guard("pin").map(PinGuard)
    }

    /// Moves the bytes to pinned host memory and frees them on the device. The next operation that needs them copies them
    /// back. Does nothing if they are not on the device.
    ///
    /// # Errors
    /// If a guard keeps the bytes on the device, the tensor is in pinned memory, or pinned memory cannot be allocated.
    pub fn offload(&self) -> Result<()> {
        self.device().late_error()?;
        self.data().storage.offload()
    }

    /// Frees the bytes on the device. The next operation that needs them calls `recipe` on its own thread, with
    /// recording off and under the autocast of this call. The recipe must compute the same values again, in the same shape and type, from other tensors that
    /// it owns and that nobody changes. For activation checkpointing.
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
    /// If the tensor is a view of part of its storage, a guard keeps the bytes on the device, or the tensor is in
    /// pinned memory.
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
        let lower = autocast_mode::lower();
        let storage = move || -> Result<Storage> {
            let computed = autocast::apart(lower, || no_grad(|| caught(NAME, "its recipe", &recipe)))?;
            if (computed.shape(), computed.dtype(), computed.device()) != (&shape[..], dtype, &device) {
                let message =
                    format!("its recipe returned {computed:?} for {shape:?} of {dtype} on {device}");
                return Err(Error::shape(NAME, message));
            }
            let own = computed.is_unique() && computed.is_whole() && !computed.is_pinned();
            let own = if own { computed } else { no_grad(|| computed.copy())? };
            Ok(own.data().storage.clone())
        };
        self.data().storage.evict_with(std::sync::Arc::new(storage))
    }

    /// Whether the tensor is row-major and covers its complete storage.
    fn is_whole(&self) -> bool {
        let bytes = (self.numel() * self.dtype().size()) as u64;
        self.is_contiguous() && bytes == self.data().storage.bytes()
    }
}
