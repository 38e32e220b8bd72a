//! Compares small models with PyTorch's: their names and shapes, and three training steps from initial values computed by a
//! formula (`fixtures/models.json` and `fixtures/vision.json`). They run on any device: the tests use the host,
//! `examples/check_models.rs` a GPU.

#![allow(dead_code, reason = "an example uses the other part")]
#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

pub(crate) mod torchvision;
pub(crate) mod transformers;

use std::collections::BTreeMap;

use plimsoll::nn::Module;
use plimsoll::{Device, Result};
use serde_json::Value;

/// A recorded training run.
pub(crate) struct Program {
    /// Its name in the fixture.
    pub(crate) name: &'static str,
    /// Trains the model and compares the results.
    pub(crate) run: Box<Run>,
}

type Run = dyn Fn(&Device) -> Result<Comparison>;

/// All recorded training runs.
pub(crate) fn programs() -> Vec<Program> {
    transformers::programs().into_iter().chain(torchvision::programs()).collect()
}

/// Checks that a model's state dict has the names and shapes of the recorded one, including tied parameters.
pub(crate) fn same_names(name: &str, model: &impl Module, expected: &Value) {
    let expected: BTreeMap<String, Vec<usize>> = serde_json::from_value(expected.clone()).unwrap();
    let state = model.state_dict();
    let got: BTreeMap<String, Vec<usize>> =
        state.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec())).collect();
    assert_eq!(got, expected, "{name}");
}

/// A computed value, PyTorch's value, and the tolerance on a device that computes in 32 bits.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// What the values are: `loss of step 0`, or the name of a parameter, whose elements are summed.
    pub(crate) what: String,
    pub(crate) got: f64,
    pub(crate) recorded: f64,
    pub(crate) allowed: f64,
}

impl Pair {
    /// The difference divided by the tolerance; infinite for NaN.
    pub(crate) fn share(&self) -> f64 {
        let share = (self.got - self.recorded).abs() / self.allowed;
        if share.is_nan() { f64::INFINITY } else { share }
    }
}

/// Pairs of a computed and a recorded value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) losses: Vec<Pair>,
    pub(crate) others: Vec<Pair>,
}

impl Comparison {
    fn loss(&mut self, step: usize, got: f64, expected: &Value) {
        let recorded = expected["f32"]["losses"][step].as_f64().unwrap();
        self.losses.push(Pair { what: format!("loss of step {step}"), got, recorded, allowed: 1e-5 });
    }

    /// Compares the sum of this many elements after the steps. The tolerance is PyTorch's own rounding error plus that of summing
    /// in 32 bits.
    fn sum(&mut self, name: &str, got: f64, elements: usize, expected: &Value) {
        let sum = |precision: &str| expected[precision]["sums"][name].as_f64().unwrap();
        let allowed = 4.0 * (sum("f32") - sum("f64")).abs() + 1e-6 * elements as f64;
        self.others.push(Pair { what: name.to_owned(), got, recorded: sum("f64"), allowed });
    }

    /// The pair that differs most.
    pub(crate) fn worst(&self) -> &Pair {
        let all = self.losses.iter().chain(&self.others);
        all.max_by(|a, b| a.share().total_cmp(&b.share())).unwrap()
    }

    /// Fails if a pair differs by more than the tolerance.
    pub(crate) fn check(&self, name: &str) {
        let worst = self.worst();
        assert!(worst.share() <= 1.0, "{name}: {worst:?}, losses {:?}", self.losses);
    }
}
