//! The result of one run of a program with a set of techniques: [`Trial`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_trace::render::{phases, words};

use super::analysis::host::Node;
use super::analysis::judge::caught;
use super::analysis::judged::Analysis;
use super::analysis::verdict::Verdict;
use super::analysis::waste::worthwhile;
use super::answer::Outcome;
use super::gpu::Target;
use super::launch::ended::Ended;
use super::recording::job::Job;
use super::render::{graphs, host, reads, sentences};
use super::run::Run;
use crate::bytes;
use crate::contents::Contents;
use crate::exit::Failure;
use crate::protocol::{Applied, Refusal, Waste, Wrote};

/// The result of a trial of one set.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) end: End,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// The memory that the process uses outside the allocator, if it is known.
    pub(crate) outside_bytes: Option<u64>,
    pub(crate) steps: u64,
    /// Requests that ran out of memory, if the program caught each of them and still succeeded; otherwise
    /// 0.
    pub(crate) caught: u64,
    /// How often the allocator released cached memory because memory was short.
    pub(crate) retries: u64,
    /// Whether the peak came after the steps, as in an evaluation.
    pub(crate) peaks_later: bool,
    /// Whether torch.compile compiled anything.
    pub(crate) compiles: bool,
    pub(crate) techniques: Vec<Applied>,
    /// Whether the program created an optimizer, or requested a gradient.
    pub(crate) trains: bool,
    /// Graphs that no backward pass uses, as sentences.
    pub(crate) graphs: Vec<String>,
    /// Memory at the peak that is not read again, if the trial looked for it.
    pub(crate) waste: Vec<Waste>,
    /// Lines where a value read from the GPU decides a size or a branch.
    pub(crate) decided: Vec<reads::Row>,
    /// The contents of the peak, if the run was recorded.
    pub(crate) contents: Option<Contents>,
    /// The line of a size that changes in a later step than the last, and this step.
    pub(crate) changes: Option<(String, u64)>,
    /// A sentence about growth from step to step, if memory grows and its size at the end is known.
    pub(crate) grows: Option<String>,
    /// The peak of pinned host memory, if it is known.
    pub(crate) pinned_bytes: Option<u64>,
    /// A sentence about the host memory that the machine lacks, if its memory is known and not enough.
    pub(crate) lacks_host: Option<String>,
    /// A sentence about the peak, if the run was recorded: the phase, the largest category, the largest line.
    pub(crate) peak: Option<String>,
    /// The files that the program would have written, the largest first.
    pub(crate) writes: Vec<Wrote>,
    /// The hosts that the program contacted.
    pub(crate) hosts: Vec<String>,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The peaks are known.
    Ran,
    /// Memory ran out. Contains the sentence of the verdict.
    RanOut(String),
    /// A technique cannot be applied.
    Refused(Refusal),
    /// The program failed. Contains a description of the failure.
    Failed(String),
    /// There is no answer. Contains the reason.
    Unknown(String),
    /// The user ended the trial.
    Interrupted,
}

impl Trial {
    pub(crate) fn without_answer(end: End) -> Trial {
        Trial {
            end,
            allocated_bytes: 0,
            reserved_bytes: 0,
            outside_bytes: None,
            steps: 0,
            caught: 0,
            retries: 0,
            peaks_later: false,
            compiles: false,
            techniques: Vec::new(),
            trains: false,
            graphs: Vec::new(),
            waste: Vec::new(),
            decided: Vec::new(),
            contents: None,
            changes: None,
            grows: None,
            pinned_bytes: None,
            lacks_host: None,
            peak: None,
            writes: Vec::new(),
            hosts: Vec::new(),
        }
    }

    /// The trial was stopped after this time.
    pub(super) fn expired(limit: Duration) -> Trial {
        let limit = limit.as_secs_f64();
        let why = format!(
            "stopped after {limit:.0} s (--timeout changes this limit; a loop that waits for a value from the GPU may never end here)"
        );
        Trial::without_answer(End::Unknown(why))
    }

