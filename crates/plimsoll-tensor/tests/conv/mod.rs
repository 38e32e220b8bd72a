//! Convolutions compared with PyTorch: outputs, gradients, layouts and errors of `fixtures/conv.json`.
//!
//! `fixtures/make_conv.py` made the table. Each case runs with its inputs in the memory format that the table gives; row-major
//! inputs also run in the other forms.

mod calls;
mod refusals;

use plimsoll_tensor::{BackwardOptions, Device, SimConfig, Tensor, no_grad};
use serde_json::Value;

use crate::forms::Form;
use crate::table::tensors;

fn cases() -> Vec<Value> {
    let table: Value = serde_json::from_str(include_str!("../fixtures/conv.json")).unwrap();
    table.as_array().unwrap().clone()
}

/// The inputs of a case; those that are channels-last in the table are channels-last here.
fn inputs(case: &Value, form: Form, device: &Device) -> Vec<Tensor> {
    let given = case[3].as_array().unwrap().iter().zip(case[2].as_array().unwrap());
    let tensor = |(text, last): (&Value, &Value)| {
        let text = text.as_str().unwrap();
        match last.as_bool().unwrap() {
            false => tensors::tensor(text, form, device),
            true => calls::channels_last(&tensors::tensor(text, Form::Dense, device)),
        }
    };
    given.map(tensor).collect()
}

fn run(case: &Value, form: Form, device: &Device) -> Result<(), String> {
    let leaves: Vec<Tensor> = inputs(case, form, device)
        .into_iter()
        .map(|tensor| tensor.detach().requires_grad_(tensor.dtype().is_float()).unwrap())
        .collect();
    let output = calls::call(case, &leaves);
    let Some(expected) = case[4].as_str() else {
        return output.map_or(Ok(()), |output| Err(format!("gives {output:?} where PyTorch refuses")));
    };
    let output = output.map_err(|error| format!("error: {error}"))?;
    tensors::compare("the output", &output, expected)?;
    if let Some(wrong) = lies_otherwise(case, form, &output) {
        return Err(wrong);
    }
    if !output.requires_grad() {
        return Ok(());
    }
    let gradient = Some(tensors::upstream(&output, 0, form, device));
    let options = BackwardOptions { gradient, ..BackwardOptions::default() };
    output.backward_with(options).map_err(|error| format!("error in backward: {error}"))?;
    for (i, (input, expected)) in leaves.iter().zip(case[5].as_array().unwrap()).enumerate() {
        let grad = input.grad().ok_or_else(|| format!("gradient {i} is missing"))?;
        tensors::compare(&format!("gradient {i}"), &grad, expected.as_str().unwrap())?;
        let both = input.strides().iter().zip(grad.strides()).zip(input.shape());
        let lies_so = both.into_iter().all(|((input, grad), &size)| size < 2 || input == grad);
        if form == Form::Dense && input.numel() > 0 && !lies_so {
            return Err(format!("gradient {i} lies {:?}, its input {:?}", grad.strides(), input.strides()));
        }
    }
    Ok(())
}

/// Describes how the output's memory format is wrong, if it is. For small sizes, some of PyTorch's kernels return row-major
/// outputs for channels-last images; ours never do.
fn lies_otherwise(case: &Value, form: Form, output: &Tensor) -> Option<String> {
    let strides: Vec<u64> = case[6].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let same = |(dim, &stride): (usize, &usize)| output.shape()[dim] < 2 || stride as u64 == strides[dim];
    let row_major = |dim: usize| output.shape()[dim + 1..].iter().product::<usize>() as u64;
    let theirs_is_row_major = strides.iter().enumerate().all(|(dim, &stride)| stride == row_major(dim));
    let any_last = case[2].as_array().unwrap().contains(&Value::Bool(true));
    let excused = form != Form::Dense || output.numel() == 0 || (any_last && theirs_is_row_major);
    let lies_so = output.strides().iter().enumerate().all(same);
    (!excused && !lies_so).then(|| format!("lies {:?}, PyTorch's {strides:?}", output.strides()))
}

#[test]
fn every_convolution_of_the_table_is_pytorchs_in_every_form() {
    let device = Device::cpu();
    let mut differences = Vec::new();
    for case in &cases() {
        for form in Form::ALL {
            if let Err(found) = run(case, form, &device) {
                let shapes: Vec<&str> = case[3]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_str().unwrap().split(']').next().unwrap())
                    .collect();
                differences
                    .push(format!("{} {} {} of {shapes:?} ({form:?}): {found}", case[0], case[1], case[2]));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn a_simulated_device_gives_the_same_layouts() {
    let (host, sim) = (Device::cpu(), Device::sim(SimConfig::new(1 << 30)));
    for case in &cases() {
        let on = |device: &Device| {
            let output = no_grad(|| calls::call(case, &inputs(case, Form::Dense, device)));
            output.map(|output| (output.shape().to_vec(), output.strides().to_vec(), output.dtype())).ok()
        };
        assert_eq!(on(&host), on(&sim), "{} {}", case[0], case[1]);
    }
}
