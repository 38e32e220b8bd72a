//! A batch in host memory: one array per field of the data set, samples along the first dimension.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::{Device, Tensor};

use super::{DataError, Field, HostArray, HostField};

/// A batch in host memory, as the loader yields it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    /// The number of samples; below the batch size only in the last batch of an epoch.
    pub samples: usize,
    /// One array per field, in the data set's order.
    pub fields: Vec<HostField>,
}

impl HostBatch {
    /// A batch that has shapes but no values; allocates nothing.
    pub(super) fn absent(samples: usize, fields: &[Field]) -> Self {
        let array = |field: &Field| {
            let shape = std::iter::once(samples).chain(field.shape.iter().copied()).collect();
            HostField { name: field.name, array: HostArray::absent(field.dtype, shape) }
        };
        Self { samples, fields: fields.iter().map(array).collect() }
    }

    /// Resizes this batch to a number of samples and fills it with zeros, reusing its memory if that is large enough.
    ///
    /// # Errors
    /// If host memory runs out; the batch is then unusable.
    pub(super) fn reset(&mut self, samples: usize) -> Result<(), DataError> {
        self.samples = samples;
        for HostField { name, array } in &mut self.fields {
            array.shape[0] = samples;
            array.zero(&format!("a batch's `{name}`"))?;
        }
        Ok(())
    }

    /// Keeps the first samples.
    pub(super) fn truncate(&mut self, samples: usize) {
        self.samples = samples;
        for HostField { array, .. } in &mut self.fields {
            array.shape[0] = samples;
            array.truncate();
        }
    }

    /// The array of a field.
    ///
    /// # Errors
    /// If there is no field with this name.
    pub fn array(&self, name: &str) -> Result<&HostArray, DataError> {
        self.fields.iter().find(|field| field.name == name).map(|field| &field.array).ok_or_else(|| {
            let declared = self.fields.iter().map(|field| field.name).collect();
            DataError::NoField { name: name.to_owned(), declared }
        })
    }

    /// All arrays on a device, in the data set's order: [`HostField::to_device`].
    ///
    /// # Errors
    /// The same errors as [`HostField::to_device`].
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> plimsoll_tensor::Result<Vec<Tensor>> {
        let _entry = Entry::here();
        self.fields.iter().map(|field| field.to_device(device)).collect()
    }

    /// All arrays as tensors in pinned host memory, in the data set's order: devices copy from there while the host continues
    /// ([`Tensor::to_device_non_blocking`]). [`Epoch::pin_memory`](super::Epoch::pin_memory) pins each batch, in a separate
    /// thread.
    ///
    /// ```
    /// use plimsoll::data::{Arrays, DataLoader, HostArray};
    /// use plimsoll::Device;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let arrays = Arrays::new([("x", HostArray::new(vec![4, 2], vec![1.0f32; 8]))])?;
    /// for batch in DataLoader::new(std::sync::Arc::new(arrays), 2)?.epoch(0) {
    ///     let pinned = batch?.pin_memory()?;
    ///     assert!(pinned[0].is_pinned());
    ///     let x = pinned[0].to_device_non_blocking(&Device::cpu())?;
    ///     assert_eq!(x.shape(), [2, 2]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the arrays have no values, or memory runs out.
    #[track_caller]
    pub fn pin_memory(&self) -> plimsoll_tensor::Result<Vec<Tensor>> {
        let _entry = Entry::here();
        let pinned = |field: &HostField| {
            let _owner = Span::of(Category::Input, label::intern(field.name));
            let HostArray { dtype, shape, values } = &field.array;
            let bytes = values.bytes().ok_or_else(|| field.no_values("pin_memory"))?;
            Tensor::from_bytes_pinned(bytes, *dtype, shape)
        };
        self.fields.iter().map(pinned).collect()
    }

    /// Host bytes of all arrays, with or without values; `u64::MAX` on overflow.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.fields.iter().fold(0, |bytes: u64, field| bytes.saturating_add(field.array.bytes()))
    }
}
