//! PyTorch's recorded results (`fixtures/pytorch.json`, made by `fixtures/make.py`), and the tolerances for comparing with them.

use plimsoll::{Device, Tensor};
use serde_json::Value;

/// The complete table.
pub(crate) fn table() -> Value {
    serde_json::from_str(include_str!("../fixtures/pytorch.json")).unwrap()
}

/// A recorded tensor on a device.
pub(crate) fn tensor(recorded: &Value, device: &Device) -> Tensor {
    let shape: Vec<usize> =
        recorded["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    Tensor::from_slice(&numbers(recorded), &shape, device).unwrap()
}

/// Fails unless the tensor is PyTorch's. Both round each step to 24 bits and add in different orders; the
/// differences grow over the steps of a training run, and stay below 2e-5 of the largest value here.
pub(crate) fn assert_near(what: &str, got: &Tensor, recorded: &Value) {
    assert_within(what, got, recorded, 2e-5);
}

/// Fails unless each element differs from PyTorch's by at most this fraction of the largest value or of 0.1, whichever is larger:
/// a parameter that a step has moved close to 0 has the rounding error of its earlier value.
pub(crate) fn assert_within(what: &str, got: &Tensor, recorded: &Value, tolerance: f32) {
    let (got, expected) = (got.to_vec::<f32>().unwrap(), numbers(recorded));
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!(
            (got - expected).abs() <= tolerance * largest.max(0.1),
            "{what}[{at}] is {got}, PyTorch's {expected}"
        );
    }
}

fn numbers(recorded: &Value) -> Vec<f32> {
    recorded["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}
