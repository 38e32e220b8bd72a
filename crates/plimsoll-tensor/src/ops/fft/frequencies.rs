//! The frequencies of a spectrum's elements.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

fn step(op: &'static str, n: usize, d: f64) -> Result<f64> {
    if n == 0 {
        return Err(Error::argument(op, "a length of 0: needs at least 1"));
    }
    Ok(1.0 / (n as f64 * d))
}

/// The frequencies of [`fft`](super::fft) of `n` samples spaced `d` apart, as `float32`: `0, 1, …, -2, -1` divided by `n · d`. Like
/// `torch.fft.fftfreq`.
///
/// ```
/// use plimsoll_tensor::{Device, fft};
/// assert_eq!(fft::fftfreq(4, 0.5, &Device::cpu())?.to_vec::<f32>()?, [0.0, 0.5, -1.0, -0.5]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If `n` is 0, or memory runs out.
#[track_caller]
pub fn fftfreq(n: usize, d: f64, device: &Device) -> Result<Tensor> {
    let step = step("fft_fftfreq", n, d)?;
    let positive = Tensor::arange_from(0.0, n.div_ceil(2) as f64, 1.0, DType::F32, device)?;
    let negative = Tensor::arange_from(-((n / 2) as f64), 0.0, 1.0, DType::F32, device)?;
    Tensor::cat(&[positive, negative], 0)?.mul_scalar(step)
}

/// The frequencies of [`rfft`](super::rfft) of `n` samples spaced `d` apart, as `float32`: `0, 1, …, n / 2` divided by `n · d`. Like
/// `torch.fft.rfftfreq`.
///
/// ```
/// use plimsoll_tensor::{Device, fft};
/// assert_eq!(fft::rfftfreq(4, 0.5, &Device::cpu())?.to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If `n` is 0, or memory runs out.
#[track_caller]
pub fn rfftfreq(n: usize, d: f64, device: &Device) -> Result<Tensor> {
    let step = step("fft_rfftfreq", n, d)?;
    Tensor::arange_from(0.0, (n / 2 + 1) as f64, 1.0, DType::F32, device)?.mul_scalar(step)
}
