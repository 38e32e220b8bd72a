//! The request that failed: [`Shortage`].

use plimsoll_trace::explain::Cause;
use plimsoll_trace::render::words;

use super::judged::Judged;
use super::warm;
use crate::predict::launch::ended::Ended;
use crate::protocol::{ProcessState, Refused, Report, Thrown};

/// The request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The step of the request, counted from 1.
    pub(crate) step: u64,
    /// The line that made the request, if it is known.
    pub(crate) line: Option<String>,
    pub(crate) asked_bytes: u64,
    /// The owner of the request, if it was made outside PyTorch's allocator.
    pub(crate) owner: Option<String>,
    /// The reason for the failure.
    pub(crate) cause: Cause,
    /// Whether the program continued after the failure.
    pub(crate) caught: bool,
    /// Whether `torch.compile` made the request while compiling or timing kernels, which warm caches avoid.
    pub(crate) is_saved_by_caches: bool,
}

impl Report {
    /// The request outside PyTorch's allocator that did not fit and ended this process, if there is one.
    pub(crate) fn outside_shortage(&self) -> Option<Shortage> {
        let (Refused { row, free_bytes }, error) = (self.refused.as_ref()?, self.error.as_ref()?);
        let part = if row.part.is_empty() { String::new() } else { format!(" ({})", row.part) };
        Some(Shortage {
            step: self.steps + 1,
            line: error.place(),
            asked_bytes: row.bytes,
            owner: Some(format!("{}{part}", row.owner)),
            cause: Cause::Capacity { short_bytes: row.bytes.saturating_sub(*free_bytes) },
            caught: false,
            is_saved_by_caches: false,
        })
    }
}

impl Judged {
    /// The request that failed, if the recording contains a failed request.
    pub(crate) fn shortage(&self, ended: Ended) -> Option<Shortage> {
        let analysis = self.analysis.as_ref()?;
        let (explained, failure) = (&analysis.explained, analysis.device().failure?);
        let line = explained.origins.get(failure.stack).line;
        let saved = warm::saved(&explained.snapshot, self.report.compile_caches);
        Some(Shortage {
            step: self.report.failed_step,
            // A backward pass runs on a thread without Python; then the error's traceback shows the pass.
            line: line
                .map(|frame| words::line(&explained.snapshot, frame))
                .or_else(|| self.report.error.as_ref().and_then(Thrown::place)),
            asked_bytes: failure.asked_bytes,
            owner: None,
            cause: failure.cause(),
            // A worker process may exit normally and report its failure to its parent.
            caught: self.report.state != ProcessState::Failed
                && self.report.status == 0
                && !matches!(ended, Ended::Status(_) | Ended::Signal(_)),
            is_saved_by_caches: failure.stack.is_some_and(|stack| saved[stack.index()]),
        })
    }
}
