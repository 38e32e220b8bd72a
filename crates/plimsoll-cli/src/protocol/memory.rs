//! What a report says about the memory of a process, besides its peaks.

use std::path::PathBuf;

use serde::Deserialize;

/// What keeps memory that grew, or that was there when memory ran out.
    #[serde(default)]
    pub(crate) holders: Vec<Holder>,
    /// Loops after the steps that were not given all of their batches.
    #[serde(default)]
    pub(crate) loops: Vec<CutLoop>,
    /// Whether memory was still growing when the code after the steps was stopped.
    #[serde(default)]
    pub(crate) grew: bool,
    /// What a run without values cannot show.
    #[serde(default)]
    pub(crate) warnings: Vec<Warning>,
    /// Graphs of evaluations that no backward pass uses.
    #[serde(default)]
    pub(crate) graphs: Vec<UnusedGraph>,
    /// Memory that was live at the highest peak and not needed there.
    #[serde(default)]
    pub(crate) waste: Vec<Waste>,
    /// Whether it made an optimizer, or asked for a gradient.
    #[serde(default)]
    pub(crate) trains: bool,
    /// CUDA graphs that were captured.
    #[serde(default)]
    pub(crate) captures: u64,
    /// The techniques of `--with`, and what they did.
    #[serde(default)]
    pub(crate) techniques: Vec<Applied>,
    /// The technique that could not be applied; the process ended there.
    #[serde(default)]
    pub(crate) refusal: Option<Refusal>,
    /// What it would have written, of a fork that serves a trial.
    #[serde(default)]
    pub(crate) written: Vec<Wrote>,
    /// The hosts that it contacted.
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    /// Its snapshot file, if it wrote one.
    #[serde(skip)]
    pub(crate) snapshot: Option<PathBuf>,
    /// The stand-in's assumptions and unsupported calls.
    #[serde(skip)]
    pub(crate) notices: Vec<Notice>,
    /// The workspaces that libraries requested.
    #[serde(skip)]
    pub(crate) workspaces: BTreeSet<Workspace>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProcessState {
    /// Without a final report: it was killed, or called `_exit`.
    Running,
    /// By itself.
    Ended,
    /// After the requested steps.
    Stopped,
    /// With an exception.
    Failed,
    /// By a technique that could not be applied.
    Refused,
    /// By --timeout or an interrupt.
    Expired,
}

/// The peaks of one device by PyTorch's counters, and their steps, from 1. One more than the number of steps means
/// after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Peaks {
    /// The device's number in the process.
    pub(crate) device: i32,
    /// The device's number in the machine.
    pub(crate) gpu: u32,
    pub(crate) allocated_bytes: u64,
    pub(crate) allocated_step: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_step: u64,
    /// How much the code after the steps raises one of the two peaks, as a share of it. If the program was
    /// not cut short, it is large.
    #[serde(default)]
    pub(crate) grows_by: f64,
    /// The peak of all processes' total on it, contexts included; `None` if no other process used it.
    #[serde(skip)]
    pub(crate) together_bytes: Option<u64>,
}

/// An exception.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Thrown {
    /// Its class.
    pub(crate) kind: String,
    /// Its message.
    pub(crate) text: String,
    /// The innermost line outside packages.
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// Whether a value is read from the device just above it, or above a calling line.
    pub(crate) reads: bool,
    /// The technique that raised it.
    #[serde(default)]
    pub(crate) technique: Option<String>,
}

/// The reads at one line, from one call stack.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Read {
    /// The innermost line outside packages; `None` in a backward pass.
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// That line's source.
    #[serde(default)]
    pub(crate) text: String,
    /// The line that read, if it is in a package.
    pub(crate) via: Option<Place>,
    /// The PyTorch operator that read, such as `nonzero`.
    pub(crate) operator: Option<String>,
    pub(crate) fate: Fate,
    /// The lines where the value decides something.
    #[serde(default)]
    pub(crate) sinks: Vec<Place>,
    pub(crate) count: u64,
    /// The value from `--assume`.
    pub(crate) assumed: Option<Value>,
    /// Without `--assume`: the least and the largest value that the program got, unless these are zeros.
    #[serde(default)]
    pub(crate) taken: Option<(Value, Value)>,
    /// Whether it depends on the assumption that experts get equal shares.
    #[serde(default)]
    pub(crate) even: bool,
    /// Whether transformers reads it to decide whether a generation ends.
    #[serde(default)]
    pub(crate) generates: bool,
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: u64,
    #[serde(default)]
    pub(crate) text: String,
}

/// How the value was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fate {
    /// It was printed, logged, stored or checked.
    Shown,
    /// It decided a size.
    Size,
    /// It decided a branch.
    Branch,
    /// Unknown: there is no source code.
    Unknown,
}

/// The caches that a process's compiler would use again, as `watch.py` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(crate) struct CompileCaches {
    /// Whether AOTAutograd caches its graphs, and could cache all of them.
    pub(crate) autograd: bool,
    /// Whether Inductor caches its graphs, and could cache all of them.
    pub(crate) graphs: bool,
    /// Whether the results of timing kernels are cached.
    pub(crate) timings: bool,
}

/// A device whose memory grew in the latest steps (`growth.py`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GrowingSteps {
    pub(crate) device: i32,
    /// Bytes in one of `every` steps.
    pub(crate) bytes: u64,
    pub(crate) every: u64,
    /// How often it was seen to grow.
    pub(crate) times: u64,
    /// The steps that ran.
    pub(crate) steps: u64,
    /// The steps of the whole program; `None` if unknown.
    pub(crate) total: Option<u64>,
}

/// Statements of the training loop that did not run in its first steps and may matter for memory (`late.py`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Late {
    pub(crate) file: String,
    /// Their first and last line.
    pub(crate) line: u64,
    pub(crate) end: u64,
    /// When they run, as in the source: `if step % 500 == 0`.
    pub(crate) text: String,
    /// After how many steps they have run; `None` if unknown.
    pub(crate) steps: Option<u64>,
}

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
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
