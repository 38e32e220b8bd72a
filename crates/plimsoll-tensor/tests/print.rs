//! `print` of a tensor shows the same text as PyTorch's. `fixtures/print.py` recorded the texts.

use plimsoll_tensor::{DType, Device, Element, SimConfig, Tensor};
use serde_json::Value;

fn of<T: Element>(values: &[T], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::cpu()).unwrap()
}

/// The numbers that `fixtures/print.py` prints.
fn count(shape: &[usize]) -> Tensor {
    Tensor::arange(shape.iter().product(), &Device::cpu()).unwrap().reshape(shape).unwrap()
}

/// The tensors under their names in the file.
fn tensors() -> Vec<(&'static str, Tensor)> {
    let thirds = |shape: &[usize]| (count(shape).to_dtype(DType::F32).unwrap() / 3.0).unwrap();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let leaf = of(&[1.0f32, 2.0], &[2]).requires_grad_(true).unwrap();
    vec![
        ("scalar", of(&[0.5f32], &[])),
        ("whole scalar", of(&[3.0f32], &[])),
        ("vector", of(&[1.0f32, 0.5, -2.0, 1.0 / 3.0], &[4])),
        ("whole floats", of(&[1.0f32, -20.0, 300.0], &[3])),
        ("whole floats, far apart", of(&[1.0f32, 2000.0, -5.0], &[3])),
        ("zeros", Tensor::zeros(&[2, 3], &Device::cpu()).unwrap()),
        ("small", of(&[1e-5f32, 1.0, -2.5], &[3])),
        ("large", of(&[1e9f32, 1.5e10], &[2])),
        ("tiny, with 3 digits in exponents", of(&[1e-120f64, 1e120], &[2])),
        ("not finite", of(&[nan, 1.0, inf, -inf], &[4])),
        ("not finite, fractions", of(&[nan, 1.25, inf, -inf], &[4])),
        ("only not finite", of(&[nan, inf], &[2])),
        ("negative zero", of(&[-0.0f32, 0.0], &[2])),
        ("int64", count(&[3, 4])),
        ("a large int64", of(&[9_007_199_254_740_993i64, -1], &[2])),
        ("int32", of(&[1i32, -20], &[2])),
        ("uint8", of(&[1u8, 200], &[2])),
        ("bool", of(&[true, false], &[2])),
        ("float64", of(&[0.1f64, 0.2], &[2])),
        ("float16", of(&[0.1f32, 2048.0], &[2]).to_dtype(DType::F16).unwrap()),
        ("bfloat16", of(&[0.1f32, 2.5], &[2]).to_dtype(DType::BF16).unwrap()),
        ("three dimensions", thirds(&[2, 3, 4])),
        ("four dimensions", count(&[2, 1, 2, 2])),
        ("a long row", thirds(&[40])),
        ("a long matrix", thirds(&[2, 30])),
        ("1000 elements", count(&[1000])),
        ("abbreviated vector", thirds(&[1001])),
        ("abbreviated matrix", thirds(&[50, 60])),
        ("abbreviated rows", count(&[2, 600])),
        ("abbreviated, four dimensions", count(&[8, 2, 7, 20])),
        ("transposed", count(&[3, 4]).t().unwrap()),
        ("abbreviated and transposed", count(&[50, 60]).t().unwrap()),
        ("empty", of::<f32>(&[], &[0])),
        ("empty matrix", of::<i64>(&[], &[0, 3])),
        ("requires grad", leaf),
        ("requires grad, near the end", thirds(&[8]).requires_grad_(true).unwrap()),
        ("dtype on its own line", thirds(&[8]).to_dtype(DType::F64).unwrap()),
    ]
}

#[test]
fn the_text_is_pytorchs() {
    let recorded: Value = serde_json::from_str(include_str!("fixtures/print.json")).unwrap();
    let tensors = tensors();
    assert_eq!(recorded.as_object().unwrap().len(), tensors.len());
    for (name, tensor) in tensors {
        assert_eq!(tensor.to_string(), recorded[name].as_str().unwrap(), "{name}");
    }
}

#[test]
fn an_operation_and_a_device_without_values_are_named() {
    let x = of(&[1.0f32, 2.0], &[2]).requires_grad_(true).unwrap();
    assert_eq!(x.exp().unwrap().to_string(), "tensor([2.7183, 7.3891], grad_fn=<exp>)");
    let gpu = Device::sim(SimConfig::new(1 << 22));
    let name = gpu.name().to_owned();
    let x = Tensor::full(&[2, 3], 1.0, DType::BF16, &gpu).unwrap();
    let expected = format!("tensor(..., device='{name}', size=[2, 3], no values, dtype=bfloat16)");
    assert_eq!(x.to_string(), expected);
    gpu.rehearse();
    assert_eq!(x.to_string(), expected);
    assert_eq!(gpu.rehearsal().unwrap().reads, 0, "printing is not a read");
}

#[test]
fn printing_a_large_tensor_copies_only_what_is_shown() {
    let device = Device::cpu_with(Default::default());
    let x = Tensor::zeros(&[1 << 12, 1 << 8], &device).unwrap();
    device.reset_peak_memory_stats();
    let before = device.memory_allocated();
    assert!(x.to_string().starts_with("tensor([[0., 0., 0.,  ..., 0., 0., 0.],\n"));
    assert!(device.max_memory_allocated() < before + (16 << 10));
    assert_eq!(device.memory_allocated(), before);
}
