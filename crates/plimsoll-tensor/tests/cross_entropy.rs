//! Cross entropy: its memory with and without the projection before it, tied weights, second derivatives, invalid targets.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::autograd::{GradOptions, grad};
use plimsoll_tensor::{
    BackwardOptions, CpuConfig, CrossEntropyOptions, DType, Device, Error, SimConfig, Tensor, no_grad,
};

use crate::second::check_second;

fn options() -> CrossEntropyOptions<'static> {
    CrossEntropyOptions::default()
}

/// Peak memory above the parameters, the input and their gradients.
fn peak(rows: usize, classes: usize) -> u64 {
    let device = Device::sim(SimConfig::new(1 << 40));
    let x = Tensor::randn(&[rows, 64], &device).unwrap().requires_grad_(true).unwrap();
    let weight = Tensor::randn(&[classes, 64], &device).unwrap().requires_grad_(true).unwrap();
    let target = Tensor::full(&[rows], 0.0, DType::I64, &device).unwrap();
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    x.linear_cross_entropy(&weight, None, &target, options()).unwrap().backward().unwrap();
    let gradients = ((rows + classes) * 64 * 4) as u64;
    device.max_memory_allocated() - before - gradients
}

#[test]
fn the_logits_of_a_projection_are_never_whole() {
    // All logits would take 64 times the memory of the input.
    for (rows, classes) in [(4096, 4096), (16384, 4096), (4096, 16384)] {
        let (extra, logits) = (peak(rows, classes), (rows * classes * 4) as u64);
        assert!(extra < logits / 10, "{extra} beside {logits} for {rows} rows and {classes} classes");
    }
    assert!(peak(1 << 16, 1 << 16) < 64 << 20, "{}", peak(1 << 16, 1 << 16));
}

#[test]
fn without_a_gradient_only_a_chunk_is_held() {
    let device = Device::sim(SimConfig::new(1 << 40));
    let x = Tensor::randn(&[4096, 64], &device).unwrap().requires_grad_(true).unwrap();
    let weight = Tensor::randn(&[4096, 64], &device).unwrap().requires_grad_(true).unwrap();
    let target = Tensor::full(&[4096], 0.0, DType::I64, &device).unwrap();
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    let loss = no_grad(|| x.linear_cross_entropy(&weight, None, &target, options())).unwrap();
    assert!(device.max_memory_allocated() - before < 4096 * 64 * 4 + (1 << 16));
    assert_eq!(device.memory_allocated() - before, 512);
    drop(loss);
}

#[test]
fn a_cross_entropy_holds_the_logits_and_their_gradient_and_no_third() {
    let device = Device::sim(SimConfig::new(1 << 40));
    let logits = Tensor::randn(&[1024, 4096], &device).unwrap().requires_grad_(true).unwrap();
    let target = Tensor::full(&[1024], 0.0, DType::I64, &device).unwrap();
    let before = device.memory_allocated();
    device.reset_peak_memory_stats();
    let loss = logits.cross_entropy_with(&target, options()).unwrap();
    assert!(device.max_memory_allocated() - before < 32 << 10);
    loss.backward().unwrap();
    assert!(device.max_memory_allocated() - before < (1024 * 4096 * 4) + (32 << 10));
}

#[test]
fn a_loss_that_is_scaled_or_passed_twice_has_the_gradients_of_its_parts() {
    let device = Device::cpu_with(CpuConfig::default());
    let leaf = |shape: &[usize]| Tensor::randn(shape, &device).unwrap().requires_grad_(true).unwrap();
    let (x, weight) = (leaf(&[6, 4]), leaf(&[5, 4]));
    let target = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 0], &[6], &device).unwrap();
    let whole = x.linear(&weight, None).unwrap().cross_entropy(&target).unwrap().mul_scalar(-3.0).unwrap();
    let expected = grad(&[&whole], &[&x, &weight], GradOptions::default()).unwrap();
    let fused = x.linear_cross_entropy(&weight, None, &target, options()).unwrap().mul_scalar(-3.0).unwrap();
    for times in [1.0, 2.0] {
        let retain_graph = times == 1.0;
        fused.backward_with(BackwardOptions { retain_graph, ..BackwardOptions::default() }).unwrap();
        for (leaf, expected) in [&x, &weight].into_iter().zip(&expected) {
            let got = leaf.grad().unwrap().to_vec::<f32>().unwrap();
            let expected = expected.as_ref().unwrap().to_vec::<f32>().unwrap();
            let close = |(a, b): (&f32, &f32)| (a - times * b).abs() < 1e-5;
            assert!(got.iter().zip(&expected).all(close), "{got:?} {expected:?}");
        }
    }
    let error = fused.backward().unwrap_err();
    assert!(matches!(error, Error::GraphFreed { .. }), "{error}");
}

