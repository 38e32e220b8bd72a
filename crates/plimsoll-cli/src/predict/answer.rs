//! What a run comes to: [`Outcome`], with its [`Verdict`] and the process that it is about.

use std::collections::BTreeSet;
use std::path::PathBuf;

use plimsoll_standin::notice::{self, Kind, Notice};
use plimsoll_trace::explain::{Cause, DeviceExplanation, Options};
use plimsoll_trace::render::words;
use plimsoll_trace::whatif::{SETTINGS, WhatIf};

use super::failed::failed;
use super::gpu::{Target, Workspaces};
use super::reads::Read;
use super::report::{Peaks, Report, State};
use super::run::Ended;
use super::without::Without;
use crate::exit::{Exit, Failure};
use crate::explained::Explained;
use crate::recording::Recording;

/// A run, judged.
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The processes that used CUDA.
    pub(super) reports: Vec<Report>,
    /// What the verdict is about; nothing where no memory was asked for.
    pub(super) judged: Option<Judged>,
    /// The peaks of the same requests without the workspaces that libraries asked for, if any did and it fits.
    pub(super) without_workspaces: Option<Without>,
    /// The same program with the assumed values zero, if any was assumed.
    pub(super) without_assumptions: Option<Box<Outcome>>,
}

/// Whether it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does, with so much left of the GPU.
    Fits { spare_bytes: u64 },
    /// A request failed.
    RunsOut(Shortage),
    /// The program failed, not for want of memory: how, and what may have been the cause.
    Failed { how: String, hint: Option<String> },
    /// That cannot be told, and why.
    Unknown(String),
}

/// The request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    /// The step that it belonged to, from 1.
    pub(super) step: u64,
    /// The line that asked, if it is known.
    pub(super) line: Option<String>,
    pub(super) asked_bytes: u64,
    /// What kept it from being served.
    pub(super) cause: Cause,
    /// Whether the program went on after it.
    pub(super) caught: bool,
}

/// A process and one of its devices.
pub(super) struct Judged {
    pub(super) report: Report,
    pub(super) peaks: Peaks,
    /// What its snapshot tells of the device; nothing if it was killed before it wrote one.
    pub(super) told: Option<Told>,
}

/// What a snapshot tells of one device.
pub(super) struct Told {
    /// The file, which goes when the run does.
    pub(super) snapshot: PathBuf,
    /// Of this device alone.
    pub(super) explained: Explained,
}

impl Told {
    /// Replays the same requests under other settings, too, where that is to be told.
    pub(super) fn try_settings(&mut self) {
        let Explained { snapshot, devices, .. } = &mut self.explained;
        let DeviceExplanation { what_if, timeline, ledger, .. } = &mut devices[0];
        let total = ledger.device.total;
        what_if.get_or_insert_with(|| WhatIf::within(snapshot, timeline, &SETTINGS, total));
    }

    pub(super) fn device(&self) -> &DeviceExplanation {
        &self.explained.devices[0]
    }
}

impl Verdict {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Verdict::Fits { .. } => Exit::Done,
            Verdict::RunsOut(_) | Verdict::Unknown(_) => Exit::OutOfMemory,
            Verdict::Failed { .. } => Exit::Program,
        }
    }
}

impl Outcome {
    /// Judges a run by how it ended and what its processes told.
    ///
    /// # Errors
    /// A snapshot that cannot be read.
    pub(super) fn of(ended: Ended, reports: &[Report], target: &Target) -> Result<Outcome, Failure> {
        let worst = worst(reports);
        let judged = worst.map(|(report, peaks)| Judged::of(report, peaks, target)).transpose()?;
        let verdict = match &judged {
            Some(judged) if judged.report.failures > 0 => judged
                .shortage(ended)
                .map_or_else(|| judged.report.shortage_without_record(), Verdict::RunsOut),
            _ => without_shortage(ended, reports, target, judged.as_ref().map(|judged| judged.peaks)),
        };
        let reports = reports.iter().filter(|report| report.started).cloned().collect();
        Ok(Outcome { verdict, reports, judged, without_workspaces: None, without_assumptions: None })
    }
}

