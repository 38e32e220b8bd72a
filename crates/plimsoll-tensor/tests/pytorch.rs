//! Every operation compared with PyTorch: outputs and gradients of the table in `fixtures/pytorch.json`.
//!
//! Each case runs with its tensors dense and in two other forms (`forms/`). `fixtures/make.py` made the
//! table; a new operation needs a few cases there and a line in `call/mod.rs`.

use std::collections::BTreeSet;

use plimsoll_tensor::{BackwardOptions, DType, Device, Element, Tensor, no_grad};
use serde_json::Value;

use crate::call;
use crate::forms;
use crate::forms::Form;

/// Both libraries round each step to 24 bits but add in different orders: a sum of n products may differ by about n · 2⁻²⁴ of
/// its largest partial sum, and the longest sum here has 180 terms.
const RELATIVE: f64 = 1e-5;
/// If large terms cancel, the error is relative to them, not to the small result.
const OF_LARGEST: f64 = 2e-6;

fn cases() -> Vec<Value> {
    let table: Value = serde_json::from_str(include_str!("fixtures/pytorch.json")).unwrap();
    table.as_array().unwrap().clone()
}

fn numbers(tensor: &Value) -> Vec<f64> {
    let number = |value: &Value| match value.as_str() {
        None => value.as_f64().unwrap(),
        Some(text) => text.parse().unwrap(), // inf, -inf, nan
    };
    tensor["values"].as_array().unwrap().iter().map(number).collect()
}

fn tensor(entry: &Value, form: Form, device: &Device) -> Tensor {
    let (values, shape) = (numbers(entry), call::sizes(&entry["shape"]));
    fn of<T: Element>(values: &[f64]) -> Vec<T> {
        values.iter().map(|&x| T::from_f64(x)).collect()
    }
    match call::dtype(&entry["dtype"]) {
        DType::F64 => form.tensor(&of::<f64>(&values), &shape, device),
        DType::F32 => form.tensor(&of::<f32>(&values), &shape, device),
        DType::F16 => form.tensor(&of::<half::f16>(&values), &shape, device),
        DType::BF16 => form.tensor(&of::<half::bf16>(&values), &shape, device),
        DType::I64 => form.tensor(&of::<i64>(&values), &shape, device),
        DType::I32 => form.tensor(&of::<i32>(&values), &shape, device),
        DType::I16 => form.tensor(&of::<i16>(&values), &shape, device),
        DType::U8 => form.tensor(&of::<u8>(&values), &shape, device),
        DType::Bool => form.tensor(&of::<bool>(&values), &shape, device),
    }
}

/// The difference between our tensor and PyTorch's, if there is one.
fn difference(what: &str, got: &Tensor, expected: &Value) -> Option<String> {
    let (shape, dtype) = (call::sizes(&expected["shape"]), call::dtype(&expected["dtype"]));
    if (got.shape(), got.dtype()) != (shape.as_slice(), dtype) {
        return Some(format!("{what} is {got:?}, PyTorch's {shape:?} of {dtype}"));
    }
    let (got, expected) = (forms::values(got), numbers(expected));
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0.0f64, |max, x| max.max(x.abs()));
    let equal = |got: f64, expected: f64| {
        got == expected
            || got.is_nan() && expected.is_nan()
            || (got - expected).abs() <= RELATIVE * expected.abs() + OF_LARGEST * largest.max(1e-3)
                && expected.is_finite()
    };
    let at = (0..got.len()).find(|&i| !equal(got[i], expected[i]))?;
    Some(format!("{what}[{at}] is {}, PyTorch's {}", got[at], expected[at]))
}

fn wants_grad(tensor: &Tensor, entry: &Value) -> Tensor {
    let wants = entry["grads"].is_array() && tensor.dtype().is_float();
    tensor.requires_grad_(wants).unwrap()
}

fn run(case: &Value, form: Form, device: &Device) -> Option<String> {
    let inputs = case["inputs"].as_array().unwrap();
    let inputs: Vec<Tensor> =
        inputs.iter().map(|input| wants_grad(&tensor(input, form, device), case)).collect();
    let output = match call::call(case["op"].as_str().unwrap(), &case["args"], &inputs) {
        Ok(output) => output,
        Err(error) => return Some(format!("error: {error}")),
    };
    let mut found = difference("output", &output, &case["output"]);
    if let Some(grads) = case["grads"].as_array() {
        let gradient = Some(tensor(&case["upstream"], form, device));
        if let Err(error) = output.backward_with(BackwardOptions { gradient, ..Default::default() }) {
            return found.or(Some(format!("error in backward: {error}")));
        }
        for (i, (input, expected)) in inputs.iter().zip(grads).enumerate() {
            found = found.or_else(|| match input.grad() {
                Some(got) => difference(&format!("gradient {i}"), &got, expected),
                None => (!expected.is_null()).then(|| format!("gradient {i} is missing")),
            });
        }
    }
    found
}

#[test]
fn every_operation_and_gradient_is_pytorchs_in_every_form() {
    let device = Device::cpu();
    let mut differences = Vec::new();
    for case in &cases() {
        for form in Form::ALL {
            if let Some(found) = run(case, form, &device) {
                differences.push(format!("{} ({form:?}): {found}", case["name"].as_str().unwrap()));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn without_recording_the_outputs_are_the_same() {
    let device = Device::cpu();
    for case in &cases() {
        let inputs: Vec<Tensor> = case["inputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|input| wants_grad(&tensor(input, Form::Dense, &device), case))
            .collect();
        let output = no_grad(|| call::call(case["op"].as_str().unwrap(), &case["args"], &inputs)).unwrap();
        assert_eq!(difference("output", &output, &case["output"]), None, "{}", case["name"]);
        assert!(output.is_leaf(), "{}", case["name"]);
    }
}

#[test]
fn the_table_is_large_enough_to_mean_something() {
    let cases = cases();
    let ops: BTreeSet<&str> = cases.iter().map(|case| case["op"].as_str().unwrap()).collect();
    assert_eq!((cases.len() >= 300, ops.len()), (true, 52), "{} cases of {ops:?}", cases.len());
}
