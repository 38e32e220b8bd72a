//! Transforms along two dimensions.

use super::transforms::{FftNorm, fft, ifft, irfft, rfft};
use crate::error::{Error, Result};
use crate::ops::dim_index;
use crate::tensor::Tensor;

/// The size along each of the two dimensions, if given. Fails if both name the same one of `rank` dimensions; the transforms check
/// that the dimensions exist.
fn sizes(
    op: &'static str,
    s: impl Into<Option<[usize; 2]>>,
    dim: [isize; 2],
    rank: usize,
) -> Result<[Option<usize>; 2]> {
    let [first, second] = dim.map(|dim| dim_index(op, dim, rank).ok());
    if first.is_some() && first == second {
        let message = format!("dimensions {dim:?} are the same: name two different ones");
        return Err(Error::argument(op, message));
    }
    Ok(s.into().map_or([None; 2], |s| s.map(Some)))
}

/// The Fourier transform of complex numbers `[…, 2]` along two dimensions of the complex tensor, with sizes `s` if they are given. Like
/// `torch.fft.fft2`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, fft2};
/// use plimsoll_tensor::{Device, Tensor};
/// let z = Tensor::ones(&[2, 3, 2], &Device::cpu())?;
/// let spectrum = fft2(&z, None, [-2, -1], FftNorm::Backward)?;
/// assert_eq!((spectrum.shape(), &spectrum.to_vec::<f32>()?[..2]), (&[2, 3, 2][..], &[6.0, 6.0][..]));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`fft`]; also if both dimensions are the same.
#[track_caller]
pub fn fft2(
    z: impl AsRef<Tensor>,
    s: impl Into<Option<[usize; 2]>>,
    dim: [isize; 2],
    norm: FftNorm,
) -> Result<Tensor> {
    let [height, width] = sizes("fft_fft2", s, dim, z.as_ref().rank().saturating_sub(1))?;
    fft(fft(z, width, dim[1], norm)?, height, dim[0], norm)
}

/// The inverse of [`fft2`]. Like `torch.fft.ifft2`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, fft2, ifft2};
/// use plimsoll_tensor::{Device, Tensor};
/// let z = Tensor::ones(&[2, 2, 2], &Device::cpu())?;
/// let back = ifft2(fft2(&z, None, [0, 1], FftNorm::Backward)?, None, [0, 1], FftNorm::Backward)?;
/// assert_eq!(back.to_vec::<f32>()?, [1.0; 8]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`fft2`].
#[track_caller]
pub fn ifft2(
    z: impl AsRef<Tensor>,
    s: impl Into<Option<[usize; 2]>>,
    dim: [isize; 2],
    norm: FftNorm,
) -> Result<Tensor> {
    let [height, width] = sizes("fft_ifft2", s, dim, z.as_ref().rank().saturating_sub(1))?;
    ifft(ifft(z, width, dim[1], norm)?, height, dim[0], norm)
}

/// The Fourier transform of real numbers along two dimensions, with sizes `s` if they are given. Returns half of the spectrum along the second
/// dimension, `[…, 2]`. Like `torch.view_as_real(torch.fft.rfft2(x))`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, irfft2, rfft2};
/// use plimsoll_tensor::{Device, Tensor};
/// let image = Tensor::randn(&[3, 8, 6], &Device::cpu())?;
/// let spectrum = rfft2(&image, None, [-2, -1], FftNorm::Ortho)?;
/// assert_eq!(spectrum.shape(), [3, 8, 4, 2]);
/// let back = irfft2(&spectrum, [8, 6], [-2, -1], FftNorm::Ortho)?;
/// assert!(back.sub(&image)?.abs()?.max()?.item::<f32>()? < 1e-5);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`rfft`]; also if both dimensions are the same.
#[track_caller]
pub fn rfft2(
    x: impl AsRef<Tensor>,
    s: impl Into<Option<[usize; 2]>>,
    dim: [isize; 2],
    norm: FftNorm,
) -> Result<Tensor> {
    let [height, width] = sizes("fft_rfft2", s, dim, x.as_ref().rank())?;
    fft(rfft(x, width, dim[1], norm)?, height, dim[0], norm)
}

/// The inverse of [`rfft2`]. Pass the sizes if the second one was odd. Like `torch.fft.irfft2(torch.view_as_complex(z))`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, irfft2, rfft2};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::ones(&[2, 3], &Device::cpu())?;
/// let spectrum = rfft2(&x, None, [-2, -1], FftNorm::Backward)?;
/// let back = irfft2(&spectrum, [2, 3], [-2, -1], FftNorm::Backward)?;
/// assert!(back.sub(&x)?.abs()?.max()?.item::<f32>()? < 1e-6);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`fft2`].
#[track_caller]
pub fn irfft2(
    z: impl AsRef<Tensor>,
    s: impl Into<Option<[usize; 2]>>,
    dim: [isize; 2],
    norm: FftNorm,
) -> Result<Tensor> {
    let [height, width] = sizes("fft_irfft2", s, dim, z.as_ref().rank().saturating_sub(1))?;
    irfft(ifft(z, height, dim[0], norm)?, width, dim[1], norm)
}
