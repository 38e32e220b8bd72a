//! Operations that move, select and reduce elements, and others that training programs use, compared with PyTorch: outputs and
//! gradients of `table.json`, `training.json`, `further.json` and `linalg.json` in `fixtures`.
//!
//! Scripts of the same names, in the same folder, made the tables. A new operation needs a few lines there and one in
//! `calls.rs`, `training.rs`, `further.rs`, `linalg.rs` or `edges.rs`. Each case runs with its inputs in three forms.

mod calls;
mod edges;
mod further;
mod linalg;
pub(crate) mod tensors;
mod training;

use std::collections::BTreeSet;
use std::sync::mpsc;

use plimsoll_tensor::{BackwardOptions, Device, MemoryAction, MemoryEvent, SimConfig, Tensor, no_grad};
use serde_json::Value;

use crate::forms::Form;

/// The cases of the tables, or of the file that `PLIMSOLL_TABLE` names (random calls, for example).
fn cases() -> Vec<Value> {
    let read = |text: &str| serde_json::from_str::<Vec<Value>>(text).unwrap();
    if let Some(path) = std::env::var_os("PLIMSOLL_TABLE") {
        return read(&std::fs::read_to_string(path).unwrap());
    }
    let table = read(include_str!("../fixtures/table.json"));
    let further = read(include_str!("../fixtures/further.json"));
    let linalg = read(include_str!("../fixtures/linalg.json"));
    [table, read(include_str!("../fixtures/training.json")), further, linalg].concat()
}

fn texts(values: &Value) -> Vec<Option<&str>> {
    values.as_array().unwrap().iter().map(Value::as_str).collect()
}

fn run(case: &Value, form: Form, device: &Device) -> Result<(), String> {
    let (op, args) = (case[0].as_str().unwrap(), &case[1]);
    let inputs: Vec<Tensor> = texts(&case[2])
        .into_iter()
        .map(|text| tensors::tensor(text.unwrap(), form, device))
        .map(|tensor| tensor.requires_grad_(tensor.dtype().is_float()).unwrap())
        .collect();
    let outputs = calls::call(op, args, &inputs).map_err(|error| format!("error: {error}"))?;
    let expected = texts(&case[3]);
    if outputs.len() != expected.len() {
        return Err(format!("{} outputs, PyTorch's {}", outputs.len(), expected.len()));
    }
    for (k, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        tensors::compare(&format!("output {k}"), output, expected.unwrap())?;
    }
    for (k, output) in outputs.iter().enumerate().filter(|(_, output)| output.requires_grad()) {
        let gradient = Some(tensors::upstream(output, k, form, device));
        let options = BackwardOptions { gradient, retain_graph: true, ..BackwardOptions::default() };
        output.backward_with(options).map_err(|error| format!("error in backward: {error}"))?;
    }
    for (i, (input, expected)) in inputs.iter().zip(texts(&case[4])).enumerate() {
        match (input.grad(), expected) {
            (Some(got), Some(expected)) => tensors::compare(&format!("gradient {i}"), &got, expected)?,
            (None, Some(_)) => return Err(format!("gradient {i} is missing")),
            (Some(got), None) => return Err(format!("gradient {i} is {got:?}, PyTorch has none")),
            (None, None) => {}
        }
    }
    Ok(())
}

#[test]
fn every_operation_of_the_table_is_pytorchs_in_every_form() {
    let device = Device::cpu();
    let mut differences = Vec::new();
    for case in &cases() {
        for form in Form::ALL {
            if let Err(found) = run(case, form, &device) {
                let inputs = texts(&case[2]);
                differences.push(format!("{} {} of {inputs:?} ({form:?}): {found}", case[0], case[1]));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn a_simulated_device_has_the_shapes_without_the_values() {
    let device = Device::sim(SimConfig::new(1 << 30));
    for case in &cases() {
        let op = case[0].as_str().unwrap();
        let text = |text: Option<&str>| tensors::tensor(text.unwrap(), Form::Dense, &device);
        let inputs: Vec<Tensor> = texts(&case[2]).into_iter().map(text).collect();
        match no_grad(|| calls::call(op, &case[1], &inputs)) {
            Ok(outputs) => {
                let shapes: Vec<_> =
                    texts(&case[3]).into_iter().map(|text| tensors::shape(text.unwrap())).collect();
                assert_eq!(
                    outputs.iter().map(|out| out.shape().to_vec()).collect::<Vec<_>>(),
                    shapes,
                    "{case}"
                );
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("the size of the result depends on"), "{case}: {error}");
            }
        }
    }
}

#[test]
fn memory_of_every_operation_belongs_to_the_line_that_called_it() {
    let device = Device::sim(SimConfig::new(1 << 30));
    device.rehearse(); // results whose size depends on values are those of zeros
    let (sender, found) = mpsc::channel();
    let in_tests = |event: &MemoryEvent| event.at.is_some_and(|at| at.file().contains("/tests/"));
    device.on_event(move |event| {
        if event.action == MemoryAction::Alloc && !in_tests(event) {
            sender.send(event.op).unwrap();
        }
    });
    let mut unknown = BTreeSet::new();
    for case in &cases() {
        let op = case[0].as_str().unwrap();
        let text = |text: Option<&str>| tensors::tensor(text.unwrap(), Form::Dense, &device);
        let inputs: Vec<Tensor> = texts(&case[2])
            .into_iter()
            .map(text)
            .map(|tensor| tensor.requires_grad_(tensor.dtype().is_float()).unwrap())
            .collect();
        let outputs = calls::call(op, &case[1], &inputs).unwrap_or_default();
        unknown.extend(found.try_iter().map(|by| format!("{op}: {by}")));
        for output in outputs.iter().filter(|output| output.requires_grad()) {
            let options = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
            let gradient = output.ones_like().unwrap();
            output.backward_with(BackwardOptions { gradient: Some(gradient), ..options }).unwrap();
        }
        unknown.extend(found.try_iter().map(|by| format!("backward of {op}: {by}")));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}
