//! The functions of `nn::init`: shapes, bounds, moments, and that no graph is recorded. Bounds and deviations are PyTorch's formulas.

use plimsoll::nn::init::{self, Fan, Gain, calculate_gain};
use plimsoll::nn::{Linear, Scope};
use plimsoll::{DType, Device, SimConfig, Tensor};

fn weight(shape: &[usize]) -> Tensor {
    let device = Device::cpu_with(Default::default());
    device.manual_seed(3);
    Tensor::zeros(shape, &device).unwrap().requires_grad_(true).unwrap()
}

/// The mean, the standard deviation, and the largest size of the values.
fn moments(tensor: &Tensor) -> (f64, f64, f64) {
    let values: Vec<f64> = tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt(), values.iter().fold(0.0, |most, x| x.abs().max(most)))
}

#[test]
fn constants_are_written_without_a_graph() {
    let w = weight(&[2, 3]);
    init::constant_(&w, 0.5).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [0.5; 6]);
    init::ones_(&w).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0; 6]);
    init::eye_(&w).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    init::zeros_(&w).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [0.0; 6]);
    assert!(w.is_leaf() && w.requires_grad());
    let fc = Linear::new(&Scope::new(&Device::cpu(), 1), 3, 2).unwrap();
    init::constant_(fc.weight(), 2.0).unwrap();
    assert_eq!(fc.weight().to_vec::<f32>().unwrap(), [2.0; 6]);
    assert_eq!(init::eye_(weight(&[3])).unwrap_err().to_string(), "eye_: [3]: needs a matrix");
}

#[test]
fn uniform_values_fill_their_bounds_and_normal_values_have_their_deviation() {
    // A convolution of 16 channels to 32: a fan in of 144 and a fan out of 288.
    let w = weight(&[32, 16, 3, 3]);
    let uniform = |bound: f64, name: &str| {
        let (mean, std, most) = moments(&w);
        assert!(most <= bound && most > 0.99 * bound, "{name}: {most}, bound {bound}");
        assert!(mean.abs() < 0.05 * bound && (std / (bound / 3f64.sqrt()) - 1.0).abs() < 0.03, "{name}");
    };
    let normal = |expected: f64, name: &str| {
        let (mean, std, _) = moments(&w);
        assert!(mean.abs() < 0.05 * expected && (std / expected - 1.0).abs() < 0.03, "{name}: {std}");
    };
    init::uniform_(&w, -0.25, 0.25).unwrap();
    uniform(0.25, "uniform");
    init::normal_(&w, 0.0, 0.5).unwrap();
    normal(0.5, "normal");
    init::xavier_uniform_(&w, 2.0).unwrap();
    uniform(2.0 * (6f64 / 432.0).sqrt(), "xavier uniform");
    init::xavier_normal_(&w, 1.0).unwrap();
    normal((2f64 / 432.0).sqrt(), "xavier normal");
    init::kaiming_uniform_(&w, Fan::In, Gain::LeakyReLU(0.0)).unwrap();
    uniform((6f64 / 144.0).sqrt(), "kaiming uniform");
    init::kaiming_normal_(&w, Fan::Out, Gain::ReLU).unwrap();
    normal((2f64 / 288.0).sqrt(), "kaiming normal");
    let error = init::xavier_normal_(weight(&[4]), 1.0).unwrap_err().to_string();
    assert_eq!(error, "xavier_normal_: [4] has no fan: needs [outputs, inputs, …]");
    let gains = [Gain::Linear, Gain::Sigmoid, Gain::SELU, Gain::LeakyReLU(0.01)].map(calculate_gain);
    assert!((gains[3] - 1.414_142_856_997_835_4).abs() < 1e-15);
    assert_eq!(gains[..3], [1.0, 1.0, 0.75]);
}

#[test]
fn truncated_values_stay_within_their_bounds_and_are_normal_between() {
    let w = weight(&[64, 256]);
    init::trunc_normal_(&w, 0.0, 1.0, -2.0, 2.0).unwrap();
    let (mean, std, most) = moments(&w);
    // The deviation of a normal distribution that is cut at two deviations.
    assert!(most <= 2.0 && most > 1.99 && mean.abs() < 0.02 && (std - 0.8796).abs() < 0.01, "{mean}, {std}");
    init::trunc_normal_(&w, 0.5, 0.02, 0.5, 0.55).unwrap();
    let values = w.to_vec::<f32>().unwrap();
    assert!(values.iter().all(|x| (0.5..=0.55).contains(x)));
    // The mean of the upper half, cut at 2.5 deviations.
    let (mean, ..) = moments(&w);
    assert!((mean - 0.51545).abs() < 0.0005, "{mean}");
    let error = init::trunc_normal_(&w, 0.0, 0.0, -2.0, 2.0).unwrap_err().to_string();
    assert_eq!(error, "trunc_normal_: a deviation of 0, from -2 to 2: needs a positive one, and low < high");
}

#[test]
fn orthogonal_rows_or_columns_have_the_length_of_the_gain() {
    for (shape, dtype) in
        [(&[5, 8][..], DType::F32), (&[8, 5], DType::F64), (&[6, 6], DType::F32), (&[4, 3, 2, 2], DType::F32)]
    {
        let w = weight(shape).detach().to_dtype(dtype).unwrap();
        init::orthogonal_(&w, 0.5).unwrap();
        let flat = w.flatten(1, -1).unwrap().to_dtype(DType::F64).unwrap();
        let short = if flat.shape()[0] > flat.shape()[1] { flat.t().unwrap() } else { flat };
        let products = short.matmul(short.t().unwrap()).unwrap();
        let n = products.shape()[0];
        let eye = Tensor::eye(n, n, w.device()).unwrap().to_dtype(DType::F64).unwrap();
        let worst = (products - (eye * 0.25).unwrap()).unwrap().abs().unwrap().max().unwrap();
        assert!(worst.item::<f64>().unwrap() < 1e-6, "{shape:?}: {worst}");
    }
    let half = weight(&[4, 4]).detach().to_dtype(DType::BF16).unwrap();
    init::orthogonal_(&half, 1.0).unwrap();
    let gpu = Device::sim(SimConfig::new(1 << 22));
    let w = Tensor::zeros(&[4, 4], &gpu).unwrap();
    init::orthogonal_(&w, 1.0).unwrap();
    init::trunc_normal_(&w, 0.0, 1.0, -2.0, 2.0).unwrap();
    assert!(init::orthogonal_(weight(&[4]), 1.0).is_err());
}