impl Outcome {
    /// The processes that used CUDA, with each of their devices.
    pub(super) fn rows(&self) -> Vec<(&Report, &Peaks)> {
        self.reports.iter().flat_map(|it| it.devices.iter().map(move |peaks| (it, peaks))).collect()
    }

    /// What the stand-in took to be so, and refused, in any of the processes: each once, in order.
    pub(super) fn notices(&self) -> BTreeSet<&Notice> {
        let all = self.reports.iter().flat_map(|report| &report.notices);
        // What is asked of NVML says nothing of memory.
        all.filter(|it| it.kind != Kind::Refused || !it.about.starts_with("nvml")).collect()
    }

    /// Whether cuDNN was asked for a workspace.
    pub(super) fn uses_cudnn(&self) -> bool {
        self.notices().iter().any(|notice| notice.about == notice::CUDNN)
    }

    /// Replays what is judged without the workspaces that libraries asked for. Where memory ran out the recording ends,
    /// so that nothing can be said of it without them.
    pub(super) fn leave_out_workspaces(&mut self) {
        let judged = self.judged.as_ref().filter(|_| matches!(self.verdict, Verdict::Fits { .. }));
        let told = judged.and_then(|judged| Some((judged, judged.told.as_ref()?)));
        self.without_workspaces =
            told.and_then(|(judged, told)| Without::of(told, &judged.report.workspaces));
    }

    /// The libraries that asked for workspaces which are not documented, as `cuDNN's` or `cuDNN's and cuFFT's`; nothing if
    /// none did.
    pub(super) fn modelled(&self) -> Option<String> {
        let notices = self.notices();
        let answered =
            notices.iter().filter(|it| [notice::MODELLED, notice::ASKED].contains(&it.text.as_str()));
        let libraries: BTreeSet<String> = answered.map(|notice| format!("{}'s", notice.about)).collect();
        (!libraries.is_empty()).then(|| libraries.into_iter().collect::<Vec<_>>().join(" and "))
    }

    /// Whether the peaks rest on nothing but PyTorch's own requests, of which none depends on a value that is not known;
    /// those of cuDNN are left out if none are wanted.
    pub(super) fn is_exact(&self, target: &Target) -> bool {
        let is_failed = matches!(self.verdict, Verdict::Failed { .. } | Verdict::Unknown(_));
        let decided = self.reports.iter().flat_map(|report| &report.reads).any(Read::decides);
        !is_failed
            && !decided
            && self.notices().iter().all(|notice| match notice.kind {
                Kind::Assumed => notice.about == notice::CUDNN && target.workspaces == Workspaces::None,
                Kind::Refused | Kind::Selected => false,
            })
    }
}

/// The process and device that decide: where memory ran out, else where the most is reserved.
fn worst(reports: &[Report]) -> Option<(&Report, Peaks)> {
    let all = reports.iter().flat_map(|report| report.devices.iter().map(move |&peaks| (report, peaks)));
    // Of equals the first, which is the lowest rank.
    all.rev().max_by_key(|(report, peaks)| (report.failures > 0, peaks.reserved_bytes))
}

impl Judged {
    fn of(report: &Report, peaks: Peaks, target: &Target) -> Result<Judged, Failure> {
        let mut judged = Judged { report: report.clone(), peaks, told: None };
        let Some(snapshot) = report.snapshot.clone() else { return Ok(judged) };
        let recording = Recording::named(&snapshot, &format!("what {} recorded", report.name()), None)?;
        let options = Options { device_total_bytes: Some(target.total_bytes), ..Options::default() };
        let mut explained = Explained::of(recording, options);
        let devices = &explained.devices;
        // Memory ran out on one of its devices, and the one that has most need not be it.
        let failed = devices.iter().position(|device| device.failure.is_some());
        let place = failed.or_else(|| devices.iter().position(|it| it.timeline.device == peaks.device));
        let Some(place) = place else { return Ok(judged) };
        let device = explained.devices.swap_remove(place);
        let timeline = &device.timeline;
        if let Some(counted) = report.devices.iter().find(|it| it.device == timeline.device) {
            judged.peaks = *counted;
        }
        // A program may set PyTorch's counters back; the recording knows better then.
        let (allocated, reserved) = (timeline.peak_allocated.level, timeline.peak_reserved.level);
        judged.peaks.allocated_bytes = judged.peaks.allocated_bytes.max(allocated.allocated_bytes);
        judged.peaks.reserved_bytes = judged.peaks.reserved_bytes.max(reserved.reserved_bytes);
        explained.devices = vec![device];
        explained.file = "SNAPSHOT".to_owned();
        judged.told = Some(Told { snapshot, explained });
        Ok(judged)
    }

