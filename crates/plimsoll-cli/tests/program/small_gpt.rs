//! `plimsoll train gpt` with a model whose matrices are just large enough to be cut among ranks.

use std::process::Output;

use serde_json::Value;

use super::{json, plimsoll, stderr};

/// The job, without its batch size.
pub(crate) const SMALL: [&str; 12] =
    ["train", "gpt", "--layers", "2", "--heads", "2", "--width", "128", "--context", "8", "--sample", "3"];

pub(crate) fn train(batch_size: &str, args: &[&str]) -> Output {
    plimsoll(&[&SMALL[..], &["--batch-size", batch_size], args].concat())
}

/// The answer of a run that must succeed.
pub(crate) fn result(batch_size: &str, args: &[&str]) -> Value {
    let output = train(batch_size, &[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}