    pub(super) fn of(job: &Job, target: &Target) -> Result<Trial, Failure> {
        let Job { ended, reports, .. } = job;
        let outcome = Outcome::of(job, target)?;
        let size = |bytes| bytes::shown(bytes, false);
        let said = sentences::gpus_verdict(&outcome, target, &size);
        let peaks = outcome.judged.as_ref().map(|judged| judged.peaks);
        let end = match &outcome.verdict {
            _ if *ended == Ended::Interrupted => End::Interrupted,
            Verdict::Fits { caught: 0, .. } => End::Ran,
            Verdict::Fits { .. } | Verdict::RunsOut(_) | Verdict::Grows(_) => End::RanOut(said),
            Verdict::Refused(refusal) => End::Refused(refusal.clone()),
            Verdict::Failed { how, .. } => End::Failed(how.clone()),
            // Memory ran out, but without a recording, so the line is unknown.
            Verdict::Unknown(why) if reports.iter().any(|report| report.failures > 0) => {
                End::RanOut(why.clone())
            }
            Verdict::Unknown(why) => End::Unknown(why.clone()),
        };
        // If memory grows, this includes the expected growth in the rest of the program.
        let end_bytes = outcome.growth.as_ref().and_then(|growth| growth.end_bytes);
        let more_bytes =
            end_bytes.zip(peaks).map_or(0, |(end, peaks)| end.saturating_sub(peaks.reserved_bytes));
        let analysis = outcome.judged.as_ref().and_then(|judged| judged.analysis.as_ref());
        Ok(Trial {
            end,
            allocated_bytes: peaks.map_or(0, |peaks| peaks.allocated_bytes) + more_bytes,
            reserved_bytes: peaks.map_or(0, |peaks| peaks.together_bytes.unwrap_or(peaks.reserved_bytes))
                + more_bytes,
            // If several processes share a GPU, their total already includes it.
            outside_bytes: peaks
                .filter(|peaks| peaks.together_bytes.is_none())
                .and_then(|it| it.outside_bytes),
            steps: outcome.judged.as_ref().map_or(0, |judged| judged.report.steps),
            caught: caught(job),
            retries: reports.iter().map(|report| report.retries).sum(),
            peaks_later: outcome.judged.as_ref().is_some_and(|judged| judged.report.peaks_later()),
            compiles: reports.iter().any(|report| report.compiles),
            techniques: outcome.techniques().to_vec(),
            trains: reports.iter().any(|report| report.trains),
            graphs: graphs::sentences(&outcome, |bytes| bytes::shown(bytes, false)),
            waste: outcome.judged.as_ref().map_or_else(Vec::new, |judged| {
                worthwhile(&judged.report.waste, judged.peaks.allocated_bytes)
            }),
            decided: reads::rows(reports),
            contents: analysis.map(|analysis| Contents::of(&analysis.explained)),
            changes: reports.iter().filter(|report| report.cut).find_map(sentences::changes),
            grows: outcome.growth.as_ref().and_then(sentences::growth),
            pinned_bytes: outcome.host.as_ref().map(Node::pinned_bytes),
            lacks_host: outcome.host.as_ref().and_then(|node| host::shortage(node, size)),
            peak: analysis.and_then(where_the_peak_is),
            writes: writes(reports.iter().flat_map(|report| report.written.clone())),
            hosts: hosts(reports.iter().flat_map(|report| report.hosts.clone())),
        })
    }

    /// The result of a separate run, whose traces cover all of its processes.
    pub(super) fn of_run(run: &Run, target: &Target) -> Result<Trial, Failure> {
        let trial = Trial::of(&run.job, target)?;
        let files = run.traces.written.files.iter();
        let files = files.map(|file| Wrote { path: file.path.clone(), bytes: file.bytes });
        Ok(Trial { writes: writes(files), hosts: run.traces.hosts.clone(), ..trial })
    }

    /// The same GPU, with the memory that this trial used outside the allocator, if that is more than expected.
    pub(crate) fn target(&self, target: &Target) -> Target {
        target.charged(self.outside_bytes.map(|bytes| bytes.max(target.context_bytes)))
    }

    /// Whether the program caught an out-of-memory error in this trial and still completed steps. A program that
    /// completed no steps in `ample`, a trial with more memory, need not complete any here.
    pub(crate) fn goes_on(&self, ample: &Trial) -> bool {
        self.caught > 0 && (self.steps > 0 || ample.steps == 0)
    }

    /// The effect of the technique with this name.
    pub(crate) fn technique(&self, name: &str) -> Option<&Applied> {
        self.techniques.iter().find(|it| it.name == name)
    }
}

/// Each file once, the largest first.
fn writes(files: impl Iterator<Item = Wrote>) -> Vec<Wrote> {
    let files: BTreeMap<PathBuf, u64> = files.map(|file| (file.path, file.bytes)).collect();
    let mut files: Vec<Wrote> = files.into_iter().map(|(path, bytes)| Wrote { path, bytes }).collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    files
}

/// Each host once, in order.
fn hosts(hosts: impl Iterator<Item = String>) -> Vec<String> {
    hosts.collect::<BTreeSet<String>>().into_iter().collect()
}

/// `in the backward pass: 62 % are activations; the largest line is model.py:41 forward (activation), 1.20 GiB`.
fn where_the_peak_is(analysis: &Analysis) -> Option<String> {
    let (device, snapshot) = (analysis.device(), &analysis.explained.snapshot);
    let owners = &device.owners;
    let phase =
        device.peaks.phases.first().map(|&(phase, _)| format!("in {}: ", phases::phase(snapshot, phase)));
    let category = owners.by_category.first()?;
    let percent = 100 * category.bytes / owners.bytes.max(1);
    let name = words::category(snapshot, category.key.category);
    let line =
        owners.by_line.iter().find(|share| share.key.frame.is_some()).map_or_else(String::new, |share| {
            let (line, bytes) = (words::asker(snapshot, share.key), bytes::shown(share.bytes, false));
            format!(
                "; the largest line is {line} ({}), {bytes}",
                words::purpose(snapshot, share.key.category)
            )
        });
    Some(format!("{}{percent} % are {name}{line}", phase.unwrap_or_default()))
}
