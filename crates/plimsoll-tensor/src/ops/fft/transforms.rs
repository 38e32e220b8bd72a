//! Transforms along one dimension.

use smallvec::smallvec;

use super::pairs::want_pairs;
use super::rows::rows;
use crate::cpu::kernels::fft::Transform;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dim_index;
use crate::ops::shape::pad::PadMode;
use crate::suite::Case;
use crate::tensor::Tensor;

/// Which of a transform and its inverse is divided by the length `n`. PyTorch's `norm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FftNorm {
    /// The inverse, by `n`. PyTorch's default.
    #[default]
    Backward,
    /// Both, by the square root of `n`, so that they keep the sum of squares.
    Ortho,
    /// The transform, by `n`.
    Forward,
}

impl FftNorm {
    /// What the results of a transform, or of an inverse one, are multiplied by.
    fn factor(self, is_inverse: bool, n: usize) -> f64 {
        match self {
            FftNorm::Ortho => 1.0 / (n as f64).sqrt(),
            FftNorm::Backward if is_inverse => 1.0 / n as f64,
            FftNorm::Forward if !is_inverse => 1.0 / n as f64,
            _ => 1.0,
        }
    }
}

/// Whether the last dimension has the parts of complex numbers.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    Real,
    Complex,
}

impl Numbers {
    fn trailing(self) -> usize {
        usize::from(self == Numbers::Complex)
    }
}

/// The tensor with this dimension as the last one before the pairs, and with `size` elements in it: truncated, or padded with zeros.
#[track_caller]
fn in_rows(x: &Tensor, numbers: Numbers, dim: usize, size: usize) -> Result<Tensor> {
    let last = x.rank() - 1 - numbers.trailing();
    let x = if dim == last { x.clone() } else { x.movedim(&[dim as isize], &[last as isize])? };
    let present = x.shape()[last];
    if size < present {
        return x.narrow(last as isize, 0, size);
    }
    if size == present {
        return Ok(x);
    }
    let missing = [0, (size - present) as isize];
    let pads: &[isize] = if numbers == Numbers::Complex { &[0, 0, missing[0], missing[1]] } else { &missing };
    x.pad(pads, PadMode::Constant(0.0))
}

/// Moves the dimension of the rows back to its place.
#[track_caller]
fn put_back(out: &Tensor, numbers: Numbers, dim: usize) -> Result<Tensor> {
    let last = out.rank() - 1 - numbers.trailing();
    if dim == last { Ok(out.clone()) } else { out.movedim(&[last as isize], &[dim as isize]) }
}

/// Resolves the dimension and the length of a transform.
fn dim_and_length(
    op: &'static str,
    x: &Tensor,
    numbers: Numbers,
    dim: isize,
    length: impl FnOnce(usize) -> usize,
) -> Result<(usize, usize)> {
    let dim = dim_index(op, dim, x.rank() - numbers.trailing())?;
    let n = length(x.shape()[dim]);
    if n == 0 {
        let message = format!("a length of 0 in dimension {dim} of {:?}: needs at least 1", x.shape());
        return Err(Error::argument(op, message));
    }
    Ok((dim, n))
}

/// Integers as `float32`.
#[track_caller]
fn floating(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { x.to_dtype(DType::F32) }
}

#[track_caller]
fn of_pairs(z: &Tensor, transform: Transform, n: Option<usize>, dim: isize, norm: FftNorm) -> Result<Tensor> {
    let is_inverse = transform == Transform::Backward;
    let op = if is_inverse { "fft_ifft" } else { "fft_fft" };
    want_pairs(op, z)?;
    let z = floating(z)?;
    let (dim, n) = dim_and_length(op, &z, Numbers::Complex, dim, |size| n.unwrap_or(size))?;
    let z = in_rows(&z, Numbers::Complex, dim, n)?;
    put_back(&rows(&z, transform, n, norm.factor(is_inverse, n))?, Numbers::Complex, dim)
}

/// The Fourier transform of complex numbers `[…, 2]` along a dimension of the complex tensor, truncated or zero-padded to length `n` if it
/// is given. Like `torch.fft.fft`; for real numbers, use [`rfft`], or [`complex`](super::complex) with zeros.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, fft, ifft};
/// use plimsoll_tensor::{Device, Tensor};
/// let z = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2], &Device::cpu())?; // 1 and i
/// let spectrum = fft(&z, None, -1, FftNorm::Backward)?;
/// assert_eq!(spectrum.to_vec::<f32>()?, [1.0, 1.0, 1.0, -1.0]);
/// assert_eq!(ifft(&spectrum, None, -1, FftNorm::Backward)?.to_vec::<f32>()?, z.to_vec::<f32>()?);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the last dimension is not 2, the length is 0, or a dimension is out of range; if the dtype is 16-bit; if there is no kernel for the
/// device; or if memory runs out.
#[track_caller]
pub fn fft(z: impl AsRef<Tensor>, n: impl Into<Option<usize>>, dim: isize, norm: FftNorm) -> Result<Tensor> {
    of_pairs(z.as_ref(), Transform::Forward, n.into(), dim, norm)
}

