//! The bytes of a tensor, for files.

use crate::dispatch;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// The native-endian bytes of the elements, row-major, as [`Tensor::from_bytes`] takes them.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Device, Tensor};
    /// let x = Tensor::from_slice(&[1i16, 2], &[2], &Device::cpu())?;
    /// let again = Tensor::from_bytes(&x.to_bytes()?, DType::I16, &[2], &Device::cpu())?;
    /// assert_eq!(again.to_vec::<i16>()?, [1, 2]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device computes no values and does not rehearse, or if memory runs out for gathering a view.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.device().want_readable("to_bytes")?;
        dispatch::read(self.detach().contiguous()?.data(), "to_bytes")
    }
}
