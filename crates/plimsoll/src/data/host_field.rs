//! A named array of a batch: [`HostField`].

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::{Device, Error, Tensor};

use super::HostArray;

/// A named array of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct HostField {
    /// The field's name, such as `images`.
    pub name: &'static str,
    /// Shape `[samples, ...]`.
    pub array: HostArray,
}

impl HostField {
    /// Copies the array to a device, as [`Category::Input`] with the field's name as label. An array without values can be sent
    /// to a simulated device: memory is allocated, nothing is copied.
    ///
    /// # Errors
    /// If memory runs out, or an array has no values for a device that computes with them.
    pub fn to_device(&self, device: &Device) -> plimsoll_tensor::Result<Tensor> {
        let _owner = Span::of(Category::Input, label::intern(self.name));
        let HostArray { dtype, shape, values } = &self.array;
        match values.bytes() {
            Some(bytes) => Tensor::from_bytes(bytes, *dtype, shape, device),
            None if !device.has_values() => Tensor::empty(shape, *dtype, device),
            None => Err(self.no_values("to_device")),
        }
    }

    pub(super) fn no_values(&self, op: &'static str) -> Error {
        Error::Argument { op, message: format!("`{}` has a shape but no values", self.name) }
    }
}
