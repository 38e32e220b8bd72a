//! The parts of a report about a process's memory, other than its peaks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The owner of memory that grew, or that was live when memory ran out (`_holding/growing.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Holder {
    pub(crate) device: i32,
    /// The kind of owner: `global`, `closure`, `cycle` and others.
    pub(crate) kind: String,
    /// A description, with the name that the program uses.
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
    /// The most bytes that these graphs keep at one time.
    pub(crate) bytes: u64,
    /// The number of calls at this line.
    pub(crate) calls: u64,
    /// Whether it is only likely that no backward pass uses the graphs, because memory ran out in a call.
    pub(crate) likely: bool,
}

/// Memory that is live at the peak but not needed there (`_waste/peak.py`), and the line that frees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Waste {
    pub(crate) kind: WasteKind,
    /// The variable, the attribute, or the expression for the optimizer.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// The line that assigned the variable.
    pub(crate) line: u64,
    /// An estimate of the bytes that the name keeps allocated.
    pub(crate) bytes: u64,
    /// The bytes of the graph of one step; 0 for other kinds of waste.
    pub(crate) each: u64,
    /// The new line is inserted after the line with this number.
    pub(crate) after: u64,
    /// The number of lines, up to `after`, that the new line replaces.
    pub(crate) replaces: u64,
    pub(crate) indent: String,
    /// A line with this indentation, if the line `after` has another one, else 0.
    pub(crate) aligned: u64,
    pub(crate) text: String,
}

/// The kind of waste.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WasteKind {
    /// A variable that is not read again.
    Del,
    /// A tensor that is read again only for its shape.
    Shape,
    /// A small view that keeps a large tensor.
    View,
    /// Gradients that the optimizer has used.
    Gradients,
    /// An optimizer's state for frozen parameters.
    States,
    /// A container that only grows.
    Unread,
    /// A sum or a list of losses that keeps the graph of each step.
    Graph,
}

/// Training memory that was freed and never allocated again (`_holding/falling.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Fall {
    /// A description, for example the gradients of 3 parameters, with their names.
    pub(crate) text: String,
    pub(crate) bytes: u64,
    /// The last optimizer step in which this memory existed.
    pub(crate) step: u64,
}
