//! `fft`: derivatives against finite differences, long rows of awkward lengths, and what is refused.

use std::f64::consts::TAU;

use plimsoll_tensor::fft::{self, FftNorm};
use plimsoll_tensor::gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
use plimsoll_tensor::{DType, Device, Result, SimConfig, Tensor};

fn values(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |i: usize| ((i * 7919 + 104_729) % 1009) as f64 / 504.5 - 1.0;
    Tensor::from_slice(&(0..count).map(number).collect::<Vec<_>>(), shape, &Device::cpu()).unwrap()
}

fn text<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn first_and_second_derivatives_are_finite_differences() {
    let check = |f: &dyn Fn(&Tensor) -> Result<Tensor>, shape: &[usize]| {
        let x = values(shape).requires_grad_(true).unwrap();
        gradcheck(|x| f(&x[0]), &[&x], GradcheckOptions::default()).unwrap();
        // A square, because the second derivative of a linear function is zero.
        gradgradcheck(|x| f(&x[0])?.square(), &[&x], None, GradcheckOptions::default()).unwrap();
    };
    for n in [1, 4, 5] {
        check(&|x| fft::rfft(x, n, -1, FftNorm::Ortho), &[2, 4]);
        check(&|x| fft::irfft(x, n, -1, FftNorm::Backward), &[3, 2]);
        check(&|x| fft::fft(x, n, 0, FftNorm::Forward), &[4, 2, 2]);
        check(&|x| fft::ifft(x, n, -1, FftNorm::Backward), &[4, 2]);
    }
    check(
        &|x| fft::irfft2(fft::rfft2(x, None, [0, 1], FftNorm::Backward)?, [3, 2], [0, 1], FftNorm::Ortho),
        &[3, 3],
    );
    check(&|x| fft::abs(x), &[3, 2]);
    check(&|x| fft::mul(x, fft::conj(x)?), &[3, 2]);
}

#[test]
fn a_wave_has_one_frequency_at_any_length() {
    for n in [2usize, 97, 128, 1000, 1009, 4096] {
        let cycles = n / 3;
        let wave: Vec<f32> =
            (0..n).map(|i| (TAU * (i * cycles % n) as f64 / n as f64).cos() as f32).collect();
        let x = Tensor::from_slice(&wave, &[n], &Device::cpu()).unwrap();
        let found =
            fft::abs(fft::rfft(&x, None, -1, FftNorm::Forward).unwrap()).unwrap().to_vec::<f32>().unwrap();
        let height = if cycles == 0 { 1.0 } else { 0.5 };
        for (k, &found) in found.iter().enumerate() {
            let expected = if k == cycles { height } else { 0.0 };
            assert!((found - expected).abs() < 1e-5, "{n}: {found} at {k}");
        }
    }
}

#[test]
fn a_nan_spoils_its_row_only() {
    let x = Tensor::from_slice(&[1.0f32, f32::NAN, 2.0, 1.0, 2.0, 3.0], &[2, 3], &Device::cpu()).unwrap();
    let spectrum =
        fft::abs(fft::rfft(&x, None, -1, FftNorm::Backward).unwrap()).unwrap().to_vec::<f32>().unwrap();
    assert!(spectrum[..2].iter().all(|x| x.is_nan()) && spectrum[2..].iter().all(|x| x.is_finite()));
}

#[test]
fn integers_are_transformed_and_nothing_has_an_empty_spectrum() {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[1i64, 2], &[2], &device).unwrap();
    let spectrum = fft::rfft(&x, None, -1, FftNorm::Backward).unwrap();
    assert_eq!(spectrum.to_vec::<f32>().unwrap(), [3.0, 0.0, -1.0, 0.0]);
    let empty = fft::rfft(Tensor::zeros(&[0, 5], &device).unwrap(), None, -1, FftNorm::Backward).unwrap();
    assert_eq!(empty.shape(), [0, 3, 2]);
    let other = fft::rfft(Tensor::zeros(&[0, 5], &device).unwrap(), 2, 0, FftNorm::Backward).unwrap();
    assert_eq!(other.to_vec::<f32>().unwrap(), [0.0; 20]);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let z = Tensor::zeros(&[2, 2, 2], &Device::cpu()).unwrap();
    let twice = fft::fft2(&z, None, [1, -1], FftNorm::Backward).unwrap_err().to_string();
    assert_eq!(twice, "fft_fft2: dimensions [1, -1] are the same: name two different ones");
    let zeros = |shape: &[usize]| Tensor::zeros(shape, &Device::cpu()).unwrap();
    let back = FftNorm::Backward;
    let halves = zeros(&[4]).to_dtype(DType::F16).unwrap();
    for (error, expected) in [
        (text(fft::rfft(halves, None, -1, back)), "fft_rfft: expected float32 or float64, got float16"),
        (text(fft::rfft(zeros(&[0]), None, -1, back)), "fft_rfft: a length of 0 in dimension 0 of [0]"),
        (text(fft::rfft(zeros(&[4]), 0, -1, back)), "a length of 0"),
        (text(fft::rfft(zeros(&[4]), None, 1, back)), "fft_rfft: dimension 1 of a tensor with 1 dimensions"),
        (text(fft::rfft(zeros(&[]), None, -1, back)), "of a scalar"),
        (text(fft::irfft(zeros(&[1, 2]), None, -1, back)), "fft_irfft: a length of 0"),
        (text(fft::irfft(zeros(&[4]), None, -1, back)), "fft_irfft: [4]: needs complex numbers as pairs"),
        (text(fft::fft(zeros(&[2]), None, -1, back)), "of a scalar"),
        (text(fft::mul(zeros(&[3]), zeros(&[2]))), "fft_real: [3]: needs complex numbers as pairs"),
        (text(fft::fftfreq(0, 1.0, &Device::cpu())), "a length of 0"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_simulated_device_has_the_shapes_and_the_memory() {
    let peak = |device: &Device| {
        let x = Tensor::zeros(&[8, 33], device).unwrap().requires_grad_(true).unwrap();
        let z = fft::rfft2(&x, [16, 20], [0, 1], FftNorm::Ortho).unwrap();
        assert_eq!(z.shape(), [16, 11, 2]);
        fft::irfft2(&z, None, [0, 1], FftNorm::Ortho)
            .unwrap()
            .square()
            .unwrap()
            .sum()
            .unwrap()
            .backward()
            .unwrap();
        device.max_memory_allocated()
    };
    let host = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    assert_eq!(peak(&host), peak(&Device::sim(SimConfig::new(1 << 30))));
}

#[test]
fn the_sum_of_real_numbers_is_real() {
    for n in [37, 41, 127] {
        let x = Tensor::randn(&[5, n], &Device::cpu()).unwrap();
        let first = fft::rfft(&x, None, -1, FftNorm::Backward).unwrap().select(1, 0).unwrap();
        assert!(fft::imag(&first).unwrap().to_vec::<f32>().unwrap().iter().all(|part| *part == 0.0), "{n}");
    }
}