    /// The request that failed, if the recording has one.
    fn shortage(&self, ended: Ended) -> Option<Shortage> {
        let told = self.told.as_ref()?;
        let (explained, failure) = (&told.explained, told.device().failure?);
        let line = explained.origins.get(failure.stack).line;
        Some(Shortage {
            step: self.report.failed_step,
            line: line.map(|frame| words::line(&explained.snapshot, frame)),
            asked_bytes: failure.asked_bytes,
            cause: failure.cause(),
            // A process that others started may end as if nothing were, and tell them that it failed.
            caught: self.report.state != State::Failed
                && !matches!(ended, Ended::Status(_) | Ended::Signal(_)),
        })
    }
}

/// The verdict where every request was served.
fn without_shortage(ended: Ended, reports: &[Report], target: &Target, peaks: Option<Peaks>) -> Verdict {
    let unknown = |why: &str| Verdict::Unknown(why.to_owned());
    if let Some(report) = reports.iter().find(|report| report.cuda.is_none()) {
        return Verdict::Unknown(format!(
            "PyTorch {} is a build for the CPU alone, which asks no GPU for memory: install one for CUDA (it needs no \
             GPU), as with `pip install torch` on Linux, or by the selector on pytorch.org",
            report.torch
        ));
    }
    if reports.iter().any(|report| !report.standin) {
        return unknown("the stand-in is not loaded in the program: something on the way drops LD_PRELOAD");
    }
    match ended {
        ended if is_late_abort(ended, reports) => {}
        Ended::Status(_) | Ended::Signal(_) if were_stopped(reports) => {}
        Ended::Interrupted => return unknown("it was interrupted"),
        Ended::Expired => {
            return unknown(
                "it did not come to its end within --timeout; a loop that ends by a value of the device may go on for \
                 ever here",
            );
        }
        Ended::Status(_) | Ended::Signal(_) => return failed(ended, reports),
        Ended::Well => {}
    }
    if reports.is_empty() {
        return unknown(
            "no torch was imported: the command starts no Python that does, or one that ignores PYTHONPATH (-I, -E, -S)",
        );
    }
    match peaks {
        None if reports.iter().any(|report| report.started) => {
            unknown("a process that used CUDA was killed before it told what it took")
        }
        None => unknown("no memory of a GPU was asked for: is the model moved to \"cuda\"?"),
        Some(_) => {
            let taken =
                |peaks: &Peaks| peaks.together_bytes.unwrap_or(peaks.reserved_bytes + target.context_bytes);
            let most = reports.iter().flat_map(|report| &report.devices).map(taken).max();
            Verdict::Fits { spare_bytes: target.total_bytes.saturating_sub(most.unwrap_or(0)) }
        }
    }
}

/// Whether a program that had come to its end was aborted on its way out, as PyTorch does to some short programs
/// when a thread of the backward pass outlives the interpreter.
fn is_late_abort(ended: Ended, reports: &[Report]) -> bool {
    let is_abort = matches!(ended, Ended::Signal(6) | Ended::Status(134));
    is_abort && !reports.is_empty() && reports.iter().all(|report| report.state == State::Ended)
}

