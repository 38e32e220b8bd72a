//! Which tensors share memory, what else prevents it from being freed, and its address and size.

use std::sync::Arc;

use super::Tensor;

/// Who uses the memory of a tensor, so that it is not freed: [`Tensor::storage_uses`].
///
/// ```
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::ones(&[4], &Device::cpu())?.requires_grad_(true)?;
/// let (again, view, copy) = (x.clone(), x.detach().reshape(&[2, 2])?, x.copy()?);
/// let uses = x.storage_uses();
/// assert_eq!((uses.handles, uses.views, uses.saved), (3, 1, 0)); // `x`, `again`, and the graph of `copy`
/// let loss = x.square()?.sum()?;
/// assert_eq!(x.storage_uses().saved, 1); // the derivative of `square` reads it
/// # drop((again, view, copy, loss));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageUses {
    /// Handles of this tensor: clones count. A graph has one for each edge to a leaf.
    pub handles: usize,
    /// Other tensors on the same memory: views, and results of `detach`. All handles of one tensor count once.
    pub views: usize,
    /// How many times operations have saved the memory for the backward pass.
    pub saved: usize,
    /// Guards that keep the bytes on their device: those of [`Tensor::pin`], and of operations that run.
    pub guards: usize,
}

impl Tensor {
    /// The address of the storage on its device: equal for all views of one storage; 0 while the bytes are evicted
    /// ([`Tensor::state`]). The address stays valid as long as a guard of [`Tensor::pin`] lives. Like
    /// `Tensor.untyped_storage().data_ptr()`.
    pub fn storage_ptr(&self) -> u64 {
        self.data().storage.address_now().map_or(0, |address| address.0)
    }

    /// The address of this tensor's first element; 0 while the bytes are evicted. Like `Tensor.data_ptr()`.
    pub fn data_ptr(&self) -> u64 {
        let Some(storage) = self.data().storage.address_now() else { return 0 };
        storage.0 + (self.data().layout.offset() * self.dtype().size()) as u64
    }

    /// Size of the storage in bytes, even if this tensor is a view of only a part. Like `Tensor.untyped_storage().nbytes()`.
    pub fn storage_bytes(&self) -> u64 {
        self.data().storage.bytes()
    }

    /// Index of the first element in the storage. Like `Tensor.storage_offset()`.
    pub fn storage_offset(&self) -> usize {
        self.data().layout.offset()
    }

    /// The number of tensors that use the storage, including this one and those saved for a backward pass. Handles of one
    /// tensor count once.
    pub fn storage_ref_count(&self) -> usize {
        self.data().storage.ref_count()
    }

    /// Counts who uses the memory: handles of this tensor (two handles are two), other tensors on it, and saves for the backward
    /// pass. [`StorageUses`] has an example.
    pub fn storage_uses(&self) -> StorageUses {
        let handles = Arc::strong_count(&self.0);
        let (tensors, saved, guards) = self.data().storage.uses();
        StorageUses { handles, views: tensors.saturating_sub(1), saved, guards }
    }

    /// Whether both tensors use the same storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.data().storage.id() == other.data().storage.id()
    }
}
