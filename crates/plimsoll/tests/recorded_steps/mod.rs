//! Small models beside PyTorch's: their names and shapes, and three training steps from start values that a formula gives
//! (`fixtures/models.json` and `fixtures/vision.json`). On any device: the tests run all of them on the host,
//! `examples/check_models.rs` on a GPU.

#![allow(dead_code, reason = "an example uses the other part")]
#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

pub(crate) mod torchvision;
pub(crate) mod transformers;

use std::collections::BTreeMap;

use plimsoll::nn::Module;
use plimsoll::{Device, Result};
use serde_json::Value;

/// A recorded training.
pub(crate) struct Program {
    /// Its name in the fixture.
    pub(crate) name: &'static str,
    /// Trains, and compares.
    pub(crate) run: Box<Run>,
}

type Run = dyn Fn(&Device) -> Result<Comparison>;

/// All of them.
pub(crate) fn programs() -> Vec<Program> {
    transformers::programs().into_iter().chain(torchvision::programs()).collect()
}

/// A model's state dict has the names and shapes of a recorded one, also of parameters that are tied.
pub(crate) fn same_names(name: &str, model: &impl Module, expected: &Value) {
    let expected: BTreeMap<String, Vec<usize>> = serde_json::from_value(expected.clone()).unwrap();
    let state = model.state_dict();
    let got: BTreeMap<String, Vec<usize>> =
        state.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec())).collect();
    assert_eq!(got, expected, "{name}");
}

/// A number, PyTorch's, and the most by which they may differ on a processor that computes in 32 bits.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// What it is: `loss of step 0`, or a parameter, whose elements are summed.
    pub(crate) what: String,
    pub(crate) got: f64,
    pub(crate) recorded: f64,
    pub(crate) allowed: f64,
}

impl Pair {
    /// How much of what is allowed they differ by. What is no number differs by more than anything.
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

    /// A sum of so many elements after the steps. PyTorch's own rounding is allowed, and what 32 bits cost the sum.
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

    /// Fails where a pair differs by more than is allowed.
    pub(crate) fn check(&self, name: &str) {
        let worst = self.worst();
        assert!(worst.share() <= 1.0, "{name}: {worst:?}, losses {:?}", self.losses);
    }
}
