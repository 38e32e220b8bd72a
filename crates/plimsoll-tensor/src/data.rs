//! The values of a tensor: a storage and a layout. Tensors add autograd.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{self, Layout};
use crate::storage::{Locks, Storage};
use crate::view::View;

/// A storage, the layout of the elements in it, and their type.
#[derive(Clone)]
pub(crate) struct Data {
    pub(crate) storage: Storage,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
}

impl Data {
    /// Uninitialised memory for a dense tensor; `op` is the name under which it is requested.
    pub(crate) fn alloc(device: &Device, layout: Layout, dtype: DType, op: &'static str) -> Result<Data> {
        Ok(Data { storage: Data::alloc_storage(device, &layout, dtype, op)?, layout, dtype })
    }

    /// Allocates only the storage.
    pub(crate) fn alloc_storage(
        device: &Device,
        layout: &Layout,
        dtype: DType,
        op: &'static str,
    ) -> Result<Storage> {
        Storage::alloc(device, (layout::checked_len(layout.shape())? * dtype.size()) as u64, op)
    }

    /// The view that a device gets while the storage is locked.
    pub(crate) fn view<'a>(&'a self, locks: &'a Locks<'_>) -> View<'a> {
        View::new(locks.address(&self.storage), self.storage.bytes(), self.dtype, &self.layout)
    }
}
