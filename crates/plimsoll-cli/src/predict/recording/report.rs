//! A process's [`Report`]: the JSON that `watch.py` writes (`protocol.py` has its fields), and the notices and
//! workspaces that plimsoll-standin (the simulated GPU) records.

use std::fs;
use std::io;
use std::path::Path;

use plimsoll_standin::notice;
use plimsoll_standin::share;
use plimsoll_standin::workspace;

use crate::protocol::{Peaks, Report, VERSION};

/// A peak after the steps counts as equal if it is higher by less than this fraction, because merely reordering
/// requests changes the peak slightly.
const LATER: f64 = 0.005;

impl Report {
    /// The reports of all processes, by rank, then by process ID. The totals of GPUs that processes share come from the
    /// folder `shared` of plimsoll-standin.
    ///
    /// # Errors
    /// I/O errors, or if the report is malformed or of another version.
    pub(super) fn all(folder: &Path, shared: &Path) -> io::Result<Vec<Report>> {
        let mut reports = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                let mut report: Report = serde_json::from_slice(&fs::read(&path)?)?;
                if report.protocol != VERSION {
                    let message =
                        format!("{}: a report of version {}, not {VERSION}", path.display(), report.protocol);
                    return Err(io::Error::other(message));
                }
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
