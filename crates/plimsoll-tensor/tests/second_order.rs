//! Recorded backward passes: the same gradients as a plain pass, correct second derivatives, and no more memory than PyTorch
//! uses.
//!
//! Every operator is tested by `suite::check_recorded` and `suite::check_second`. Second derivatives at extreme values of each
//! dtype, and the bytes that a graph keeps alive, are compared with PyTorch's in `fixtures/second.json`, written by
//! `fixtures/make_second.py`.

mod calls;

use plimsoll_tensor::autograd::{GradOptions, grad};
use plimsoll_tensor::suite::{Case, check_recorded, check_second};
use plimsoll_tensor::{DType, Device, OPERATORS, Result, ScatterReduction, SimConfig, Tensor};
use serde_json::Value;

use crate::forms::Form;
use crate::table::tensors;

/// Name prefixes of operators without second derivatives: PyTorch has none either, or the gradient is computed in the forward
/// pass.
const WITHOUT: [&str; 2] = ["cdist", "linear_cross_entropy"];

/// Cases that compute in `float32` for any input: too coarse for finite differences.
const IN_FLOAT32: [&str; 2] = ["to_dtype there and back", "apply_rotary with tables"];

fn cases() -> Vec<Case> {
    OPERATORS.iter().flat_map(|(_, cases)| cases()).collect()
}

