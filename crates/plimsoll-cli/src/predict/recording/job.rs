//! The results of one run of the program: [`Job`], which the analysis reads, for `predict` and for `plan`.

use std::io;
use std::path::{Path, PathBuf};

use super::host::Process;
use crate::predict::launch::ended::Ended;
use crate::protocol::Report;

/// How the program ended, and the reports of its processes: everything that an analysis knows about a run.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) ended: Ended,
    /// By rank, then by process ID.
    pub(crate) reports: Vec<Report>,
    /// The memory of the processes on the host, by process ID.
    pub(crate) host: Vec<Process>,
    /// A file that the program could not change because of its isolation ([`UNCOPIED`](crate::predict::view)).
    pub(crate) uncopied: Option<PathBuf>,
}

impl Job {
    /// Reads the processes' reports from their folder. The totals of GPUs that processes share come from the folder
    /// `shared` of plimsoll-standin.
    ///
    /// # Errors
    /// I/O errors, or if the report is malformed.
    pub(crate) fn read(ended: Ended, reports: &Path, shared: &Path) -> io::Result<Job> {
        let host = Process::all(reports)?;
        Ok(Job { ended, reports: Report::all(reports, shared)?, host, uncopied: None })
    }
}
