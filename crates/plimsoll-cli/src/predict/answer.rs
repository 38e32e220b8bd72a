//! The answer about a run: [`Outcome`], with its verdict and the process that decides it.

use std::collections::BTreeSet;

use plimsoll_standin::notice::{self, Kind, Notice};

use super::analysis::growth::Growth;
use super::analysis::host::Node;
use super::analysis::judge::{caught, with_growth, without_shortage};
use super::analysis::judged::Judged;
use super::analysis::need::Need;
use super::analysis::shortage::Shortage;
use super::analysis::verdict::Verdict;
use super::analysis::warm;
use super::analysis::waste::Savings;
use super::analysis::without::{Without, is_workspace};
use super::gpu::{Target, Workspaces};
use super::recording::job::Job;
use super::recording::traces::Traces;
use crate::exit::{Exit, Failure};
use crate::protocol::{Applied, Fall, Holder, Peaks, Read, Report};

/// The result of a run.
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The processes that used CUDA.
    pub(super) reports: Vec<Report>,
    /// The process and device that decide the verdict; `None` if no memory was requested.
    pub(super) judged: Option<Judged>,
    /// The peaks of the same requests without the libraries' workspaces, if there were workspaces and the program
    /// fits.
    pub(super) without_workspaces: Option<Without>,
    /// The peaks without the requests of `torch.compile` that a warm cache avoids, if there were such requests and
    /// the program fits.
    pub(super) with_warm_caches: Option<Without>,
    /// The result of a run with zero in place of the values of `--assume`, if there are any.
    pub(super) without_assumptions: Option<Box<Outcome>>,
    /// The result of a run in which the unknown values that decide sizes were at their maximum, if there are such
    /// values and the run succeeded.
    pub(super) with_largest: Option<Box<Outcome>>,
    /// If all unknown values that decide sizes were at their maximum in the first run (as for the boxes that `nms`
    /// keeps): the result of a run with 1 instead.
    pub(super) with_least: Option<Box<Outcome>>,
    /// The last request that failed, even if the program caught the error.
    pub(super) shortage: Option<Shortage>,
    /// Memory that was still growing when the run was cut short, if any.
    pub(super) growth: Option<Growth>,
    /// How much memory the program needs, if it ran out and this is known.
    pub(super) need: Option<Need>,
    /// The memory that the program can free at the peak, if there is any, and the peaks without it.
    pub(super) savings: Option<Savings>,
    /// The files that the program would have written, and the hosts that it contacted.
    pub(super) traces: Traces,
    /// The memory of the machine, if the program's processes report it.
    pub(super) host: Option<Node>,
}

impl Outcome {
    /// The result of a run, from how it ended and from its processes' reports.
    ///
    /// # Errors
    /// If a snapshot cannot be read.
    pub(super) fn of(job: &Job, target: &Target) -> Result<Outcome, Failure> {
        let Job { ended, reports, host, .. } = job;
        let mut host = Node::of(host, reports, target.machine);
        let judged = Judged::among(reports, target)?;
        let outside_bytes = judged.as_ref().and_then(|judged| judged.peaks.outside_bytes);
        let target = &target.charged(outside_bytes);
        let refusal = reports.iter().find_map(|report| report.refusal.clone());
        let has_failed = judged.as_ref().is_some_and(|judged| judged.report.failures > 0);
        let shortage = judged.as_ref().filter(|_| has_failed).and_then(|judged| judged.shortage(*ended));
        let growth = judged.as_ref().and_then(|judged| Growth::of(judged, target));
        let verdict = match (refusal, &judged) {
            (Some(refusal), _) => Verdict::Refused(refusal),
            (None, Some(judged)) if has_failed && caught(job) == 0 => {
                shortage.clone().map_or_else(|| judged.report.shortage_without_record(), Verdict::RunsOut)
            }
            _ => {
                let verdict = without_shortage(job, target, judged.as_ref().map(|judged| judged.peaks));
                let outside = reports.iter().find_map(Report::outside_shortage);
                match (verdict, outside) {
                    (Verdict::Failed { .. }, Some(outside)) => Verdict::RunsOut(outside),
                    (verdict, _) => with_growth(verdict, growth.as_ref(), reports),
                }
            }
        };
        if let (true, Verdict::Fits { spare_bytes, .. }) = (target.shares_memory(), &verdict) {
            host.iter_mut().for_each(|node| node.machine = node.machine.beside_gpu(*spare_bytes));
        }
        let reports = reports.iter().filter(|report| report.started).cloned().collect();
        Ok(Outcome {
            verdict,
            reports,
            judged,
            without_workspaces: None,
            with_warm_caches: None,
            without_assumptions: None,
            with_largest: None,
            with_least: None,
            shortage,
            growth,
            need: None,
            savings: None,
            traces: Traces::default(),
            host,
        })
    }