/// Whether every process that used CUDA came to its end or was ended after its steps, one at least the latter: a program
/// that started it, as Jupyter starts a notebook's kernel, may take that for a failure.
fn were_stopped(reports: &[Report]) -> bool {
    let mut started = reports.iter().filter(|report| report.started);
    let has_ended =
        |report: &Report| report.error.is_none() && matches!(report.state, State::Stopped | State::Ended);
    started.clone().any(|report| report.state == State::Stopped) && started.all(has_ended)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plimsoll_alloc::{Addr, StreamId};
    use plimsoll_trace::Sharing;
    use plimsoll_trace::output::save;
    use plimsoll_trace::snapshot::{Action, Event, Snapshot};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn target() -> Target {
        Target::new("64MiB", Some("8.0"), 4 * MIB).expect("a device")
    }

    /// What watch.py tells of a process that had 20 MiB at most, with these changes.
    fn report(changes: &serde_json::Value) -> Report {
        let mut told = serde_json::json!({
            "pid": 7, "rank": null, "alone": false, "command": ["train.py"], "state": "stopped",
            "torch": "2.15.0", "cuda": "13.2",
            "standin": true, "started": true, "steps": 3, "failures": 0, "failed_step": 0,
            "devices": [{
                "device": 0, "gpu": 0, "allocated_bytes": 3 * MIB, "allocated_step": 2,
                "reserved_bytes": 20 * MIB, "reserved_step": 1,
            }],
            "cudnn_search": false, "libraries": [], "error": null,
        });
        for (key, value) in changes.as_object().expect("an object") {
            told[key] = value.clone();
        }
        serde_json::from_value(told).expect("a report")
    }

    fn verdict(ended: Ended, reports: &[Report]) -> Verdict {
        Outcome::of(ended, reports, &target()).expect("nothing to read").verdict
    }

    #[track_caller]
    fn check_unknown(ended: Ended, reports: &[Report], why: &str) {
        match verdict(ended, reports) {
            Verdict::Unknown(said) => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
    }

    /// The snapshot of a device of which 20 MiB are taken, 3 of them in use, and then 60 are asked for.
    fn snapshot_that_ran_out(folder: &Path) -> PathBuf {
        let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
        let trace = vec![
            event(Action::SegmentAlloc, 0x700_0000_0000, 20 * MIB),
            event(Action::Alloc, 0x700_0000_0000, 3 * MIB),
            Event::oom(60 * MIB, Some(40 * MIB), StreamId(0)),
        ];
        let path = folder.join("7.pickle");
        let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
        save(&snapshot, &path, Sharing::Equal).expect("written");
        path
    }

    #[test]
    fn what_is_left_of_the_gpu_is_beside_the_context() {
        let fits = verdict(Ended::Well, &[report(&serde_json::json!({}))]);
        assert_eq!(fits, Verdict::Fits { spare_bytes: 40 * MIB });
        assert_eq!(fits.exit(), Exit::Done);
    }

    #[test]
    fn a_request_that_failed_decides_whatever_came_after() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ran_out = report(&serde_json::json!({ "state": "failed", "failures": 1, "failed_step": 4 }));
        ran_out.snapshot = Some(snapshot_that_ran_out(folder.path()));
        let shortage = |caught| Shortage {
            step: 4,
            line: None,
            asked_bytes: 60 * MIB,
            cause: Cause::Capacity { short_bytes: 3 * MIB },
            caught,
        };
        // A rank with more memory, and no failure.
        let other = report(&serde_json::json!({ "rank": 0, "devices": [{
            "device": 0, "gpu": 0, "allocated_bytes": 3 * MIB, "allocated_step": 2,
            "reserved_bytes": 50 * MIB, "reserved_step": 1,
        }] }));
        let died = verdict(Ended::Status(1), &[other, ran_out.clone()]);
        assert_eq!((died.exit(), died), (Exit::OutOfMemory, Verdict::RunsOut(shortage(false))));
        ran_out.state = State::Ended;
        assert_eq!(verdict(Ended::Well, &[ran_out]), Verdict::RunsOut(shortage(true)));
    }

    #[test]
    fn what_keeps_it_from_being_told_is_said() {
        let cpu = report(&serde_json::json!({ "cuda": null, "started": false, "devices": [] }));
        check_unknown(Ended::Status(1), &[cpu], "build for the CPU alone");
        check_unknown(Ended::Well, &[], "no torch was imported");
        let unused = report(&serde_json::json!({ "started": false, "devices": [] }));
        check_unknown(Ended::Well, &[unused], "no memory of a GPU");
        check_unknown(Ended::Well, &[report(&serde_json::json!({ "standin": false }))], "LD_PRELOAD");
        check_unknown(Ended::Expired, &[report(&serde_json::json!({}))], "--timeout");
        check_unknown(Ended::Interrupted, &[], "interrupted");
    }

    fn notice(kind: Kind, about: &str) -> Notice {
        Notice { kind, about: about.to_owned(), text: "is so".to_owned() }
    }

    #[test]
    fn an_answer_is_exact_where_nothing_was_taken_to_be_so_but_that_cudnn_needs_nothing() {
        let modelled =
            |about: &str| Notice { text: notice::MODELLED.to_owned(), ..notice(Kind::Assumed, about) };
        let (cudnn, both) = (vec![modelled("cuDNN")], vec![modelled("cuDNN"), modelled("cuFFT")]);
        for (notices, exact, workspaces) in [
            (vec![], [true, true], None),
            (vec![notice(Kind::Assumed, notice::CUDNN)], [false, true], None),
            (cudnn, [false, true], Some("cuDNN's")),
            (vec![modelled(notice::CUFFT)], [false, false], Some("cuFFT's")),
            (both, [false, false], Some("cuDNN's and cuFFT's")),
        ] {
            // Two ranks tell the same.
            let mut ranks = [0, 1].map(|rank| report(&serde_json::json!({ "rank": rank })));
            ranks.iter_mut().for_each(|rank| rank.notices.clone_from(&notices));
            let outcome = Outcome::of(Ended::Well, &ranks, &target()).expect("nothing to read");
            assert_eq!(outcome.notices().len(), notices.len());
            assert_eq!(outcome.modelled().as_deref(), workspaces);
            let mut modelled = target();
            modelled.workspaces = Workspaces::Model;
            assert_eq!([outcome.is_exact(&modelled), outcome.is_exact(&target())], exact, "{notices:?}");
        }
        for kind in [Kind::Selected, Kind::Refused] {
            let mut rank = report(&serde_json::json!({}));
            rank.notices = vec![notice(kind, "cuCall")];
            let outcome = Outcome::of(Ended::Well, &[rank], &target()).expect("nothing to read");
            assert!(!outcome.is_exact(&target()), "{kind:?}");
        }
    }

    /// How a program failed whose rank 1 ended with this exception, as did what started the ranks.
    fn failed(kind: &str, text: &str, reads: bool) -> (String, Option<String>) {
        let thrown = |kind: &str, text: &str| {
            let (file, line) = ("train.py", 3);
            serde_json::json!({ "kind": kind, "text": text, "file": file, "line": line, "reads": reads })
        };
        let parent =
            report(&serde_json::json!({ "started": false, "error": thrown("ChildFailedError", "") }));
        let mut rank = report(&serde_json::json!({ "rank": 1, "error": thrown(kind, text) }));
        rank.notices = vec![notice(Kind::Refused, "cusparseLtInit"), notice(Kind::Assumed, "cuFFT")];
        match verdict(Ended::Status(1), &[parent, rank]) {
            Verdict::Failed { how, hint } => (how, hint),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_programs_own_failure_is_told_with_a_hint_where_the_stand_in_may_be_the_cause() {
        let (how, hint) = failed("ValueError", "mine\nand more", false);
        assert_eq!((how.as_str(), hint), ("ValueError at train.py:3: mine", None));
        for (text, reads, said) in [
            (
                "cuSPARSE error: when calling `cusparseLtInit(handle)`",
                false,
                "not imitate what was called: cusparseLtInit",
            ),
            ("CUDA error: invalid device ordinal", true, "--devices"),
            ("CUDA error: no kernel image is available", true, "no code for that GPU"),
            ("no rows", true, "read back"),
        ] {
            let hint = failed("RuntimeError", text, reads).1.expect("a hint");
            assert!(hint.contains(said), "{text}: {hint}");
        }
        let ended = report(&serde_json::json!({ "state": "ended" }));
        assert_eq!(verdict(Ended::Signal(6), &[ended]), Verdict::Fits { spare_bytes: 40 * MIB });
        let running = report(&serde_json::json!({ "state": "running" }));
        assert_eq!(verdict(Ended::Signal(6), &[running]).exit(), Exit::Program);
        let killed = verdict(Ended::Signal(9), &[]);
        assert_eq!(killed, Verdict::Failed { how: "it was ended by signal 9".to_owned(), hint: None });
        assert_eq!(killed.exit(), Exit::Program);
    }
}
