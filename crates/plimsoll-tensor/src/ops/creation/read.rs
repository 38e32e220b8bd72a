//! Reads the values of a tensor, or copies them to another device.

use std::sync::Arc;

use smallvec::smallvec;

use crate::device::Device;
use crate::dispatch;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::label::Span;
use crate::tensor::{Derivative, Grads, Node, Tensor};

impl Tensor {
    /// The elements, row-major.
    ///
    /// # Errors
    /// If the dtype does not match `T`, the device computes no values and does not rehearse ([`Device::rehearse`]), or
    /// memory runs out for gathering a view.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.read("to_vec")
    }

    /// The value of a tensor with one element.
    ///
    /// # Errors
    /// The same errors as [`Tensor::to_vec`], or if the tensor does not have exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            return Err(Error::shape(
                "item",
                format!("{:?} has {} elements, not one", self.shape(), self.numel()),
            ));
        }
        Ok(self.read::<T>("item")?[0])
    }

    #[track_caller]
    fn read<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::DType { op, expected: T::DTYPE.name(), got: self.dtype() });
        }
        self.device().want_readable(op)?;
        let bytes = dispatch::read(self.detach().contiguous()?.data(), op)?;
        Ok(T::from_bytes(&bytes))
    }

    /// Whether any value is NaN.
    pub(crate) fn has_nan(&self) -> Result<bool> {
        const OP: &str = "detect_anomaly";
        Ok(match self.dtype() {
            DType::F64 => self.read::<f64>(OP)?.iter().any(|x| x.is_nan()),
            DType::F32 => self.read::<f32>(OP)?.iter().any(|x| x.is_nan()),
            DType::F16 => self.read::<half::f16>(OP)?.iter().any(|x| x.is_nan()),
            DType::BF16 => self.read::<half::bf16>(OP)?.iter().any(|x| x.is_nan()),
            _ => false,
        })
    }

    /// Copies the values to another device. Returns the tensor itself if it is already there. Gradients flow back, as through
    /// PyTorch's `Tensor.to`. The copy keeps its owner: `fc.weight` stays a parameter called `fc.weight`.
    ///
    /// # Errors
    /// If memory runs out, or if a source has no values, unless the target has none either.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let _owner = Span::of_copy(self.data().storage.tag());
        let moved = if device.has_values() {
            let bytes = dispatch::read(self.detach().contiguous()?.data(), "to_device")?;
            Tensor::from_bytes(&bytes, self.dtype(), self.shape(), device)?
        } else {
            Tensor::empty(self.shape(), self.dtype(), device)?
        };
        let back = || ToDeviceBack { device: self.device().clone() };
        Ok(dispatch::link_by(moved, &[self], "to_device", back))
    }
}

impl Tensor {
    /// The values in another tensor's dtype, on its device: the tensor itself if both agree. Like `Tensor.type_as`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::to_device`] and [`Tensor::to_dtype`].
    #[track_caller]
    pub fn type_as(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        self.to_device(other.device())?.to_dtype(other.dtype())
    }
}

struct ToDeviceBack {
    device: Device,
}

impl Derivative for ToDeviceBack {
    fn backward(&self, _: &Arc<Node>, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        Ok(smallvec![grads[0].as_ref().map(|grad| grad.to_device(&self.device)).transpose()?])
    }
}
