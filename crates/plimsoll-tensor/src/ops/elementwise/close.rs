//! Exact and approximate equality of tensors: `equal`, `isclose`, `allclose`.

use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// How far elements may differ. The defaults are PyTorch's: `rtol` is `1e-5` and `atol` is `1e-8`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative tolerance: a factor of the other element's magnitude.
    pub rtol: f64,
    /// Absolute tolerance.
    pub atol: f64,
    /// Whether NaN equals NaN.
    pub equal_nan: bool,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance { rtol: 1e-5, atol: 1e-8, equal_nan: false }
    }
}

impl Tensor {
    /// Whether both tensors have the same shape and elements. Like `torch.equal`.
    ///
    /// # Errors
    /// If the devices differ, the device computes no values, or memory runs out.
    pub fn equal(&self, other: impl AsRef<Tensor>) -> Result<bool> {
        let other = other.as_ref();
        if self.shape() != other.shape() {
            return Ok(false);
        }
        self.detach().eq(other.detach())?.all()?.item::<bool>()
    }

    /// Where `|self - other| <= atol + rtol · |other|`, broadcast: a tensor of `bool`. Like `torch.isclose`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, a tensor is `bool`, or memory runs out.
    #[track_caller]
    pub fn isclose(&self, other: impl AsRef<Tensor>, tolerance: Tolerance) -> Result<Tensor> {
        let other = other.as_ref();
        let (a, b) = (self.detach(), other.detach());
        let equal = a.eq(&b)?;
        // Integers are compared in 64-bit floating point.
        let wide = |x: &Tensor| x.to_dtype(if x.dtype().is_float() { x.dtype() } else { DType::F64 });
        let (a, b) = (wide(&a)?, wide(&b)?);
        let allowed = b.abs()?.affine(tolerance.rtol, tolerance.atol)?;
        let near = a.sub(&b)?.abs()?.le(&allowed)?;
        // Infinity is close only to itself.
        let near = near.logical_and(&a.isfinite()?)?.logical_and(&b.isfinite()?)?;
        let close = equal.logical_or(&near)?;
        if !tolerance.equal_nan {
            return Ok(close);
        }
        close.logical_or(&a.isnan()?.logical_and(&b.isnan()?)?)
    }

    /// Whether all elements are close in the sense of [`Tensor::isclose`]. Like `torch.allclose`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor, Tolerance};
    /// let x = Tensor::ones(&[3], &Device::cpu())?;
    /// assert!(x.allclose(&x.add_scalar(1e-6)?, Tolerance::default())?);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Tensor::isclose`], or if the device computes no values.
    pub fn allclose(&self, other: impl AsRef<Tensor>, tolerance: Tolerance) -> Result<bool> {
        let other = other.as_ref();
        self.isclose(other, tolerance)?.all()?.item::<bool>()
    }
}
