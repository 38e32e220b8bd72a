//! What a watched process tells of itself: [`Report`], the JSON that `watch.py` writes, and what the stand-in tells.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_standin::notice::{self, Notice};
use plimsoll_standin::share;
use plimsoll_standin::workspace::{self, Workspace};
use serde::Deserialize;

use super::reads::{Place, Read};

/// One process that imported torch.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Report {
    pub(super) pid: u32,
    /// Its number in a job of several processes.
    pub(super) rank: Option<u32>,
    /// Whether the others of that job were not there.
    pub(super) alone: bool,
    pub(super) state: State,
    /// PyTorch's version.
    pub(super) torch: String,
    /// The version of CUDA that it was built for; `None`: for none.
    pub(super) cuda: Option<String>,
    /// Whether the stand-in is loaded.
    pub(super) standin: bool,
    /// What serves PyTorch's requests: `native`, `cudaMallocAsync`, or `none` where nothing is cached.
    #[serde(default = "native")]
    pub(super) allocator: String,
    /// Whether CUDA was used.
    pub(super) started: bool,
    /// Optimizer steps that were done.
    pub(super) steps: u64,
    /// Requests that failed for want of memory.
    pub(super) failures: u64,
    /// In which step the last of them was, from 1; 0 if none failed.
    pub(super) failed_step: u64,
    /// Those of which memory was asked for, by number.
    pub(super) devices: Vec<Peaks>,
    /// Whether `torch.backends.cudnn.benchmark` was on.
    pub(super) cudnn_search: bool,
    /// Bytes of the GPU that PyTorch's allocator did not ask for; `None` where that cannot be told.
    #[serde(default)]
    pub(super) outside_bytes: Option<u64>,
    /// Libraries with kernels or allocations of their own that were imported.
    pub(super) libraries: Vec<String>,
    /// The exception that ended it.
    pub(super) error: Option<Thrown>,
    /// What it read from the device.
    #[serde(default)]
    pub(super) reads: Vec<Read>,
    /// What of `--assume` could not be applied.
    #[serde(default)]
    pub(super) problems: Vec<String>,
    /// Whether it was not run to its end: after its steps it was ended, or its training was.
    #[serde(default)]
    pub(super) cut: bool,
    /// Whether what comes after the training was run, with the training's loader ended.
    #[serde(default)]
    pub(super) went_on: bool,
    /// Whether it came to its own end.
    #[serde(default)]
    pub(super) ended: bool,
    /// Lines that evaluate and were not reached.
    #[serde(default)]
    pub(super) unseen: Vec<Place>,
    /// The exception that ended what comes after the training.
    #[serde(default)]
    pub(super) after_error: Option<Thrown>,
    /// Files that it meant to write or remove, and what was not done.
    #[serde(default)]
    pub(super) saves: Vec<(String, String)>,
    /// Its snapshot, if it wrote one.
    #[serde(skip)]
    pub(super) snapshot: Option<PathBuf>,
    /// What the stand-in took to be so in it, and refused.
    #[serde(skip)]
    pub(super) notices: Vec<Notice>,
    /// The workspaces that libraries asked for in it.
    #[serde(skip)]
    pub(super) workspaces: BTreeSet<Workspace>,
}

fn native() -> String {
    NATIVE.to_owned()
}

/// PyTorch's own caching allocator, which alone keeps a record of its blocks.
pub(super) const NATIVE: &str = "native";

/// How far a process came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It did not tell its end: it was killed, or ended itself in the hard way.
    Running,
    /// It ended by itself.
    Ended,
    /// It did the steps that were asked for.
    Stopped,
    /// An exception ended it.
    Failed,
    /// It was told to end: its time was up, or the run was interrupted.
    Expired,
}

/// What the allocator had of one device at most, by PyTorch's own counters; and in which step, from 1. Steps that
/// were done and one more: after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Peaks {
    /// Its number in the process.
    pub(super) device: i32,
    /// Its number in the machine.
    pub(super) gpu: u32,
    pub(super) allocated_bytes: u64,
    pub(super) allocated_step: u64,
    pub(super) reserved_bytes: u64,
    pub(super) reserved_step: u64,
    /// What all processes took of it at one moment, with their contexts; `None` where it is this one's alone.
    #[serde(skip)]
    pub(super) together_bytes: Option<u64>,
}

/// An exception.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Thrown {
    /// Its class.
    pub(super) kind: String,
    /// What it says.
    pub(super) text: String,
    /// The innermost line outside packages.
    pub(super) file: Option<String>,
    pub(super) line: Option<u64>,
    /// Whether a value is read from the device close above it, or above a line that led to it.
    pub(super) reads: bool,
}

impl Report {
    /// What all processes told, by rank, then by number, and what they had together of a GPU by the stand-in's
    /// folder of what is shared.
    ///
    /// # Errors
    /// The system's; a report that is none.
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

    /// What it is called beside others.
    pub(super) fn name(&self) -> String {
        self.rank.map_or_else(|| format!("process {}", self.pid), |rank| format!("rank {rank}"))
    }
}
