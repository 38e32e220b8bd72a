//! What a run comes to: [`Outcome`], with its [`Verdict`] and the process that it is about.

use std::path::PathBuf;

use plimsoll_trace::explain::{Cause, DeviceExplanation, Options};
use plimsoll_trace::render::words;
use plimsoll_trace::whatif::{SETTINGS, WhatIf};

use super::gpu::Target;
use super::report::{Peaks, Report, State, Thrown};
use super::run::{Ended, Run};
use crate::exit::{Exit, Failure};
use crate::explained::Explained;

/// A run, judged.
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The processes that used CUDA.
    pub(super) reports: Vec<Report>,
    /// What the verdict is about; nothing where no memory was asked for.
    pub(super) judged: Option<Judged>,
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
    /// What was missing however blocks are placed; `None`: the blocks would have fitted side by side.
    pub(super) short_bytes: Option<u64>,
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
    /// Of this device alone, with the same requests under other settings.
    pub(super) explained: Explained,
}

impl Told {
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
    /// Judges a run.
    ///
    /// # Errors
    /// A snapshot that cannot be read.
    pub(super) fn of(run: &Run, target: &Target) -> Result<Outcome, Failure> {
        let worst = worst(&run.reports);
        let judged = worst.map(|(report, peaks)| Judged::of(report, peaks)).transpose()?;
        let verdict = match &judged {
            Some(judged) if judged.report.failures > 0 => judged.shortage().map_or_else(
                || Verdict::Unknown("memory ran out, and no snapshot tells where".to_owned()),
                Verdict::RunsOut,
            ),
            _ => without_shortage(run, target, judged.as_ref().map(|judged| judged.peaks)),
        };
        let reports = run.reports.iter().filter(|report| report.started).cloned().collect();
        Ok(Outcome { verdict, reports, judged })
    }
}

/// The process and device that decide: where memory ran out, else where the most is reserved.
fn worst(reports: &[Report]) -> Option<(&Report, Peaks)> {
    let all = reports.iter().flat_map(|report| report.devices.iter().map(move |&peaks| (report, peaks)));
    // Of equals the first, which is the lowest rank.
    all.rev().max_by_key(|(report, peaks)| (report.failures > 0, peaks.reserved_bytes))
}

impl Judged {
    fn of(report: &Report, peaks: Peaks) -> Result<Judged, Failure> {
        let mut judged = Judged { report: report.clone(), peaks, told: None };
        let Some(snapshot) = report.snapshot.clone() else { return Ok(judged) };
        let mut explained = Explained::open(&snapshot, None, Options::default())?;
        let devices = &explained.devices;
        // Memory ran out on one of its devices, and the one that has most need not be it.
        let failed = devices.iter().position(|device| device.failure.is_some());
        let place = failed.or_else(|| devices.iter().position(|it| it.timeline.device == peaks.device));
        let Some(place) = place else { return Ok(judged) };
        let mut device = explained.devices.swap_remove(place);
        let timeline = &device.timeline;
        if let Some(counted) = report.devices.iter().find(|it| it.device == timeline.device) {
            judged.peaks = *counted;
        }
        // A program may set PyTorch's counters back; the recording knows better then.
        let (allocated, reserved) = (timeline.peak_allocated.level, timeline.peak_reserved.level);
        judged.peaks.allocated_bytes = judged.peaks.allocated_bytes.max(allocated.allocated_bytes);
        judged.peaks.reserved_bytes = judged.peaks.reserved_bytes.max(reserved.reserved_bytes);
        device.what_if.get_or_insert_with(|| WhatIf::of(&explained.snapshot, timeline, &SETTINGS));
        explained.devices = vec![device];
        explained.file = "SNAPSHOT".to_owned();
        judged.told = Some(Told { snapshot, explained });
        Ok(judged)
    }

    /// The request that failed, if the recording has one.
    fn shortage(&self) -> Option<Shortage> {
        let told = self.told.as_ref()?;
        let (explained, failure) = (&told.explained, told.device().failure?);
        let line = explained.origins.get(failure.stack).line;
        Some(Shortage {
            step: self.report.failed_step,
            line: line.map(|frame| words::line(&explained.snapshot, frame)),
            asked_bytes: failure.asked_bytes,
            short_bytes: match failure.cause() {
                Cause::Capacity { short_bytes } => Some(short_bytes),
                Cause::Fragmentation { .. } | Cause::Unknown => None,
            },
            caught: self.report.state != State::Failed,
        })
    }
}

/// The verdict where every request was served.
fn without_shortage(run: &Run, target: &Target, peaks: Option<Peaks>) -> Verdict {
    let reports = &run.reports;
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
    match run.ended {
        Ended::Interrupted => return unknown("it was interrupted"),
        Ended::Expired => return unknown("it did not come to its end within --timeout"),
        Ended::Status(_) | Ended::Signal(_) => return failed(run),
        Ended::Well => {}
    }
    if reports.is_empty() {
        return unknown(
            "no torch was imported: the command starts no Python that does, or one that ignores PYTHONPATH (-I, -E, -S)",
        );
    }
    match peaks {
        None => unknown("no memory of a GPU was asked for: is the model moved to \"cuda\"?"),
        Some(peaks) => {
            Verdict::Fits { spare_bytes: target.capacity_bytes().saturating_sub(peaks.reserved_bytes) }
        }
    }
}

/// The verdict where the program failed.
fn failed(run: &Run) -> Verdict {
    let error = run.reports.iter().find_map(|report| report.error.as_ref());
    let how = match (error, run.ended) {
        (Some(error), _) => {
            let place = error.file.as_ref().zip(error.line).map(|(file, line)| format!(" at {file}:{line}"));
            let text = error.text.lines().next().unwrap_or_default();
            format!("{}{}: {text}", error.kind, place.unwrap_or_default())
        }
        (None, Ended::Signal(signal)) => format!("it was ended by signal {signal}"),
        (None, Ended::Status(code)) => format!("it ended with exit status {code}"),
        (None, _) => "it failed".to_owned(),
    };
    let hint = match (error, run.ended) {
        (Some(error), _) => hint(error),
        (None, Ended::Signal(11)) => Some(
            "a line that begins with `plimsoll-standin: the host touched` above says which call read a device's memory"
                .to_owned(),
        ),
        _ => None,
    };
    Verdict::Failed { how, hint }
}

/// What the stand-in may have to do with an exception.
fn hint(error: &Thrown) -> Option<String> {
    let text = error.text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let hint = if says(&[
        "not_supported",
        "operation not supported",
        "cusolver",
        "cusparse",
        "cufft",
        "cudnn",
    ]) {
        "the stand-in does not imitate a call that was made: a line that begins with `plimsoll-standin:` above names it"
    } else if says(&["invalid device ordinal", "duplicate gpu"]) {
        "the program asks for more GPUs than it sees: add --devices"
    } else if error.reads {
        "a value was read back from the device before it, in the same function: here it is zero, as nothing is computed"
    } else {
        return None;
    };
    Some(hint.to_owned())
}
