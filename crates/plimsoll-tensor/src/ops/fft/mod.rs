//! Fourier transforms. Like `torch.fft`, with complex numbers as pairs of real ones.
//!
//! There is no complex type. A spectrum is a real tensor whose last dimension has two elements, the real and the imaginary part, as in
//! `torch.view_as_real(torch.fft.rfft(x))`. `dim` counts the dimensions of the complex tensor, as in PyTorch, so that -1 is the
//! dimension before the pairs. [`complex`], [`real`], [`imag`], [`abs`], [`angle`], [`conj`] and [`mul`] work with pairs; for sums, and products
//! with real numbers, use the ordinary operations of tensors.
//!
//! Transforms have kernels for the CPU, in `float32` and `float64`, for any length; a GPU rejects them by name: move the tensor with
//! [`to_device`](crate::Tensor::to_device), and the result back. Integers are transformed as `float32`.
//!
//! ```
//! use plimsoll_tensor::fft::{self, FftNorm};
//! use plimsoll_tensor::{Device, Tensor};
//! let device = Device::cpu();
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4], &device)?;
//! let kernel = Tensor::from_slice(&[0.0f32, 1.0, 0.0, 0.0], &[4], &device)?;
//! // A circular convolution.
//! let spectrum = |x: &Tensor| fft::rfft(x, None, -1, FftNorm::Backward);
//! assert_eq!(spectrum(&x)?.shape(), [3, 2]);
//! let y = fft::irfft(fft::mul(spectrum(&x)?, spectrum(&kernel)?)?, 4, -1, FftNorm::Backward)?;
//! assert!(y.allclose(&x.roll(&[1], &[0])?, Default::default())?);
//! # Ok::<(), plimsoll_tensor::Error>(())
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `rows` | the operator, which transforms rows |
//! | `pairs` | complex numbers as pairs |
//! | `transforms` | transforms along one dimension |
//! | `planes` | transforms along two dimensions |
//! | `frequencies` | the frequencies of a spectrum |

mod frequencies;
mod pairs;
mod planes;
mod rows;
mod transforms;

pub use frequencies::{fftfreq, rfftfreq};
pub use pairs::{abs, angle, complex, conj, imag, mul, real};
pub use planes::{fft2, ifft2, irfft2, rfft2};
pub use transforms::{FftNorm, fft, ifft, irfft, rfft};

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("rows", rows::cases), ("transforms", transforms::cases), ("pairs", pairs::cases)];
