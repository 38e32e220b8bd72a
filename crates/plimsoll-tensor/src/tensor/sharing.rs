//! Which tensors share memory, and how much of it there is.

use super::Tensor;

impl Tensor {
    /// The address of the storage on its device: equal for all views of one storage; 0 while the bytes are away
    /// ([`Tensor::state`]). It is theirs for as long as a guard of [`Tensor::pin`] lives. As
    /// `Tensor.untyped_storage().data_ptr()`.
    pub fn storage_ptr(&self) -> u64 {
        self.data().storage.address_now().map_or(0, |address| address.0)
    }

    /// The address of this tensor's first element; 0 while the bytes are away. As `Tensor.data_ptr()`.
    pub fn data_ptr(&self) -> u64 {
        let Some(storage) = self.data().storage.address_now() else { return 0 };
        storage.0 + (self.data().layout.offset() * self.dtype().size()) as u64
    }

    /// Bytes of the storage, however few of them this tensor looks at. As `Tensor.untyped_storage().nbytes()`.
    pub fn storage_bytes(&self) -> u64 {
        self.data().storage.bytes()
    }

    /// Index of the first element in the storage. As `Tensor.storage_offset()`.
    pub fn storage_offset(&self) -> usize {
        self.data().layout.offset()
    }

    /// How many tensors look at the storage, this one and those saved for a backward pass included. Handles of one
    /// tensor count once.
    pub fn storage_ref_count(&self) -> usize {
        self.data().storage.ref_count()
    }

    /// Whether both look at one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.data().storage.id() == other.data().storage.id()
    }
}
