//! The messages between this program and our Python in the user's processes: names, fields, and the version of both.
//!
//! The other side is `python/plimsoll/protocol.py`. `tests/protocol/messages.jsonl` has a recorded message of each
//! kind, which the tests of both sides read. A message is a JSON file in a folder named by an environment variable.
//! Whenever a name or a field changes, the version changes too.
//!
//! | file | contents |
//! |---|---|
//! | `device.rs` | the memory of a device |
//! | `memory.rs` | owners of memory, and memory that is not used or was dropped |
//! | `steps.rs` | memory from step to step, and loops that were cut short |

mod device;
mod memory;
mod steps;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use plimsoll_standin::notice::Notice;
use plimsoll_standin::workspace::Workspace;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::device::{Outside, Peaks, Refused};
pub(crate) use self::memory::{Fall, Holder, UnusedGraph, Waste, WasteKind};
pub(crate) use self::steps::{
    Batches, Break, Climb, CutLoop, GrowingBatches, GrowingSteps, Late, Unit, Varying,
};

/// The version of the messages.
pub(crate) const VERSION: u32 = 1;

/// A file in the folder for reports that tells every process to exit.
pub(crate) const STOP: &str = "stop";
/// The endings of the names of two files in the folder for reports. They say that a process uses CUDA, and that its
/// last report has been written.
pub(crate) const MARKS: [&str; 2] = [".started", ".done"];
/// A file in the folder for requests. It contains a number: requests with lower numbers are abandoned, except those at
/// the GPU's size.
pub(crate) const LATE: &str = "late";
/// A file in the folder for requests that tells the serving process to exit.
pub(crate) const END: &str = "end";
/// The status of a request that a fork cannot fulfil.
pub(crate) const UNABLE: &str = "unable";
/// The endings of file names in `run`'s folder for answers: our Python is loaded in the process, and the techniques
/// are applied.
pub(crate) const LOADED: &str = "loaded";
pub(crate) const APPLIED: &str = "applied";

