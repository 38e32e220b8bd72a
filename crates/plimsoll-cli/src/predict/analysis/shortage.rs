//! The request that failed: [`Shortage`].

use plimsoll_trace::explain::Cause;
use plimsoll_trace::render::words;

use super::judged::Judged;
use super::warm;
use crate::predict::launch::ended::Ended;
use crate::protocol::ProcessState;

/// The request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The step of the request, from 1.
    pub(crate) step: u64,
    /// The line that made the request, if it is known.
    pub(crate) line: Option<String>,
    pub(crate) asked_bytes: u64,
    /// Why it failed.
    pub(crate) cause: Cause,
    /// Whether the program continued after it.
    pub(crate) caught: bool,
    /// Whether `torch.compile` made the request while compiling or timing kernels, which warm caches avoid.
    pub(crate) is_saved_by_caches: bool,
}

impl Judged {
    /// The request that failed, if the recording contains one.
    pub(crate) fn shortage(&self, ended: Ended) -> Option<Shortage> {
        let analysis = self.analysis.as_ref()?;
        let (explained, failure) = (&analysis.explained, analysis.device().failure?);
        let line = explained.origins.get(failure.stack).line;
        let saved = warm::saved(&explained.snapshot, self.report.compile_caches);
        Some(Shortage {
            step: self.report.failed_step,
            line: line.map(|frame| words::line(&explained.snapshot, frame)),
            asked_bytes: failure.asked_bytes,
            cause: failure.cause(),
            // A worker process may exit normally and report its failure to its parent.
            caught: self.report.state != ProcessState::Failed
                && self.report.status == 0
                && !matches!(ended, Ended::Status(_) | Ended::Signal(_)),
            is_saved_by_caches: failure.stack.is_some_and(|stack| saved[stack.index()]),
        })
    }
}