#[test]
fn a_recorded_pass_gives_every_operators_gradients_also_where_inputs_depend_on_each_other() {
    let failures: Vec<String> = cases().iter().filter_map(|case| check_recorded(case).err()).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_operators_second_derivative_is_right_or_it_says_that_there_is_none() {
    let mut failures = Vec::new();
    for case in cases().into_iter().filter(|case| !IN_FLOAT32.contains(&&*case.name)) {
        match check_second(&case) {
            Ok(()) => {}
            Err(error) if WITHOUT.iter().any(|name| case.name.starts_with(name)) => {
                assert!(error.to_string().contains("has no second derivative"), "{error}");
            }
            Err(error) => failures.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/second.json")).unwrap()
}

fn create() -> GradOptions {
    GradOptions { create_graph: true, allow_unused: true, ..GradOptions::default() }
}

/// Like `weights` in the script.
fn weights(like: &Tensor, k: usize) -> Tensor {
    let values: Vec<f64> = (0..like.numel()).map(|i| ((i * 5 + k * 3) % 7) as f64 / 2.0 - 1.25).collect();
    Tensor::from_slice(&values, like.shape(), like.device()).unwrap().to_dtype(like.dtype()).unwrap()
}

/// The first and second derivatives of a case; the second ones with respect to its inputs and its initial gradient.
fn derivatives(op: &str, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let y = calls::call(op, inputs)?;
    let floats: Vec<&Tensor> = inputs.iter().filter(|x| x.dtype().is_float()).collect();
    let start = weights(&y, 0).requires_grad_(true)?;
    let found = grad(&[&y], &floats, GradOptions { gradients: vec![Some(start.clone())], ..create() })?;
    let zeros = |found: Vec<Option<Tensor>>, like: &[&Tensor]| -> Result<Vec<Tensor>> {
        found.into_iter().zip(like).map(|(x, like)| x.map_or_else(|| like.zeros_like(), Ok)).collect()
    };
    let first = zeros(found, &floats)?;
    let mut total = Tensor::full(&[], 0.0, y.dtype(), y.device())?;
    for (k, gradient) in first.iter().enumerate() {
        total = total.add(&gradient.mul(weights(gradient, k + 1))?.sum()?)?;
    }
    let all: Vec<&Tensor> = floats.into_iter().chain([&start]).collect();
    let second = match total.requires_grad() {
        true => grad(&[&total], &all, GradOptions { allow_unused: true, ..GradOptions::default() })?,
        false => vec![None; all.len()],
    };
    Ok((first, zeros(second, &all)?))
}

#[test]
fn first_and_second_derivatives_are_pytorchs_at_the_ends_of_each_type_too() {
    let device = Device::cpu();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut differences = Vec::new();
    for case in fixture()["cases"].as_array().unwrap() {
        let op = case[0].as_str().unwrap();
        let all = |of: usize| case[of].as_array().unwrap().iter().map(text).collect::<Vec<_>>();
        let mut compare = |form: Form, what: &str, found: &[Tensor], expected: &[String]| {
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                if let Err(error) = tensors::compare(&format!("{what} {i}"), found, expected) {
                    differences.push(format!("{op} of {:?} ({form:?}): {error}", all(1)));
                }
            }
        };
        for form in Form::ALL {
            let leaf = |text: &String| {
                let tensor = tensors::tensor(text, form, &device);
                if tensor.dtype().is_float() { tensor.requires_grad_(true).unwrap() } else { tensor }
            };
            let inputs: Vec<Tensor> = all(1).iter().map(leaf).collect();
            let (first, second) = derivatives(op, &inputs).unwrap_or_else(|error| panic!("{op}: {error}"));
            compare(form, "gradient", &first, &all(2));
            compare(form, "second derivative", &second, &all(3));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn a_recorded_graph_keeps_no_byte_more_than_pytorchs() {
    let mut more = Vec::new();
    for (name, bytes) in fixture()["kept"].as_object().unwrap() {
        let device = Device::sim(SimConfig::new(1 << 30));
        let shape: &[usize] =
            if ["bn", "gn"].contains(&name.as_str()) { &[64, 8, 32, 32] } else { &[1024, 512] };
        let x = Tensor::randn(shape, &device).unwrap().requires_grad_(true).unwrap();
        let parameters: Vec<Tensor> = calls::parameters(name, &device);
        let y = calls::layer(name, &x, &parameters).unwrap();
        let gradient =
            grad(&[&y.square().unwrap().sum().unwrap()], &[&x], create()).unwrap().remove(0).unwrap();
        let norm = gradient.square().unwrap().sum().unwrap().sqrt().unwrap();
        let penalty = (&norm - 1.0).unwrap().square().unwrap();
        // Each scalar takes a complete block of the allocator: allow 32 of them.
        let (kept, allowed) = (device.memory_allocated(), bytes.as_u64().unwrap() + 32 * 512);
        if kept > allowed {
            more.push(format!("{name}: {kept} bytes, PyTorch's {bytes}"));
        }
        penalty.backward().unwrap();
    }
    assert!(more.is_empty(), "{}", more.join("\n"));
}

#[test]
fn inputs_that_are_one_tensor_are_counted_once_each() {
    let device = Device::cpu();
    let x = Tensor::randn(&[2, 3], &device).unwrap().requires_grad_(true).unwrap();
    let w = Tensor::randn(&[4, 3], &device).unwrap();
    let gradient = |create_graph: bool| {
        let up = x.tanh().unwrap();
        let sum = up.swiglu_linear(up.tanh().unwrap(), &w).unwrap().square().unwrap().sum().unwrap();
        let options = GradOptions { create_graph, ..GradOptions::default() };
        grad(&[&sum], &[&x], options).unwrap().remove(0).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(gradient(true), gradient(false));
}

#[test]
fn a_product_at_an_index_has_a_second_derivative_but_not_between_two_zeros() {
    let device = Device::cpu();
    let second = |values: &[f64]| -> Result<Vec<f64>> {
        let x = Tensor::from_slice(values, &[3], &device)?.requires_grad_(true)?;
        let index = Tensor::from_slice(&[0i64, 0, 0], &[3], &device)?;
        let one = Tensor::full(&[1], 1.0, DType::F64, &device)?;
        let product = one.scatter_reduce(0, &index, &x, ScatterReduction::Prod, true)?;
        let first = grad(&[&product], &[&x], create())?.remove(0).unwrap();
        grad(&[&first.square()?.sum()?], &[&x], GradOptions::default())?.remove(0).unwrap().to_vec()
    };
    // Of (bc)² + (ac)² + (ab)²: 2a(b² + c²) and likewise for b and c.
    assert_eq!(second(&[2.0, 3.0, 5.0]).unwrap(), [136.0, 174.0, 130.0]);
    assert_eq!(second(&[0.0, 3.0, 5.0]).unwrap(), [0.0, 150.0, 90.0]);
    let error = second(&[0.0, 0.0, 5.0]).unwrap_err().to_string();
    assert!(
        error.contains("no second derivative here where more than one factor of a place is 0"),
        "{error}"
    );
}

#[test]
fn derivatives_of_any_order_can_be_asked_for() {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[0.75f64], &[1], &device).unwrap().requires_grad_(true).unwrap();
    let nth = |f: &dyn Fn(&Tensor) -> Result<Tensor>, order: usize| -> f64 {
        let mut y = f(&x).unwrap();
        for _ in 0..order {
            y = grad(&[&y.sum().unwrap()], &[&x], create()).unwrap().remove(0).unwrap();
        }
        y.item().unwrap()
    };
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}, expected {expected}");
    near(nth(&Tensor::sin, 5), 0.75f64.cos());
    near(nth(&Tensor::exp, 4), 0.75f64.exp());
    near(nth(&|x| x.pow_scalar(5.0), 4), 120.0 * 0.75);
    near(nth(&|x| x.log()?.neg(), 4), 6.0 / 0.75f64.powi(4));
    near(nth(&|x| x.mul(x)?.mul(x)?.mul(x), 3), 24.0 * 0.75);
    let s = 1.0 / (1.0 + (-0.75f64).exp());
    near(nth(&Tensor::softplus, 4), s * (1.0 - s) * (1.0 - 6.0 * s + 6.0 * s * s));
}