/// The report of one process that imported torch.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Report {
    /// The [`VERSION`] of the Python code that wrote the report.
    #[serde(default)]
    pub(crate) protocol: u32,
    pub(crate) pid: u32,
    /// The process's rank in a job of several processes.
    pub(crate) rank: Option<u32>,
    /// Whether the job's other ranks did not run.
    pub(crate) alone: bool,
    pub(crate) state: ProcessState,
    /// PyTorch's version.
    pub(crate) torch: String,
    /// The CUDA version of the process's PyTorch build; `None` for a CPU-only build.
    pub(crate) cuda: Option<String>,
    /// Whether the simulated GPU (plimsoll-standin) is loaded.
    pub(crate) standin: bool,
    /// PyTorch's allocator backend: `native`, `cudaMallocAsync`, or `none` if caching is off.
    #[serde(default = "native")]
    pub(crate) allocator: String,
    /// Whether CUDA was used.
    pub(crate) started: bool,
    /// Completed optimizer steps.
    pub(crate) steps: u64,
    /// Requests that ran out of memory.
    pub(crate) failures: u64,
    /// The step of the last failed request, counted from 1; 0 if none failed.
    pub(crate) failed_step: u64,
    /// The process's exit status, if it exited by calling `os._exit`.
    #[serde(default)]
    pub(crate) status: i32,
    /// How often the allocator released cached memory because memory was short.
    #[serde(default)]
    pub(crate) retries: u64,
    /// The devices that the process used, by number.
    pub(crate) devices: Vec<Peaks>,
    /// Whether `torch.backends.cudnn.benchmark` was on.
    pub(crate) cudnn_search: bool,
    /// Bytes requested from CUDA, but not by PyTorch's allocator; `None` if unknown.
    #[serde(default)]
    pub(crate) outside_bytes: Option<u64>,
    /// Memory that the process used on its devices in addition to what it requested, at its peak on each device.
    #[serde(default)]
    pub(crate) outside: Vec<Outside>,
    /// The last row of such memory that did not fit.
    #[serde(default)]
    pub(crate) refused: Option<Refused>,
    /// The compile caches that a later run would use.
    #[serde(default)]
    pub(crate) compile_caches: CompileCaches,
    /// Whether torch.compile compiled anything.
    #[serde(default)]
    pub(crate) compiles: bool,
    /// Imported libraries that have their own kernels or allocations.
    pub(crate) libraries: Vec<String>,
    /// The exception that ended the process.
    pub(crate) error: Option<Thrown>,
    /// The reads of values from the device.
    #[serde(default)]
    pub(crate) reads: Vec<Read>,
    /// `--assume` values that could not be applied.
    #[serde(default)]
    pub(crate) problems: Vec<String>,
    /// Whether the program, or its training, was stopped after the steps.
    #[serde(default)]
    pub(crate) cut: bool,
    /// Whether the code after training ran, at least in part.
    #[serde(default)]
    pub(crate) went_on: bool,
    /// Whether the training loop ran to its end before that code.
    #[serde(default)]
    pub(crate) whole: bool,
    /// Whether the program reached its end.
    #[serde(default)]
    pub(crate) ended: bool,
    /// Statements after the last step that may need memory and did not run.
    #[serde(default)]
    pub(crate) after: Vec<Place>,
    /// Evaluation lines that were not reached.
    #[serde(default)]
    pub(crate) unseen: Vec<Place>,
    /// Statements of the training loop that did not run and may matter for memory.
    #[serde(default)]
    pub(crate) late: Vec<Late>,
    /// The exception that ended the code after training.
    #[serde(default)]
    pub(crate) after_error: Option<Thrown>,
    /// Devices whose memory grew from step to step.
    #[serde(default)]
    pub(crate) growth: Vec<GrowingSteps>,
    /// Devices whose peak rose from step to step, although the memory that remains after a step did not grow.
    #[serde(default)]
    pub(crate) climbs: Vec<Climb>,
    /// A statement that ends the training loop depending on a value that is unknown.
    pub(crate) breaks: Option<Break>,
    /// Devices whose requests differed from step to step.
    #[serde(default)]
    pub(crate) varying: Vec<Varying>,
    /// The training batches, if they differ in size and only the first of them were examined.
    #[serde(default)]
    pub(crate) batches: Option<Batches>,
    /// The owners of memory that grew, or that was live when memory ran out.
    #[serde(default)]
    pub(crate) holders: Vec<Holder>,
    /// DataLoader loops that ran after the training steps and did not get all of their batches.
    #[serde(default)]
    pub(crate) loops: Vec<CutLoop>,
    /// Whether memory was still growing when the code after the steps was stopped.
    #[serde(default)]
    pub(crate) grew: bool,
    /// Memory that depends on unknown values.
    #[serde(default)]
    pub(crate) warnings: Vec<Warning>,
    /// Graphs of evaluations that no backward pass uses.
    #[serde(default)]
    pub(crate) graphs: Vec<UnusedGraph>,
    /// Training memory that was freed after one of the steps and never allocated again.
    #[serde(default)]
    pub(crate) falls: Vec<Fall>,
    /// Memory that was live at the highest peak but not needed there.
    #[serde(default)]
    pub(crate) waste: Vec<Waste>,
    /// Whether the process created an optimizer, or requested a gradient.
    #[serde(default)]
    pub(crate) trains: bool,
    /// The number of CUDA graphs that were captured.
    #[serde(default)]
    pub(crate) captures: u64,
    /// The techniques of `--with`, and their effects.
    #[serde(default)]
    pub(crate) techniques: Vec<Applied>,
    /// The technique that could not be applied, which ended the process.
    #[serde(default)]
    pub(crate) refusal: Option<Refusal>,
    /// The files that the process would have written, if it is a fork that serves a trial.
    #[serde(default)]
    pub(crate) written: Vec<Wrote>,
    /// The hosts that the process contacted.
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    /// The process's snapshot file, if it wrote a snapshot.
    #[serde(skip)]
    pub(crate) snapshot: Option<PathBuf>,
    /// The assumptions that the simulated GPU made, and the calls that it does not support.
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
    /// The process wrote no final report, because it was killed or called `_exit`.
    Running,
    /// The process ended by itself.
    Ended,
    /// The process was stopped after the requested steps.
    Stopped,
    /// An exception ended the process.
    Failed,
    /// The process was stopped because a technique could not be applied.
    Refused,
    /// --timeout or an interrupt stopped the process.
    Expired,
}

