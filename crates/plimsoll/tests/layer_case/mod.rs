//! Compares a layer with PyTorch's. `fixtures/make_layers.py` has the formula for parameters and inputs; outputs and
//! gradients must match.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]
#![allow(clippy::needless_pass_by_value, reason = "a layer is made for one check")]

use std::collections::BTreeMap;

use plimsoll::nn::{Module, Scope};
use plimsoll::{Device, Result, Tensor};
use serde_json::Value;

pub(crate) fn device() -> Device {
    Device::cpu()
}

pub(crate) fn scope() -> Scope {
    Scope::new(&device(), 1)
}

/// The values that `make_layers.py` assigns to a tensor with this name.
pub(crate) fn wave(name: &str, shape: &[usize]) -> Tensor {
    let seed: usize = name.bytes().enumerate().map(|(k, b)| (k + 1) * usize::from(b)).sum();
    let count: usize = shape.iter().product();
    let values: Vec<f32> =
        (0..count).map(|i| (0.4 * (12.9898 * i as f64 + 0.7 * seed as f64).sin()) as f32).collect();
    Tensor::from_slice(&values, shape, &device()).unwrap()
}

pub(crate) type Outs = Vec<(&'static str, Tensor)>;

pub(crate) fn near(case: &str, what: &str, got: &Tensor, expected: &Value) {
    let expected: Vec<f64> = serde_json::from_value(expected.clone()).unwrap();
    let got = got.to_vec::<f32>().unwrap();
    assert_eq!(got.len(), expected.len(), "{case}, {what}");
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let off = (f64::from(*got) - expected).abs();
        assert!(
            off < 2e-6 * (1.0 + expected.abs()),
            "{case}, {what}, element {i}: {got}, PyTorch's {expected}"
        );
    }
}

/// The recorded results of PyTorch's layer.
pub(crate) fn recorded(case: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../fixtures/layers.json")).unwrap();
    assert!(!all[case].is_null(), "no case `{case}` is recorded");
    all[case].clone()
}

/// Compares a layer with PyTorch's; `run` receives inputs of these shapes.
pub(crate) fn check<M: Module>(
    case: &str,
    model: M,
    inputs: &[(&str, &[usize])],
    run: impl Fn(&M, &[Tensor]) -> Result<Outs>,
) {
    let expected = &recorded(case);
    let names: BTreeMap<String, Vec<usize>> = serde_json::from_value(expected["names"].clone()).unwrap();
    let parameters = model.named_parameters();
    let own = parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect();
    assert_eq!(names, own, "{case}");
    for (name, parameter) in &parameters {
        plimsoll::no_grad(|| parameter.copy_(wave(name, parameter.shape()))).unwrap();
    }
    let tensors: Vec<Tensor> =
        inputs.iter().map(|(name, shape)| wave(name, shape).requires_grad_(true).unwrap()).collect();
    let outs = run(&model, &tensors).unwrap();
    let mut loss = Tensor::zeros(&[], &device()).unwrap();
    for (name, out) in &outs {
        near(case, name, out, &expected["outs"][name]);
        loss = (&loss + &(out * &wave(name, out.shape())).unwrap().sum().unwrap()).unwrap();
    }
    assert_eq!(outs.len(), expected["outs"].as_object().unwrap().len(), "{case}");
    loss.backward().unwrap();
    let named = inputs.iter().map(|(name, _)| (*name).to_owned()).zip(tensors).chain(parameters);
    for (name, tensor) in named {
        let grad = tensor.grad().unwrap_or_else(|| panic!("{case}: {name} has no gradient"));
        near(case, &format!("the gradient of {name}"), &grad, &expected["grads"][&name]);
    }
}
