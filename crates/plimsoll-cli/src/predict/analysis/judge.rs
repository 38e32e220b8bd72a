//! The verdict, based on how the run ended, the reports of its processes, and the growth of its memory.

use plimsoll_alloc::Bytes;

use super::failed::failed;
use super::growth::Growth;
use super::verdict::Verdict;
use crate::predict::gpu::Target;
use crate::predict::launch::ended::Ended;
use crate::predict::recording::job::Job;
use crate::protocol::{Peaks, ProcessState, Report};

/// The verdict if no request failed.
pub(crate) fn without_shortage(job: &Job, target: &Target, peaks: Option<Peaks>) -> Verdict {
    let Job { ended, reports, .. } = job;
    let unknown = |why: &str| Verdict::Unknown(why.to_owned());
    if let Some(report) = reports.iter().find(|report| report.cuda.is_none()) {
        return Verdict::Unknown(format!(
            "PyTorch {} is a CPU-only build: install one for CUDA (it needs no GPU), with `pip install torch` on Linux or with \
             the selector on pytorch.org",
            report.torch
        ));
    }
    if reports.iter().any(|report| !report.standin) {
        return unknown(
            "the simulated GPU's library is not loaded in the program: something between plimsoll and the program removes LD_PRELOAD",
        );
    }
    match *ended {
        _ if is_late_abort(job) => {}
        Ended::Status(_) | Ended::Signal(_) if were_stopped(reports) => {}
        Ended::Interrupted => return unknown("the run was interrupted"),
        Ended::Expired => {
            return unknown(
                "the program did not end within --timeout; a loop that waits for a value from the GPU may never end here",
            );
        }
        Ended::Status(_) | Ended::Signal(_) => return failed(job),
        Ended::Well => {}
    }
    if reports.is_empty() {
        return unknown(
            "torch was not imported: the command does not import it, or its Python ignores PYTHONPATH (-I, -E, -S)",
        );
    }
    match peaks {
        None if reports.iter().any(|report| report.started) => {
            unknown("a process that used CUDA was killed before it reported its memory")
        }
        None => unknown("no GPU memory was requested: is the model moved to \"cuda\"?"),
        Some(_) => {
            let outside = |peaks: &Peaks| peaks.outside_bytes.unwrap_or(target.context_bytes);
            let taken =
                |peaks: &Peaks| peaks.together_bytes.unwrap_or(peaks.counted_bytes() + outside(peaks));
            let most = reports.iter().flat_map(|report| &report.devices).map(taken).max();
            let limit_bytes = target.limit_bytes();
            let shared =
                reports.iter().flat_map(|report| &report.devices).filter_map(|it| it.together_bytes).max();
            if let Some(bytes) = shared.filter(|bytes| *bytes > limit_bytes) {
                return Verdict::Unknown(format!(
                    "its processes on one GPU need {} together, {} more than {} offers, if each keeps what it has reserved",
                    Bytes(bytes),
                    Bytes(bytes - limit_bytes),
                    target.name
                ));
            }
            let spare_bytes = limit_bytes.saturating_sub(most.unwrap_or(0));
            Verdict::Fits { spare_bytes, caught: caught(job) }
        }
    }
}

/// Whether a program that had finished was aborted during the interpreter's shutdown: PyTorch aborts some short
/// programs when a thread of the backward pass outlives the interpreter.
fn is_late_abort(Job { ended, reports, .. }: &Job) -> bool {
    let is_abort = matches!(ended, Ended::Signal(6) | Ended::Status(134));
    is_abort && !reports.is_empty() && reports.iter().all(|report| report.state == ProcessState::Ended)
}

/// Whether every process that used CUDA ended or was stopped after its steps, and at least one was stopped. The
/// parent of a stopped process, such as Jupyter for a notebook's kernel, may report the stop as a failure.
fn were_stopped(reports: &[Report]) -> bool {
    let mut started = reports.iter().filter(|report| report.started);
    let has_ended = |report: &Report| {
        report.error.is_none() && matches!(report.state, ProcessState::Stopped | ProcessState::Ended)
    };
    started.clone().any(|report| report.state == ProcessState::Stopped) && started.all(has_ended)
}

/// Adds the growth of memory, if the run was cut short, to the verdict of a run in which no request failed.
pub(crate) fn with_growth(verdict: Verdict, growth: Option<&Growth>, reports: &[Report]) -> Verdict {
    match (verdict, growth) {
        (Verdict::Fits { caught, .. }, Some(growth)) if growth.ends_well() => {
            Verdict::Fits { spare_bytes: growth.spare_bytes, caught }
        }
        (Verdict::Fits { .. }, Some(growth)) => Verdict::Grows(growth.clone()),
        (Verdict::Fits { spare_bytes, .. }, None) if still_grow(reports, spare_bytes) => Verdict::Unknown(
            "reserved memory still grew when the run was cut short, because batches differ in size; --whole runs the program \
             to its end"
                .to_owned(),
        ),
        (Verdict::Fits { .. }, None) if reports.iter().any(|report| report.grew) => Verdict::Unknown(
            "memory still grew when the run was cut short; --whole runs the program to its end".to_owned(),
        ),
        (verdict, _) => verdict,
    }
}

/// Whether reserved bytes still grew when the run was cut short, and may grow by more than is left of the GPU's memory.
fn still_grow(reports: &[Report], spare_bytes: u64) -> bool {
    let cut = reports.iter().filter(|report| report.cut);
    cut.flat_map(|report| &report.varying).any(|it| it.more_bytes().is_none_or(|more| more > spare_bytes))
}

/// How many requests ran out of memory in a run that still succeeded: the program caught the errors and, if it has
/// steps, completed one after them.
pub(crate) fn caught(Job { ended, reports, .. }: &Job) -> u64 {
    let went_on = |report: &Report| {
        let is_well = matches!(report.state, ProcessState::Stopped | ProcessState::Ended)
            && report.error.is_none()
            && (report.failures == 0 || report.status == 0);
        is_well && (report.steps >= report.failed_step || report.steps == 0)
    };
    if *ended != Ended::Well || !reports.iter().all(went_on) {
        return 0;
    }
    reports.iter().map(|report| report.failures).sum()
}