/// The exception that ended a process.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Thrown {
    /// The exception's class.
    pub(crate) kind: String,
    /// The exception's message.
    pub(crate) text: String,
    /// The innermost line outside packages.
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// Whether a value is read from the device just above this line, or above a line that called this line's function.
    pub(crate) reads: bool,
    /// The technique that raised the exception.
    #[serde(default)]
    pub(crate) technique: Option<String>,
}

impl Thrown {
    /// The innermost line outside packages, for example `train.py:7`.
    pub(crate) fn place(&self) -> Option<String> {
        Some(format!("{}:{}", self.file.as_ref()?, self.line?))
    }
}

/// The reads from the device at one line, with one call stack.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Read {
    /// The innermost line outside packages; `None` in a backward pass.
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// The source of that line.
    #[serde(default)]
    pub(crate) text: String,
    /// The line that read the value, if it is in a package.
    pub(crate) via: Option<Place>,
    /// The PyTorch operator that read the value, such as `nonzero`.
    pub(crate) operator: Option<String>,
    pub(crate) fate: Fate,
    /// The lines where the value decides something.
    #[serde(default)]
    pub(crate) sinks: Vec<Place>,
    pub(crate) count: u64,
    /// The value from `--assume`.
    pub(crate) assumed: Option<Value>,
    /// Without `--assume`: the smallest and the largest value that the program got, unless these are zeros.
    #[serde(default)]
    pub(crate) taken: Option<(Value, Value)>,
    /// Whether the value depends on the assumption that experts get equal shares.
    #[serde(default)]
    pub(crate) even: bool,
    /// Whether transformers reads the value to decide when to stop generating.
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
    /// The value was printed, logged, stored or checked.
    Shown,
    /// The value decided a size.
    Size,
    /// The value decided a branch.
    Branch,
    /// Unknown, because there is no source code.
    Unknown,
}

/// The compile caches that a process would reuse, as `watch.py` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(crate) struct CompileCaches {
    /// Whether AOTAutograd caches its graphs, and could cache all of them.
    pub(crate) autograd: bool,
    /// Whether Inductor caches its graphs, and could cache all of them.
    pub(crate) graphs: bool,
    /// Whether the results of timing kernels are cached.
    pub(crate) timings: bool,
}

/// A warning about memory that depends on unknown values.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Warning {
    /// The line that the warning is about: its file and number.
    pub(crate) place: Option<(String, u64)>,
    /// What the first run assumed at this line.
    pub(crate) what: String,
    /// The value for `--assume` at this line with which memory is largest.
    pub(crate) most: u64,
    /// The bytes that the unknown value may add.
    pub(crate) bytes: u64,
}

/// A file that the program would have written or changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Wrote {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// Identical operators of a step.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Counted {
    /// The part of the step in which they ran: `block 3`, `block 3.12`, `root` or `rest`.
    pub(crate) place: String,
    pub(crate) kind: String,
    /// The type in which the GPU multiplies, such as `tf32`.
    pub(crate) rate: String,
    /// The mean number of channels of a convolution, or the number of groups of a group norm; otherwise 0.
    pub(crate) width: u64,
    /// FLOPs of one such operator.
    pub(crate) flops: u64,
    /// Bytes that one such operator reads and writes.
    pub(crate) bytes: u64,
    pub(crate) number: u64,
}

