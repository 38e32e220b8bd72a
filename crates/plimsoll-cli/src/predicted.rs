//! What a recording of `predict` contains in addition to PyTorch's events: [`Predicted`].

use plimsoll_trace::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a prediction found out that events do not show: why memory is still live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Predicted {
    /// The device that the prediction is about.
    device: i32,
    /// Sentences about memory that is live at the peak but not needed there, and the lines that free it.
    not_needed: Vec<String>,
    /// Sentences about the objects that keep memory alive.
    kept_by: Vec<String>,
    /// The facts of `not_needed` and `kept_by`, as in the JSON of `predict`.
    waste: Value,
    holders: Value,
}

impl Predicted {
    /// Sentences, each list with its facts as JSON; `None` if there is nothing to say.
    pub(crate) fn of(
        device: i32,
        (not_needed, waste): (Vec<String>, Value),
        (kept_by, holders): (Vec<String>, Value),
    ) -> Option<Self> {
        let is_any = !not_needed.is_empty() || !kept_by.is_empty();
        is_any.then_some(Self { device, not_needed, kept_by, waste, holders })
    }

    /// The prediction that a recording contains, if it is about this device. Other files may contain anything under its
    /// name, which is then left out.
    pub(crate) fn read(snapshot: &Snapshot, device: i32) -> Option<Self> {
        let text = snapshot.texts.get(snapshot.prediction?);
        serde_json::from_str(text).ok().filter(|it: &Self| it.device == device)
    }

    /// All sentences of the prediction.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.not_needed.iter().chain(&self.kept_by).cloned()
    }

    /// The objects that keep memory alive, as sentences.
    pub(crate) fn kept_by(&self) -> &[String] {
        &self.kept_by
    }

    /// The facts for programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "waste": self.waste, "holders": self.holders })
    }
}
