//! A process's [`Report`]: the JSON that `watch.py` writes, and the stand-in's notices and workspaces.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_standin::notice::{self, Notice};
use plimsoll_standin::share;
use plimsoll_standin::workspace::{self, Workspace};
use serde::Deserialize;

use super::grows::{CutLoop, GrowingSteps};
use super::reads::{Place, Read};
use super::warm::CompileCaches;

/// One process that imported torch.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Report {
    pub(super) pid: u32,
    /// Its rank in a job of several processes.
    pub(super) rank: Option<u32>,
    /// Whether the job's other ranks did not run.
    pub(super) alone: bool,
    pub(super) state: ProcessState,
    /// PyTorch's version.
    pub(super) torch: String,
    /// The CUDA version of its build; `None` for a CPU-only build.
    pub(super) cuda: Option<String>,
    /// Whether the stand-in is loaded.
    pub(super) standin: bool,
    /// PyTorch's allocator backend: `native`, `cudaMallocAsync`, or `none` without caching.
    #[serde(default = "native")]
    pub(super) allocator: String,
    /// Whether CUDA was used.
    pub(super) started: bool,
    /// Completed optimizer steps.
    pub(super) steps: u64,
    /// Requests that ran out of memory.
    pub(super) failures: u64,
    /// The step of the last of them, from 1; 0 if none failed.
    pub(super) failed_step: u64,
    /// Its exit status, where it exited by itself (`os._exit`).
    #[serde(default)]
    pub(super) status: i32,
    /// How often the allocator released cached memory because memory was short.
    #[serde(default)]
    pub(super) retries: u64,
    /// The devices that it used, by number.
    pub(super) devices: Vec<Peaks>,
    /// Whether `torch.backends.cudnn.benchmark` was on.
    pub(super) cudnn_search: bool,
    /// Bytes of the GPU allocated outside PyTorch's allocator; `None` if unknown.
    #[serde(default)]
    pub(super) outside_bytes: Option<u64>,
    /// The compile caches that a later run would use.
    #[serde(default)]
    pub(super) compile_caches: CompileCaches,
    /// Whether torch.compile compiled anything.
    #[serde(default)]
    pub(super) compiles: bool,
    /// Imported libraries that have kernels or allocations of their own.
    pub(super) libraries: Vec<String>,
    /// The exception that ended it.
    pub(super) error: Option<Thrown>,
    /// Its reads of device values.
    #[serde(default)]
    pub(super) reads: Vec<Read>,
    /// `--assume` values that could not be applied.
    #[serde(default)]
    pub(super) problems: Vec<String>,
    /// Whether the program, or its training, was stopped after the steps.
    #[serde(default)]
    pub(super) cut: bool,
    /// Whether the code after the training ran, with the training's loader ended early.
    #[serde(default)]
    pub(super) went_on: bool,
    /// Whether the program reached its end.
    #[serde(default)]
    pub(super) ended: bool,
    /// Evaluation lines that were not reached.
    #[serde(default)]
    pub(super) unseen: Vec<Place>,
    /// The exception that ended the code after the training.
    #[serde(default)]
    pub(super) after_error: Option<Thrown>,
    /// Devices whose memory grew from step to step.
    #[serde(default)]
    pub(super) growth: Vec<GrowingSteps>,
    /// Loops after the steps that were not given all of their batches.
    #[serde(default)]
    pub(super) loops: Vec<CutLoop>,
    /// Whether memory was still growing when the code after the steps was stopped.
    #[serde(default)]
    pub(super) grew: bool,
    /// What a run without values cannot show.
    #[serde(default)]
    pub(super) warnings: Vec<Warning>,
    /// CUDA graphs that were captured.
    #[serde(default)]
    pub(super) captures: u64,
    /// The techniques of `--with`, and what they did.
    #[serde(default)]
    pub(super) techniques: Vec<Applied>,
    /// The technique that could not be applied; the process ended there.
    #[serde(default)]
    pub(super) refusal: Option<Refusal>,
    /// Its snapshot file, if it wrote one.
    #[serde(skip)]
    pub(super) snapshot: Option<PathBuf>,
    /// The stand-in's assumptions and unsupported calls.
    #[serde(skip)]
    pub(super) notices: Vec<Notice>,
    /// The workspaces that libraries requested.
    #[serde(skip)]
    pub(super) workspaces: BTreeSet<Workspace>,
}