/// The inverse of [`fft`]. Like `torch.fft.ifft`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, ifft};
/// use plimsoll_tensor::{Device, Tensor};
/// let z = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 0.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(ifft(&z, None, -1, FftNorm::Backward)?.to_vec::<f32>()?, [1.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`fft`].
#[track_caller]
pub fn ifft(z: impl AsRef<Tensor>, n: impl Into<Option<usize>>, dim: isize, norm: FftNorm) -> Result<Tensor> {
    of_pairs(z.as_ref(), Transform::Backward, n.into(), dim, norm)
}

/// The Fourier transform of real numbers along a dimension, truncated or zero-padded to length `n` if it is given. Returns half of the spectrum,
/// `n / 2 + 1` complex numbers along that dimension, `[…, 2]`; the others are their conjugates. Like
/// `torch.view_as_real(torch.fft.rfft(x))`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, irfft, rfft};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 0.0, -1.0, 0.0], &[4], &Device::cpu())?;
/// let spectrum = rfft(&x, None, -1, FftNorm::Backward)?;
/// assert_eq!(spectrum.to_vec::<f32>()?, [0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
/// assert_eq!(irfft(&spectrum, None, -1, FftNorm::Backward)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the length is 0, or a dimension is out of range; if the dtype is 16-bit; if there is no kernel for the device; or if memory runs out.
#[track_caller]
pub fn rfft(x: impl AsRef<Tensor>, n: impl Into<Option<usize>>, dim: isize, norm: FftNorm) -> Result<Tensor> {
    let (x, n) = (floating(x.as_ref())?, n.into());
    let (dim, n) = dim_and_length("fft_rfft", &x, Numbers::Real, dim, |size| n.unwrap_or(size))?;
    let x = in_rows(&x, Numbers::Real, dim, n)?;
    put_back(&rows(&x, Transform::FromReal, n, norm.factor(false, n))?, Numbers::Complex, dim)
}

/// The inverse of [`rfft`]: real numbers from half of their spectrum, `[…, 2]`, along a dimension of the complex tensor. `n` is the length of the
/// result; by default `2 · (size - 1)`, so pass it if the length was odd. Ignores imaginary parts that the spectrum of real numbers
/// cannot have. Like `torch.fft.irfft(torch.view_as_complex(z))`.
///
/// ```
/// use plimsoll_tensor::fft::{FftNorm, irfft};
/// use plimsoll_tensor::{Device, Tensor};
/// let z = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 0.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(irfft(&z, 3, -1, FftNorm::Backward)?.to_vec::<f32>()?, [1.0, 1.0, 1.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`fft`].
#[track_caller]
pub fn irfft(
    z: impl AsRef<Tensor>,
    n: impl Into<Option<usize>>,
    dim: isize,
    norm: FftNorm,
) -> Result<Tensor> {
    let (z, n) = (z.as_ref(), n.into());
    want_pairs("fft_irfft", z)?;
    let z = floating(z)?;
    let length = |size: usize| n.unwrap_or(2 * size.saturating_sub(1));
    let (dim, n) = dim_and_length("fft_irfft", &z, Numbers::Complex, dim, length)?;
    let z = in_rows(&z, Numbers::Complex, dim, n / 2 + 1)?;
    put_back(&rows(&z, Transform::ToReal, n, norm.factor(true, n))?, Numbers::Real, dim)
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("rfft of a longer first dimension", &[&[3, 2]], |ins| {
            Ok(smallvec![rfft(ins[0], 5, 0, FftNorm::Ortho)?])
        }),
        Case::new("rfft, cut", &[&[2, 5]], |ins| Ok(smallvec![rfft(ins[0], 4, -1, FftNorm::Forward)?])),
        Case::new("irfft of the first dimension", &[&[3, 2, 2]], |ins| {
            Ok(smallvec![irfft(ins[0], None, 0, FftNorm::Backward)?])
        }),
        Case::new("irfft, longer", &[&[2, 2]], |ins| Ok(smallvec![irfft(ins[0], 7, -1, FftNorm::Ortho)?])),
        Case::new("fft of the first dimension", &[&[3, 2, 2]], |ins| {
            Ok(smallvec![fft(ins[0], None, 0, FftNorm::Backward)?])
        }),
        Case::new("ifft, longer", &[&[2, 3, 2]], |ins| {
            Ok(smallvec![ifft(ins[0], 4, -1, FftNorm::Backward)?])
        }),
    ]
}