/// The effect of a technique in a process.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Applied {
    pub(crate) name: String,
    /// Whether the technique had any effect.
    pub(crate) applied: bool,
    /// The part of the program to which the technique was applied, or the reason why it had no effect.
    pub(crate) detail: String,
    /// Code that has the same effect.
    pub(crate) lines: Vec<String>,
    /// The number of repeated blocks of the model, if the technique counts them.
    #[serde(default)]
    pub(crate) blocks: u64,
    /// The number of repeated blocks inside the repeated blocks.
    #[serde(default)]
    pub(crate) nested: u64,
    /// The bytes that the technique moves to the host in a step. For fsdp, the bytes that a rank sends to the other
    /// ranks in a step.
    #[serde(default)]
    pub(crate) bytes: u64,
    /// The operators of a step.
    #[serde(default)]
    pub(crate) work: Vec<Counted>,
    /// The indices of the operators in `work`, in the order of the step; -1 where the host waits for the GPU.
    #[serde(default)]
    pub(crate) order: Vec<i64>,
    /// Processor seconds of the host in a step, if they were measured.
    #[serde(default)]
    pub(crate) host_s: Option<f64>,
    /// The batch size of the model's first call, in a run that determines this size.
    #[serde(default)]
    pub(crate) batch: Option<u64>,
    /// The lines that create or move tensors with that batch size.
    #[serde(default)]
    pub(crate) places: Vec<String>,
    /// The numbers in the program's source that set this batch size.
    #[serde(default)]
    pub(crate) numbers: Vec<Number>,
    /// Why a line that makes such tensors has no such number; empty if each has one.
    #[serde(default)]
    pub(crate) unknown: String,
}

/// A number in the program's source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Number {
    pub(crate) file: PathBuf,
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// Where the number begins and ends in its line, in bytes.
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

/// A technique that cannot be applied to the program, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) technique: String,
    pub(crate) reason: String,
}

fn native() -> String {
    NATIVE.to_owned()
}

/// PyTorch's caching allocator, the only one that records its blocks.
pub(crate) const NATIVE: &str = "native";

/// A set of techniques to try in a fork: `N.json` in the folder for requests.
#[derive(Debug, Serialize)]
pub(crate) struct Request<'it> {
    pub(crate) set: &'it Value,
    /// The folders for the fork's reports, for its use of the GPUs, and for its view of the file system.
    pub(crate) reports: &'it Path,
    pub(crate) shared: &'it Path,
    pub(crate) view: &'it Path,
    pub(crate) limit_s: f64,
    /// The limit of the allocator.
    pub(crate) limit_bytes: Option<u64>,
    /// The device's memory, if it differs from the server's.
    pub(crate) memory_bytes: Option<u64>,
    /// Whether to record the contents of the peak.
    pub(crate) records: bool,
    /// Whether the program runs until its reserved bytes stop growing.
    pub(crate) settles: bool,
    /// Whether the program ends after its steps, without the code after them.
    pub(crate) stops: bool,
    /// Whether to look for memory at the peak that is not read again.
    pub(crate) looks: bool,
    /// Whether to count operators, which needs fewer steps.
    pub(crate) counts: bool,
    /// Whether to show the program's output.
    pub(crate) shows: bool,
    pub(crate) ranks: u32,
    /// Whether no other fork may run at the same time.
    pub(crate) alone: bool,
}

/// How a fork ended: `N.done` in the folder for requests.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Done {
    /// An exit status, or a word: [`UNABLE`], or the word for a fork that took too long.
    pub(crate) status: Value,
    /// Whether another fork ran at the same time.
    pub(crate) beside: bool,
}

/// The view of the file system, for forks: `view.json` next to the folder for reports.
#[derive(Debug, Serialize)]
pub(crate) struct View<'it> {
    pub(crate) privileged: bool,
    pub(crate) session: &'it Path,
    pub(crate) scratch_bytes: u64,
    pub(crate) covers: Vec<Cover<'it>>,
}

/// A folder of the view: the program's private files are in `upper`.
#[derive(Debug, Serialize)]
pub(crate) struct Cover<'it> {
    pub(crate) place: &'it Path,
    pub(crate) lower: &'it Path,
    pub(crate) upper: &'it Path,
}

/// The peaks that `check.py` measured.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) device: i32,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) snapshot: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