    /// Records that the program caught an out-of-memory error and gave up: with more memory, the program continued.
    pub(super) fn gave_up(&mut self) {
        if let (Verdict::Fits { .. }, Some(shortage)) = (&self.verdict, &self.shortage) {
            self.verdict = Verdict::RunsOut(Shortage { caught: true, ..shortage.clone() });
        }
    }
}

impl Outcome {
    /// The techniques of `--with` in the process that decides; if no process decides, in any process.
    pub(super) fn techniques(&self) -> &[Applied] {
        let judged = self.judged.as_ref().map(|judged| &judged.report);
        judged.or(self.reports.first()).map_or(&[], |report| &report.techniques)
    }

    /// The process and device that show how much memory the program needs. They are taken from the run with more
    /// memory, if there was such a run.
    pub(super) fn measured(&self) -> Option<&Judged> {
        self.need.as_ref().map(|need| &need.judged).or(self.judged.as_ref())
    }

    /// The owners of memory on the device that decides, if memory grew or ran out.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Holder> {
        let judged = self.judged.iter();
        judged.flat_map(|it| it.report.holders.iter().filter(|holder| holder.device == it.peaks.device))
    }

    /// Training memory (gradients, optimizer states, buffers) that disappeared after one of the steps and never came
    /// back.
    pub(super) fn falls(&self) -> &[Fall] {
        self.judged.as_ref().map_or(&[], |judged| &judged.report.falls)
    }

    /// The processes that used CUDA, with each of their devices.
    pub(super) fn rows(&self) -> Vec<(&Report, &Peaks)> {
        self.reports.iter().flat_map(|it| it.devices.iter().map(move |peaks| (it, peaks))).collect()
    }

    /// The assumptions that the simulated GPU (plimsoll-standin) made, and the calls that it does not support, in all
    /// processes, in order, without duplicates.
    pub(super) fn notices(&self) -> BTreeSet<&Notice> {
        let all = self.reports.iter().flat_map(|report| &report.notices);
        // NVML calls do not affect memory.
        all.filter(|it| it.kind != Kind::Refused || !it.about.starts_with("nvml")).collect()
    }

    /// Whether cuDNN reported a workspace.
    pub(super) fn uses_cudnn(&self) -> bool {
        self.notices().iter().any(|notice| notice.about == notice::CUDNN)
    }

    /// Replays the recording twice: without the libraries' workspaces, and without the requests that warm compile
    /// caches avoid. Does nothing if memory ran out: the recording then ends early, so the remaining requests are
    /// unknown.
    pub(super) fn replay_without(&mut self) {
        let judged = self.judged.as_ref().filter(|_| matches!(self.verdict, Verdict::Fits { .. }));
        let Some((judged, analysis)) = judged.and_then(|judged| Some((judged, judged.analysis.as_ref()?)))
        else {
            return;
        };
        let workspaces = &judged.report.workspaces;
        self.without_workspaces = Without::of(analysis, |event| is_workspace(workspaces, event));
        self.with_warm_caches = warm::replay(analysis, judged.report.compile_caches);
    }

    /// Whether a replay's peaks differ from the peaks of the run.
    pub(super) fn differs(&self, replay: &Without) -> bool {
        let peaks = self.judged.as_ref().map(|judged| judged.peaks);
        peaks.is_some_and(|peaks| {
            (peaks.allocated_bytes, peaks.reserved_bytes) != (replay.allocated_bytes, replay.reserved_bytes)
        })
    }

    /// The libraries with undocumented workspaces, such as `cuDNN's` or `cuDNN's and cuFFT's`; `None` if there are none.
    pub(super) fn modelled(&self) -> Option<String> {
        let notices = self.notices();
        let answered =
            notices.iter().filter(|it| [notice::MODELLED, notice::ASKED].contains(&it.text.as_str()));
        let libraries: BTreeSet<String> = answered.map(|notice| format!("{}'s", notice.about)).collect();
        (!libraries.is_empty()).then(|| libraries.into_iter().collect::<Vec<_>>().join(" and "))
    }

    /// The GPU with the memory that the deciding process uses outside the allocator.
    pub(super) fn target(&self, target: &Target) -> Target {
        target.charged(self.measured().and_then(|judged| judged.peaks.outside_bytes))
    }

    /// The reserved bytes at the peak; `None` if no memory was requested.
    pub(super) fn reserved_bytes(&self) -> Option<u64> {
        self.judged.as_ref().map(|judged| judged.peaks.reserved_bytes)
    }

    /// The most bytes that unknown values may add to the peak, as far as this is known.
    pub(super) fn stake_bytes(&self) -> u64 {
        match self.with_largest.as_deref().and_then(Outcome::reserved_bytes).zip(self.reserved_bytes()) {
            Some((largest, zero)) => largest.saturating_sub(zero),
            None => {
                let warned = |report: &Report| report.warnings.iter().map(|warning| warning.bytes).sum();
                self.reports.iter().map(warned).max().unwrap_or(0)
            }
        }
    }

    /// The peak of reserved bytes if unknown values are as large as possible; `None` if that is less than 2 % more.
    pub(super) fn largest_bytes(&self) -> Option<u64> {
        let (stake, zero) = (self.stake_bytes(), self.reserved_bytes()?);
        (stake > zero / 50).then_some(zero + stake)
    }

    /// Whether the program fits with the assumed values, but unknown values may add more memory than is left.
    pub(super) fn may_not_fit(&self) -> bool {
        matches!(self.verdict, Verdict::Fits { spare_bytes, .. } if self.stake_bytes() > spare_bytes)
    }

    /// Whether the machine that will run the program has too little host memory.
    pub(super) fn lacks_host(&self) -> bool {
        self.host.as_ref().is_some_and(Node::is_short)
    }

    pub(super) fn exit(&self) -> Exit {
        match self.verdict.exit() {
            Exit::Done if self.may_not_fit() || self.lacks_host() => Exit::OutOfMemory,
            exit => exit,
        }
    }

    /// Whether the peaks are exact: they consist of PyTorch's own requests, and no request depends on an unknown value.
    /// With `--cudnn-workspace none`, cuDNN's workspaces do not make the peaks inexact.
    pub(super) fn is_exact(&self, target: &Target) -> bool {
        let is_failed =
            matches!(self.verdict, Verdict::Failed { .. } | Verdict::Refused(_) | Verdict::Unknown(_));
        let decided = self.reports.iter().flat_map(|report| &report.reads).any(Read::decides);
        let computed = |report: &Report| {
            report.captures > 0
                || (report.cut && !report.varying.is_empty())
                || !report.loops.is_empty()
                || !report.growth.is_empty()
                || !report.warnings.is_empty()
        };
        !is_failed
            && !decided
            && !self.reports.iter().any(computed)
            && self.notices().iter().all(|notice| match notice.kind {
                Kind::Assumed => notice.about == notice::CUDNN && target.workspaces == Workspaces::None,
                Kind::Refused | Kind::Selected => false,
            })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use plimsoll_alloc::{Addr, StreamId};
    use plimsoll_trace::Sharing;
    use plimsoll_trace::explain::Cause;
    use plimsoll_trace::output::save;
    use plimsoll_trace::snapshot::{Action, Event, Snapshot};

    use super::*;
    use crate::exit::Exit;
    use crate::predict::launch::ended::Ended;
    use crate::protocol::ProcessState;

    const MIB: u64 = 1 << 20;

    fn target() -> Target {
        Target::new("64MiB", Some("8.0"), Some(4 * MIB)).expect("a device")
    }

    /// The report of a process with a peak of 20 MiB, with these fields changed.
    fn report(changes: &serde_json::Value) -> Report {
        let mut json = serde_json::json!({
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
            json[key] = value.clone();
        }
        serde_json::from_value(json).expect("a report")
    }

    fn outcome(ended: Ended, reports: &[Report]) -> Outcome {
        let job = Job { ended, reports: reports.to_vec(), host: Vec::new(), uncopied: None };
        Outcome::of(&job, &target()).expect("nothing to read")
    }

    fn verdict(ended: Ended, reports: &[Report]) -> Verdict {
        outcome(ended, reports).verdict
    }

    #[track_caller]
    fn check_unknown(ended: Ended, reports: &[Report], why: &str) {
        match verdict(ended, reports) {
            Verdict::Unknown(said) => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
    }

    /// The snapshot of a device with 20 MiB reserved, 3 of them in use, and a request for 60.
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
    fn reserved_memory_that_still_grows_fits_only_if_it_has_room_to_the_end() {
        let growing = |left: Option<u64>| {
            let varying = serde_json::json!([{ "device": 0, "bytes": 2 * MIB, "steps": 40, "left": left }]);
            report(&serde_json::json!({ "cut": true, "varying": varying }))
        };
        // 40 MiB are to spare, and each 40 steps take 2 MiB more.
        let fits = verdict(Ended::Well, &[growing(Some(800))]);
        assert_eq!(fits, Verdict::Fits { spare_bytes: 40 * MIB, caught: 0 });
        check_unknown(
            Ended::Well,
            &[growing(Some(801))],
            "reserved memory still grew when the run was cut short",
        );
        check_unknown(Ended::Well, &[growing(None)], "reserved memory still grew when the run was cut short");
    }

    #[test]
    fn the_spare_memory_excludes_the_context() {
        let fits = verdict(Ended::Well, &[report(&serde_json::json!({}))]);
        assert_eq!(fits, Verdict::Fits { spare_bytes: 40 * MIB, caught: 0 });
        assert_eq!(fits.exit(), Exit::Done);
    }

    #[test]
    fn a_failed_request_decides_the_verdict_whatever_follows() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ran_out = report(&serde_json::json!({ "state": "failed", "failures": 1, "failed_step": 4 }));
        ran_out.snapshot = Some(snapshot_that_ran_out(folder.path()));
        let shortage = |caught| Shortage {
            step: 4,
            line: None,
            asked_bytes: 60 * MIB,
            owner: None,
            cause: Cause::Capacity { short_bytes: 3 * MIB },
            caught,
            is_saved_by_caches: false,
        };
        // A rank with more memory, and no failure.
        let other = report(&serde_json::json!({ "rank": 0, "devices": [{
            "device": 0, "gpu": 0, "allocated_bytes": 3 * MIB, "allocated_step": 2,
            "reserved_bytes": 50 * MIB, "reserved_step": 1,
        }] }));
        let died = verdict(Ended::Status(1), &[other, ran_out.clone()]);
        assert_eq!((died.exit(), died), (Exit::OutOfMemory, Verdict::RunsOut(shortage(false))));
        ran_out.state = ProcessState::Ended;
        assert_eq!(verdict(Ended::Well, std::slice::from_ref(&ran_out)), Verdict::RunsOut(shortage(true)));
        // A worker whose failure its parent ignores.
        ran_out.status = 1;
        ran_out.steps = 5;
        assert_eq!(verdict(Ended::Well, std::slice::from_ref(&ran_out)).exit(), Exit::OutOfMemory);
        // The program caught the failure in step 4, and completed further steps.
        ran_out.status = 0;
        assert_eq!(verdict(Ended::Well, &[ran_out]), Verdict::Fits { spare_bytes: 40 * MIB, caught: 1 });
    }

    #[test]
    fn an_unknown_verdict_gives_the_reason() {
        let cpu = report(&serde_json::json!({ "cuda": null, "started": false, "devices": [] }));
        check_unknown(Ended::Status(1), &[cpu], "CPU-only build");
        check_unknown(Ended::Well, &[], "torch was not imported");
        let unused = report(&serde_json::json!({ "started": false, "devices": [] }));
        check_unknown(Ended::Well, &[unused], "no GPU memory");
        check_unknown(Ended::Well, &[report(&serde_json::json!({ "standin": false }))], "LD_PRELOAD");
        check_unknown(Ended::Expired, &[report(&serde_json::json!({}))], "--timeout");
        check_unknown(Ended::Interrupted, &[], "interrupted");
    }

    fn notice(kind: Kind, about: &str) -> Notice {
        Notice { kind, about: about.to_owned(), text: "is so".to_owned() }
    }

    #[test]
    fn an_answer_is_exact_without_assumptions_except_that_cudnn_needs_no_workspace() {
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
            // Two ranks with the same notices.
            let mut ranks = [0, 1].map(|rank| report(&serde_json::json!({ "rank": rank })));
            ranks.iter_mut().for_each(|rank| rank.notices.clone_from(&notices));
            let outcome = outcome(Ended::Well, &ranks);
            assert_eq!(outcome.notices().len(), notices.len());
            assert_eq!(outcome.modelled().as_deref(), workspaces);
            let mut modelled = target();
            modelled.workspaces = Workspaces::Model;
            assert_eq!([outcome.is_exact(&modelled), outcome.is_exact(&target())], exact, "{notices:?}");
        }
        for kind in [Kind::Selected, Kind::Refused] {
            let mut rank = report(&serde_json::json!({}));
            rank.notices = vec![notice(kind, "cuCall")];
            let outcome = outcome(Ended::Well, &[rank]);
            assert!(!outcome.is_exact(&target()), "{kind:?}");
        }
    }

    /// How a program failed whose rank 1 ended with this exception, and whose launcher failed as well.
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
    fn a_programs_failure_has_a_hint_if_the_stand_in_may_be_the_cause() {
        let (how, hint) = failed("ValueError", "mine\nand more", false);
        assert_eq!((how.as_str(), hint), ("ValueError at train.py:3: mine", None));
        for (text, reads, said) in [
            (
                "cuSPARSE error: when calling `cusparseLtInit(handle)`",
                false,
                "does not support: cusparseLtInit",
            ),
            ("CUDA error: invalid device ordinal", true, "--devices"),
            ("CUDA error: no kernel image is available", true, "no code for that GPU"),
            ("no rows", true, "reads from the GPU just above"),
        ] {
            let hint = failed("RuntimeError", text, reads).1.expect("a hint");
            assert!(hint.contains(said), "{text}: {hint}");
        }
        let ended = report(&serde_json::json!({ "state": "ended" }));
        assert_eq!(verdict(Ended::Signal(6), &[ended]), Verdict::Fits { spare_bytes: 40 * MIB, caught: 0 });
        let running = report(&serde_json::json!({ "state": "running" }));
        assert_eq!(verdict(Ended::Signal(6), &[running]).exit(), Exit::Program);
        let killed = verdict(Ended::Signal(9), &[]);
        assert_eq!(killed, Verdict::Failed { how: "it was ended by signal 9".to_owned(), hint: None });
        assert_eq!(killed.exit(), Exit::Program);
    }
}
