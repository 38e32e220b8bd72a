//! Complex numbers as pairs of real ones, in a last dimension of 2.

use smallvec::smallvec;

use crate::error::{Error, Result};
use crate::suite::Case;
use crate::tensor::Tensor;

/// Fails unless the last dimension has the two parts of complex numbers.
pub(super) fn want_pairs(op: &'static str, x: &Tensor) -> Result<()> {
    match x.shape() {
        [.., 2] => Ok(()),
        shape => {
            let message =
                format!("{shape:?}: needs complex numbers as pairs, […, 2]; `fft::complex` makes them");
            Err(Error::shape(op, message))
        }
    }
}

/// Complex numbers with these real and imaginary parts, `[…, 2]`. Like `torch.view_as_real(torch.complex(real, imag))`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let x = Tensor::from_slice(&[3.0f32, 0.0], &[2], &Device::cpu())?;
/// let z = fft::complex(&x, &x.add_scalar(4.0)?)?;
/// assert_eq!(z.to_vec::<f32>()?, [3.0, 7.0, 0.0, 4.0]);
/// assert_eq!(fft::real(&z)?.to_vec::<f32>()?, [3.0, 0.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the shapes differ, or memory runs out.
#[track_caller]
pub fn complex(real: impl AsRef<Tensor>, imag: impl AsRef<Tensor>) -> Result<Tensor> {
    Tensor::stack(&[real.as_ref(), imag.as_ref()], -1)
}

/// The real parts of `[…, 2]`, as a view. Like `torch.real`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let z = Tensor::from_slice(&[3.0f32, -4.0], &[1, 2], &Device::cpu())?;
/// assert_eq!(fft::real(&z)?.to_vec::<f32>()?, [3.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the last dimension is not 2.
#[track_caller]
pub fn real(z: impl AsRef<Tensor>) -> Result<Tensor> {
    want_pairs("fft_real", z.as_ref())?;
    z.as_ref().select(-1, 0)
}

/// The imaginary parts of `[…, 2]`, as a view. Like `torch.imag`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let z = Tensor::from_slice(&[3.0f32, -4.0], &[1, 2], &Device::cpu())?;
/// assert_eq!(fft::imag(&z)?.to_vec::<f32>()?, [-4.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the last dimension is not 2.
#[track_caller]
pub fn imag(z: impl AsRef<Tensor>) -> Result<Tensor> {
    want_pairs("fft_imag", z.as_ref())?;
    z.as_ref().select(-1, 1)
}

/// The magnitudes of complex numbers `[…, 2]`. The derivative at zero is 0. Like `torch.abs`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let z = Tensor::from_slice(&[3.0f32, -4.0], &[1, 2], &Device::cpu())?;
/// assert_eq!(fft::abs(&z)?.to_vec::<f32>()?, [5.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the last dimension is not 2, or memory runs out.
#[track_caller]
pub fn abs(z: impl AsRef<Tensor>) -> Result<Tensor> {
    want_pairs("fft_abs", z.as_ref())?;
    z.as_ref().norm_dims(2.0, &[-1])
}

/// The angles of complex numbers `[…, 2]`, from -π to π. Like `torch.angle`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let i = Tensor::from_slice(&[0.0f32, 1.0], &[1, 2], &Device::cpu())?;
/// assert!((fft::angle(&i)?.item::<f32>()? - std::f32::consts::FRAC_PI_2).abs() < 1e-6);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the last dimension is not 2, or memory runs out.
#[track_caller]
pub fn angle(z: impl AsRef<Tensor>) -> Result<Tensor> {
    let z = z.as_ref();
    imag(z)?.atan2(real(z)?)
}

/// The complex conjugates of `[…, 2]`. Like `torch.conj`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let z = Tensor::from_slice(&[3.0f32, -4.0], &[1, 2], &Device::cpu())?;
/// assert_eq!(fft::conj(&z)?.to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If the last dimension is not 2, or memory runs out.
#[track_caller]
pub fn conj(z: impl AsRef<Tensor>) -> Result<Tensor> {
    let z = z.as_ref();
    complex(real(z)?, imag(z)?.neg()?)
}

/// The products of complex numbers `[…, 2]`; the other dimensions are broadcast. Like `torch.mul`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, fft};
/// let i = Tensor::from_slice(&[0.0f32, 1.0], &[2], &Device::cpu())?;
/// assert_eq!(fft::mul(&i, &i)?.to_vec::<f32>()?, [-1.0, 0.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If a last dimension is not 2, the shapes do not broadcast, or memory runs out.
#[track_caller]
pub fn mul(a: impl AsRef<Tensor>, b: impl AsRef<Tensor>) -> Result<Tensor> {
    let (a, b) = (a.as_ref(), b.as_ref());
    let ([a_re, a_im], [b_re, b_im]) = ([real(a)?, imag(a)?], [real(b)?, imag(b)?]);
    let re = a_re.mul(&b_re)?.sub(&a_im.mul(&b_im)?)?;
    complex(re, a_re.mul(&b_im)?.add(&a_im.mul(&b_re)?)?)
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        let product = |at: usize| {
            let (a, b) = (&ins[0][at * 2..], &ins[1][at % 3 * 2..]);
            [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
        };
        vec![(0..6).flat_map(product).collect()]
    };
    vec![
        Case::new("complex mul", &[&[2, 3, 2], &[3, 2]], |ins| Ok(smallvec![mul(ins[0], ins[1])?]))
            .expect(naive),
        Case::new("complex abs", &[&[3, 2]], |ins| Ok(smallvec![abs(ins[0])?])),
    ]
}