#[test]
fn a_weight_may_be_an_embeddings_too() {
    let device = Device::cpu_with(CpuConfig::default());
    let table = Tensor::randn(&[5, 4], &device).unwrap().requires_grad_(true).unwrap();
    let target = Tensor::from_slice(&[0i64, 1, 2, 3], &[4], &device).unwrap();
    let of = |fused: bool| {
        let x = table.index_select(0, &target).unwrap().tanh().unwrap();
        let loss = match fused {
            true => x.linear_cross_entropy(&table, None, &target, options()),
            false => x.linear(&table, None).unwrap().cross_entropy(&target),
        };
        let found = grad(&[&loss.unwrap()], &[&table], GradOptions::default()).unwrap().remove(0).unwrap();
        found.to_vec::<f32>().unwrap()
    };
    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert!(of(true).iter().zip(&of(false)).all(close));
}

#[test]
fn the_derivative_has_a_derivative() {
    let device = Device::cpu();
    let target = Tensor::from_slice(&[1i64, 0], &[2], &device).unwrap();
    let weight = Tensor::from_slice(&[0.5f32, 2.0, 1.5], &[3], &device).unwrap();
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        let options =
            CrossEntropyOptions { weight: Some(&weight), label_smoothing: 0.1, reduction, ..options() };
        check_second("of classes", &[2, 3], |x| x.cross_entropy_with(&target, options));
        check_second("of probabilities", &[2, 3], |x| x.cross_entropy_with(&x.square()?, options));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::cpu();
    let x = Tensor::zeros(&[2, 3], &device).unwrap();
    let target = |values: &[i64]| Tensor::from_slice(values, &[values.len()], &device).unwrap();
    let refused = |x: &Tensor, target: &Tensor, options: CrossEntropyOptions<'_>| {
        x.cross_entropy_with(target, options).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&x, &target(&[0, 3]), options()),
        "cross_entropy: target 3 in row 1 is not a class: classes are 0 to 2"
    );
    assert!(refused(&x, &target(&[0, 1, 2]), options()).contains("logits [2, 3] with target [3]"));
    let smoothing = CrossEntropyOptions { label_smoothing: 1.5, ..options() };
    assert!(refused(&x, &target(&[0, 1]), smoothing).contains("label_smoothing is 1.5"));
    let weight = Tensor::zeros(&[4, 3], &device).unwrap().requires_grad_(true).unwrap();
    let fused = |target: &Tensor, options: CrossEntropyOptions<'_>| {
        x.linear_cross_entropy(&weight, None, target, options).map_err(|error| error.to_string())
    };
    let error = fused(&target(&[0, -1]), options()).unwrap_err();
    assert_eq!(error, "linear_cross_entropy: target -1 in row 1 is not a class: classes are 0 to 3");
    let none = CrossEntropyOptions { reduction: Reduction::None, ..options() };
    assert!(fused(&target(&[0, 1]), none).unwrap_err().contains("use `linear` and `cross_entropy_with`"));
    let graph = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    fused(&target(&[0, 1]), options()).unwrap().backward_with(graph).unwrap();
    let penalty = weight.grad().unwrap().square().unwrap().sum().unwrap();
    let error = penalty.backward().unwrap_err().to_string();
    assert!(error.contains("it has no second derivative"), "{error}");
    assert!(error.contains("use `linear` and `cross_entropy` instead"), "{error}");
}