/// What a run without values cannot show.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Warning {
    /// The line: its file and number.
    pub(super) place: Option<(String, u64)>,
    /// What was assumed.
    pub(super) what: String,
    /// Bytes that it may add.
    pub(super) bytes: u64,
}

/// What a technique did in a process.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Applied {
    pub(crate) name: String,
    /// Whether it had any effect.
    pub(crate) applied: bool,
    /// To what it was applied, or why it had no effect.
    pub(crate) detail: String,
    /// The code that does the same.
    pub(crate) lines: Vec<String>,
    /// Repeated blocks of the model, where it counts them.
    #[serde(default)]
    pub(crate) blocks: u64,
    /// Repeated blocks inside of them.
    #[serde(default)]
    pub(crate) nested: u64,
    /// Bytes that it moves to the host in a step; of fsdp, bytes that a rank sends to others.
    #[serde(default)]
    pub(crate) bytes: u64,
    /// The operators of a step: where, type, FLOPs, bytes, number.
    #[serde(default)]
    pub(crate) work: Vec<(String, String, u64, u64, u64)>,
}

/// Why a technique cannot be applied to the program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) technique: String,
    pub(crate) reason: String,
}

fn native() -> String {
    NATIVE.to_owned()
}

/// PyTorch's caching allocator, the only one that records its blocks.
pub(super) const NATIVE: &str = "native";

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ProcessState {
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

/// A peak after the steps counts as equal if it is higher by less than this share: the order of requests
/// alone moves it a little.
const LATER: f64 = 0.005;

/// The peaks of one device by PyTorch's counters, and their steps, from 1. One more than the number of steps means
/// after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Peaks {
    /// The device's number in the process.
    pub(super) device: i32,
    /// The device's number in the machine.
    pub(super) gpu: u32,
    pub(super) allocated_bytes: u64,
    pub(super) allocated_step: u64,
    pub(super) reserved_bytes: u64,
    pub(super) reserved_step: u64,
    /// How much the code after the steps raises one of the two peaks, as a share of it. If the program was
    /// not cut short, it is large.
    #[serde(default)]
    pub(super) grows_by: f64,
    /// The peak of all processes' total on it, contexts included; `None` if no other process used it.
    #[serde(skip)]
    pub(super) together_bytes: Option<u64>,
}

/// An exception.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Thrown {
    /// Its class.
    pub(super) kind: String,
    /// Its message.
    pub(super) text: String,
    /// The innermost line outside packages.
    pub(super) file: Option<String>,
    pub(super) line: Option<u64>,
    /// Whether a value is read from the device just above it, or above a calling line.
    pub(super) reads: bool,
    /// The technique that raised it.
    #[serde(default)]
    pub(super) technique: Option<String>,
}

impl Report {
    /// All processes' reports, by rank, then by process ID. Totals of shared GPUs come from the stand-in's shared
    /// folder.
    ///
    /// # Errors
    /// I/O errors; a malformed report.
    pub(super) fn all(folder: &Path, shared: &Path) -> io::Result<Vec<Report>> {
        let mut reports = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                let mut report: Report = serde_json::from_slice(&fs::read(&path)?)?;
                report.notices = notice::of_process(folder, report.pid)?;
                report.workspaces = workspace::of_process(folder, report.pid)?;
                report.snapshot = Some(path.with_extension("pickle")).filter(|path| path.is_file());
                reports.push(report);
            }
        }
        reports.sort_by_key(|report| (report.rank, report.pid));
        let used: Vec<u32> = reports.iter().flat_map(|it| &it.devices).map(|peaks| peaks.gpu).collect();
        for peaks in reports.iter_mut().flat_map(|report| &mut report.devices) {
            let is_shared = used.iter().filter(|&&gpu| gpu == peaks.gpu).count() > 1;
            peaks.together_bytes = if is_shared { share::most_bytes(shared, peaks.gpu) } else { None };
        }
        Ok(reports)
    }

    /// Whether one of its peaks came after its steps, and is clearly higher.
    pub(super) fn peaks_later(&self) -> bool {
        let is_later = |it: &Peaks| it.allocated_step.max(it.reserved_step) > self.steps;
        self.devices.iter().any(|it| is_later(it) && it.grows_by > LATER)
    }

    /// Its name in the report.
    pub(super) fn name(&self) -> String {
        self.rank.map_or_else(|| format!("process {}", self.pid), |rank| format!("rank {rank}"))
    }
}
