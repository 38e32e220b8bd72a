//! What a report says about the memory of a process, besides its peaks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What keeps memory that grew, or that was there when memory ran out (`_holding/growing.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Holder {
    pub(crate) device: i32,
    /// What it is: `global`, `closure`, `cycle` and others.
    pub(crate) kind: String,
    /// In words, with the name that the program gives it.
    pub(crate) text: String,
    pub(crate) tensors: u64,
    pub(crate) bytes: u64,
}

/// Graphs of forward passes in evaluation that no backward pass uses (`graphs.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct UnusedGraph {
    /// The line that calls the model.
    pub(crate) file: String,
    pub(crate) line: u64,
    /// What they keep at once, at most.
    pub(crate) bytes: u64,
    /// The calls there.
    pub(crate) calls: u64,
}

/// Memory that is live at the peak and not needed there (`_waste/peak.py`), and the line that frees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Waste {
    pub(crate) kind: WasteKind,
    /// The variable, or the optimizer's expression.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// The line that assigned it.
    pub(crate) line: u64,
    /// An estimate of what it keeps.
    pub(crate) bytes: u64,
    /// The new line belongs after this one.
    pub(crate) after: u64,
    pub(crate) indent: String,
    pub(crate) text: String,
}

/// What is wasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WasteKind {
    /// A variable that is not read again.
    Del,
    /// A tensor of which only the shape is read again.
    Shape,
    /// A small view that keeps a large tensor.
    View,
    /// Gradients that the optimizer has used.
    Gradients,
    /// An optimizer's state of frozen parameters.
    States,
}

/// Memory of the training that is gone for good (`_holding/falling.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Fall {
    /// The gradients of 3 parameters, and their names.
    pub(crate) text: String,
    pub(crate) bytes: u64,
    /// The last of the optimizer's steps that saw it.
    pub(crate) step: u64,
}
