//! Which tensors share memory, and the address and size of that memory.

use super::Tensor;

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

    /// Whether both tensors use the same storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.data().storage.id() == other.data().storage.id()
    }
}
