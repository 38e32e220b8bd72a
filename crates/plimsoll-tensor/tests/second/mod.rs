//! Second derivatives compared with finite differences of the first.

use plimsoll_tensor::autograd::{GradOptions, grad};
use plimsoll_tensor::{Device, Result, Tensor};

/// Checks the derivative of `Σ w · grad f(x)` against finite differences.
pub(crate) fn check_second(name: &str, shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    let device = Device::cpu();
    let n: usize = shape.iter().product();
    let start: Vec<f32> =
        (0..n).map(|i| 0.6 + 0.37 * ((i * 7 % 11) as f32) / 11.0 + 0.05 * i as f32 / n as f32).collect();
    let weights: Vec<f32> = (0..n).map(|i| (i * 5 % 7) as f32 / 7.0 - 0.4).collect();
    let weights = Tensor::from_slice(&weights, shape, &device).unwrap();
    let slope = |points: &[f32]| {
        let x = Tensor::from_slice(points, shape, &device).unwrap().requires_grad_(true).unwrap();
        let create_graph = GradOptions { create_graph: true, ..GradOptions::default() };
        let y = f(&x).unwrap().square().unwrap().sum().unwrap();
        let first = grad(&[&y], &[&x], create_graph).unwrap().remove(0).unwrap();
        (x, (&first * &weights).unwrap().sum().unwrap())
    };
    let (x, sum) = slope(&start);
    let got = grad(&[&sum], &[&x], GradOptions::default()).unwrap().remove(0).unwrap();
    let got: Vec<f32> = got.to_vec().unwrap();
    for at in 0..n {
        let side = |step: f32| {
            let mut points = start.clone();
            points[at] += step;
            f64::from(slope(&points).1.item::<f32>().unwrap())
        };
        let expected = (side(1e-2) - side(-1e-2)) / 2e-2;
        let scale = got.iter().fold(1.0f64, |max, x| max.max(f64::from(x.abs())));
        assert!(
            (f64::from(got[at]) - expected).abs() <= 2e-2 * scale,
            "{name}: second derivative {at} is {}, the slope is {expected}",
            got[at]
        );
    }
}
