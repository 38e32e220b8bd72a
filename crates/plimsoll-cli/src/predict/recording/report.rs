//! A process's [`Report`]: the JSON that `watch.py` writes (`protocol.py` has its fields), and the notices and
//! workspaces that plimsoll-standin (the simulated GPU) records.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use plimsoll_standin::notice;
use plimsoll_standin::share;
use plimsoll_standin::workspace;

use crate::protocol::{MARKS, Peaks, ProcessState, Report, VERSION};

/// A peak after the steps counts as equal if it is higher by less than this fraction, because merely reordering
/// requests changes the peak slightly.
const LATER: f64 = 0.005;

/// The memory of a process on a GPU, and the time in which it has that memory.
struct Share {
    gpu: u32,
    bytes: u64,
    begins: SystemTime,
    /// `None` for a process that was stopped: the program would go on.
    ends: Option<SystemTime>,
}

/// The most bytes that processes which run at the same time have on a GPU. Each keeps what it has reserved, so their
/// peaks add up even if they came at different times.
fn together(shares: &[Share], gpu: u32) -> u64 {
    let all = || shares.iter().filter(|it| it.gpu == gpu);
    let at =
        |time: SystemTime| all().filter(move |it| it.begins <= time && it.ends.is_none_or(|end| end > time));
    all().map(|it| at(it.begins).map(|other| other.bytes).sum()).max().unwrap_or(0)
}

impl Report {
    /// The reports of all processes, by rank, then by process ID. The totals of GPUs that processes share come from the
    /// folder `shared` of plimsoll-standin.
    ///
    /// # Errors
    /// I/O errors, or if the report is malformed or of another version.
    pub(super) fn all(folder: &Path, shared: &Path) -> io::Result<Vec<Report>> {
        let (mut reports, mut shares) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                let mut report: Report = serde_json::from_slice(&fs::read(&path)?)?;
                if report.protocol != VERSION {
                    let message =
                        format!("{}: a report of version {}, not {VERSION}", path.display(), report.protocol);
                    return Err(io::Error::other(message));
                }
                let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
                let end = changed(&path)?;
                let begins = changed(&path.with_extension(MARKS[0].trim_start_matches('.'))).unwrap_or(end);
                let ends = (report.state != ProcessState::Stopped).then_some(end);
                shares.extend(report.devices.iter().map(|peaks| {
                    let bytes = peaks.counted_bytes() + peaks.outside_bytes.unwrap_or(0);
                    Share { gpu: peaks.gpu, bytes, begins, ends }
                }));
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
            let most = || share::most_bytes(shared, peaks.gpu).map(|it| it.max(together(&shares, peaks.gpu)));
            peaks.together_bytes = if is_shared { most() } else { None };
        }
        Ok(reports)
    }

    /// Whether a peak of the process came after the steps and is clearly higher than the peak during the steps.
    pub(crate) fn peaks_later(&self) -> bool {
        let is_later = |it: &Peaks| it.allocated_step.max(it.reserved_step) > self.steps;
        self.devices.iter().any(|it| is_later(it) && it.grows_by > LATER)
    }

    /// The process's name in the report.
    pub(crate) fn name(&self) -> String {
        self.rank.map_or_else(|| format!("process {}", self.pid), |rank| format!("rank {rank}"))
    }
}
