//! The memory-saving operators compared with PyTorch: outputs and gradients of the table in `fixtures/fused.json`.
//!
//! Each case runs with its tensors dense and in two other forms (`forms/`), and once more with `create_graph`, which uses the
//! other form of the derivative. `fixtures/make_fused.py` made the table.

mod call;

use plimsoll_tensor::{BackwardOptions, DType, Device, Tensor, bf16, f16};
use serde_json::Value;

use crate::forms;
use crate::forms::Form;

/// As in `pytorch.rs`: the rounding error of sums of a few hundred products, added in a different order.
const RELATIVE: f64 = 2e-5;
const OF_LARGEST: f64 = 4e-6;

fn numbers(tensor: &Value) -> Vec<f64> {
    let number = |value: &Value| match value.as_str() {
        None => value.as_f64().unwrap(),
        Some(text) => text.parse().unwrap(), // inf, -inf, nan
    };
    tensor["values"].as_array().unwrap().iter().map(number).collect()
}

fn shape(tensor: &Value) -> Vec<usize> {
    tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

fn tensor(entry: &Value, form: Form, device: &Device) -> Tensor {
    let (values, shape) = (numbers(entry), shape(entry));
    match entry["dtype"].as_str().unwrap() {
        "float32" => form.tensor(&values.iter().map(|&x| x as f32).collect::<Vec<_>>(), &shape, device),
        "int64" => form.tensor(&values.iter().map(|&x| x as i64).collect::<Vec<_>>(), &shape, device),
        "float64" => form.tensor(&values, &shape, device),
        "bfloat16" => {
            form.tensor(&values.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>(), &shape, device)
        }
        "float16" => {
            form.tensor(&values.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>(), &shape, device)
        }
        "bool" => form.tensor(&values.iter().map(|&x| x != 0.0).collect::<Vec<_>>(), &shape, device),
        "uint8" => form.tensor(&values.iter().map(|&x| x as u8).collect::<Vec<_>>(), &shape, device),
        other => panic!("{other} is not a type of these cases"),
    }
}

/// The difference between our tensor and PyTorch's, if there is one.
fn difference(what: &str, got: &Tensor, expected: &Value) -> Option<String> {
    let shape = shape(expected);
    if (got.shape(), Some(got.dtype().name())) != (shape.as_slice(), expected["dtype"].as_str()) {
        return Some(format!("{what} is {got:?}, PyTorch's {shape:?} of {}", expected["dtype"]));
    }
    // PyTorch rounds some intermediate results of a kernel to the 16-bit dtype.
    let coarse = match got.dtype() {
        DType::BF16 => 2000.0,
        DType::F16 => 250.0,
        _ => 1.0,
    };
    let (got, expected) = (forms::values(got), numbers(expected));
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0.0f64, |max, x| max.max(x.abs()));
    let equal = |got: f64, expected: f64| {
        got == expected
            || got.is_nan() && expected.is_nan()
            || (got - expected).abs() <= coarse * (RELATIVE * expected.abs() + OF_LARGEST * largest.max(0.3))
                && expected.is_finite()
    };
    let at = (0..got.len()).find(|&i| !equal(got[i], expected[i]))?;
    Some(format!("{what}[{at}] is {}, PyTorch's {}", got[at], expected[at]))
}

fn run(case: &Value, form: Form, create_graph: bool, device: &Device) -> Option<String> {
    let grads = case["grads"].as_array();
    let inputs: Vec<Option<Tensor>> = (case["inputs"].as_array().unwrap().iter().enumerate())
        .map(|(i, input)| {
            let wants = grads.is_some_and(|grads| !grads[i].is_null());
            (!input.is_null()).then(|| tensor(input, form, device).requires_grad_(wants).unwrap())
        })
        .collect();
    let outputs = match call::call(case["op"].as_str().unwrap(), &case["args"], &inputs) {
        Ok(outputs) => outputs,
        Err(error) => return Some(format!("error: {error}")),
    };
    let expected = case["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), expected.len(), "outputs of {}", case["name"]);
    for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        let found = difference(&format!("output {i}"), output, expected);
        if found.is_some() {
            return found;
        }
    }
    let grads = grads?;
    let roots: Vec<&Tensor> = outputs.iter().filter(|output| output.requires_grad()).collect();
    let upstream: Vec<Tensor> =
        case["upstream"].as_array().unwrap().iter().map(|entry| tensor(entry, form, device)).collect();
    let options = BackwardOptions { create_graph, ..BackwardOptions::default() };
    let mut found = None;
    for (root, upstream) in roots.into_iter().zip(upstream) {
        let options = BackwardOptions { gradient: Some(upstream), retain_graph: true, ..options.clone() };
        if let Err(error) = root.backward_with(options) {
            return Some(format!("error in backward: {error}"));
        }
    }
    for (i, (input, expected)) in inputs.iter().zip(grads).enumerate() {
        let Some(input) = input else { continue };
        found = found.or_else(|| match input.grad() {
            Some(got) => difference(&format!("gradient {i}"), &got, expected),
            None => (!expected.is_null()).then(|| format!("gradient {i} is missing")),
        });
    }
    found
}

#[test]
fn every_memory_saving_operator_and_its_gradients_are_pytorchs() {
    let device = Device::cpu();
    let table: Value = serde_json::from_str(include_str!("fixtures/fused.json")).unwrap();
    let mut differences = Vec::new();
    for case in table.as_array().unwrap() {
        // Its gradients cannot be differentiated, and it reports that.
        let graph = case["op"] != "linear_cross_entropy";
        let forms = Form::ALL.map(|form| (form, false)).into_iter();
        for (form, create_graph) in forms.chain(graph.then_some((Form::Dense, true))) {
            if let Some(found) = run(case, form, create_graph, &device) {
                let name = case["name"].as_str().unwrap();
                differences.push(format!("{name} ({form:?}, graph {create_graph}): {found}"));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}
