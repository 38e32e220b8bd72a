//! Evaluates one assertion about one device: [`Assertion`].

use plimsoll_alloc::Bytes;
use plimsoll_trace::explain::{Comparison, DeviceExplanation, Line, Owners, Share, leaks};
use plimsoll_trace::render::words;

use crate::exit::{Exit, Failure};
use crate::explained::Explained;

/// An assertion about a device. Sizes are in bytes, fractions in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Want {
    PeakBelow(u64),
    ReservedBelow(u64),
    FragmentationBelow(f64),
    NoOutOfMemory,
    NoLeak,
    SkippedAtMost(u64),
    PeakAsBaseline(f64),
    ReservedAsBaseline(f64),
}

impl Want {
    /// The unit of its figures.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Want::FragmentationBelow(_) => "percent",
            Want::NoOutOfMemory => "failures",
            Want::NoLeak => "bytes_per_step",
            Want::SkippedAtMost(_) => "steps",
            _ => "bytes",
        }
    }

    /// The name of its option. The two assertions of a baseline have different names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Want::PeakBelow(_) => "peak-below",
            Want::ReservedBelow(_) => "reserved-below",
            Want::FragmentationBelow(_) => "frag-below",
            Want::NoOutOfMemory => "no-oom",
            Want::NoLeak => "no-leak",
            Want::SkippedAtMost(_) => "skipped-at-most",
            Want::PeakAsBaseline(_) => "baseline-peak",
            Want::ReservedAsBaseline(_) => "baseline-reserved",
        }
    }
}

/// The result; the worst ones come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Fails,
    /// It holds in the recorded part, but the recording is incomplete.
    Incomplete,
    Holds,
}

/// An assertion with its result.
pub(super) struct Assertion {
    pub(super) want: Want,
    pub(super) device: i32,
    pub(super) verdict: Verdict,
    /// The asserted and the actual figure in a sentence.
    pub(super) message: String,
    /// The bound, in the unit of [`Want::unit`].
    pub(super) limit: f64,
    /// The actual figure, in the same unit.
    pub(super) actual: f64,
    /// The lines of code that are responsible, the largest first. Empty if the assertion holds.
    pub(super) lines: Vec<Blamed>,
}

/// A line of the program with the bytes that it holds, by how much they grew, or how many it adds in each
/// step.
pub(super) struct Blamed {
    pub(super) line: String,
    /// The category of its bytes; `None` if it was not determined.
    pub(super) category: Option<String>,
    pub(super) bytes: u64,
}

impl Assertion {
    /// Evaluates the assertion. `place` is the device's index in the file, and `rows` the number of
    /// responsible lines to list.
    ///
    /// # Errors
    /// If the baseline does not have the device.
    pub(super) fn of(
        want: Want,
        explained: &Explained,
        place: usize,
        baseline: Option<&Explained>,
        rows: usize,
    ) -> Result<Assertion, Failure> {
        let device = &explained.devices[place];
        let before = baseline.map(|baseline| counterpart(baseline, device)).transpose()?;
        let mut decided = decide(want, explained, device, before);
        // No line is responsible for a step that GradScaler skips.
        if decided.verdict == Verdict::Fails && !matches!(want, Want::SkippedAtMost(_)) {
            decided.lines = blamed(want, explained, device, baseline.zip(before));
            decided.lines.truncate(rows);
        }
        if explained.devices.len() > 1 {
            decided.message.insert_str(0, &format!("device {}: ", device.timeline.device));
        }
        Ok(decided)
    }
}

/// The baseline's device with this number.
fn counterpart<'a>(
    baseline: &'a Explained,
    device: &DeviceExplanation,
) -> Result<&'a DeviceExplanation, Failure> {
    let number = device.timeline.device;
    baseline.devices.iter().find(|one| one.timeline.device == number).ok_or_else(|| {
        let message = format!("the baseline {} has no device {number}", baseline.file);
        Failure::new(Exit::Usage, message)
    })
}

fn decide(
    want: Want,
    explained: &Explained,
    device: &DeviceExplanation,
    before: Option<&DeviceExplanation>,
) -> Assertion {
    let timeline = &device.timeline;
    let allocated = timeline.peak_allocated.level.allocated_bytes;
    let reserved = timeline.peak_reserved.level.reserved_bytes;
    let quality = &timeline.quality;
    // Events before the ring's oldest event, or in a recording without a trace, are unknown.
    let is_whole = quality.events > 0 && !quality.is_cut && !quality.is_restarted;
    let moment = if device.failure.is_some() { "when memory ran out" } else { "at the peak" };
    let above = |percent: f64, bytes: u64| (bytes as f64 * (1.0 + percent / 100.0)) as u64;
    let at_most = |what: &str, verb: &str, limit: u64, note: &str, actual: u64| {
        let message = if actual > limit {
            format!("{what} was limited to {}{note}, but {} were {verb}", Bytes(limit), Bytes(actual))
        } else {
            format!("{what} is {}, within {}{note}", Bytes(actual), Bytes(limit))
        };
        (message, limit as f64, actual as f64)
    };
    let note = |percent: f64, bytes: u64| format!(" ({} of the baseline and {percent} %)", Bytes(bytes));
    let peaks = before.map(|before| &before.timeline);
    let skipped = explained.snapshot.recorder().skipped_steps;
    let (message, limit, actual) = match want {
        Want::PeakBelow(limit) => at_most("peak", "allocated", limit, "", allocated),
        Want::ReservedBelow(limit) => at_most("reserved memory", "reserved", limit, "", reserved),
        Want::PeakAsBaseline(percent) => {
            let bytes = peaks.map_or(0, |before| before.peak_allocated.level.allocated_bytes);
            at_most("peak", "allocated", above(percent, bytes), &note(percent, bytes), allocated)
        }
        Want::ReservedAsBaseline(percent) => {
            let bytes = peaks.map_or(0, |before| before.peak_reserved.level.reserved_bytes);
            at_most("reserved memory", "reserved", above(percent, bytes), &note(percent, bytes), reserved)
        }
        Want::FragmentationBelow(limit) => {
            let all = device.fragmentation.all;
            let actual = 100.0 * all.fragmentation();
            let of = format!("of {} reserved {moment}", Bytes(all.reserved_bytes));
            let message = if actual > limit {
                format!(
                    "fragmentation was limited to {limit} %, but {actual:.2} % {of} were cached in segments with live blocks"
                )
            } else {
                format!("fragmentation is {actual:.2} % {of}, within {limit} %")
            };
            (message, limit, actual)
        }
        Want::NoOutOfMemory => match device.failure {
            Some(failure) => {
                let asked = Bytes(failure.asked_bytes);
                let requests = if failure.failures == 1 { "request" } else { "requests" };
                let message = format!(
                    "expected no failed request, but {} {requests} failed, the last for {asked}",
                    failure.failures
                );
                (message, 0.0, failure.failures as f64)
            }
            None => ("no request failed".to_owned(), 0.0, 0.0),
        },
        Want::SkippedAtMost(limit) => {
            let message = match skipped {
                Some(steps) => format!("GradScaler skipped {steps} steps; the limit is {limit}"),
                None => "no GradScaler steps were recorded: `plimsoll run` and plimsoll.record() count them"
                    .to_owned(),
            };
            (message, limit as f64, skipped.unwrap_or(0) as f64)
        }
        Want::NoLeak => {
            let leaks = &device.leaks;
            let message = words::growth(device, |bytes| Bytes(bytes).to_string());
            let is_leaking = leaks.whole.verdict == leaks::Verdict::Leaking;
            (message, 0.0, if is_leaking { leaks.bytes_per_step().max(1) as f64 } else { 0.0 })
        }
    };
    let is_unknown = match want {
        Want::NoLeak => device.leaks.whole.verdict == leaks::Verdict::TooFewSteps,
        Want::SkippedAtMost(_) => skipped.is_none(),
        _ => false,
    };
    let (verdict, message) = match (actual > limit, is_whole) {
        (false, _) if is_unknown => (Verdict::Incomplete, message),
        // A leak shows in any part of a recording, and skipped steps are counted, not recorded.
        (false, _) if matches!(want, Want::NoLeak | Want::SkippedAtMost(_)) => (Verdict::Holds, message),
        (true, _) => (Verdict::Fails, message),
        (false, true) => (Verdict::Holds, message),
        (false, false) if want == Want::NoOutOfMemory && quality.events == 0 => {
            let unknown = format!("it is unknown whether a request failed: {} has no events", explained.file);
            (Verdict::Incomplete, unknown)
        }
        (false, false) => {
            let why = if quality.events == 0 { "it has no events" } else { "its oldest events were lost" };
            let name = &explained.file;
            (Verdict::Incomplete, format!("{message}; but {name} does not cover the whole run: {why}"))
        }
    };
    Assertion { want, device: timeline.device, verdict, message, limit, actual, lines: Vec::new() }
}

/// The lines that leak, or the largest at the moment in question. With a baseline, these are the lines
/// that grew the most.
fn blamed(
    want: Want,
    explained: &Explained,
    device: &DeviceExplanation,
    before: Option<(&Explained, &DeviceExplanation)>,
) -> Vec<Blamed> {
    let moment = |device: &DeviceExplanation| match want {
        Want::PeakBelow(_) | Want::PeakAsBaseline(_) => device.timeline.peak_allocated.after,
        Want::ReservedBelow(_) | Want::ReservedAsBaseline(_) => device.timeline.peak_reserved.after,
        Want::FragmentationBelow(_) | Want::NoOutOfMemory | Want::NoLeak | Want::SkippedAtMost(_) => {
            device.moment()
        }
    };
    let against = matches!(want, Want::PeakAsBaseline(_) | Want::ReservedAsBaseline(_));
    if let Some((baseline, before)) = before.filter(|_| against) {
        let (first, second) = (baseline.analysis(before), explained.analysis(device));
        let comparison = Comparison::after(first, second, [moment(before), moment(device)]);
        return grown(explained, baseline, &comparison);
    }
    if want == Want::NoLeak {
        let leaking = device.leaks.leaking().map(|line| Blamed {
            line: words::place(&explained.snapshot, line.place),
            category: None,
            bytes: line.course.growth.usual_bytes,
        });
        return leaking.collect();
    }
    let after = moment(device);
    let blamed = |share: &Share<Line>| Blamed {
        line: words::asker(&explained.snapshot, share.key),
        category: Some(words::purpose(&explained.snapshot, share.key.category).into_owned()),
        bytes: share.bytes,
    };
    if after == device.owners.after {
        return device.owners.by_line.iter().map(blamed).collect();
    }
    let owners = Owners::after(&device.timeline, &explained.origins, &device.purposes, after);
    owners.by_line.iter().map(blamed).collect()
}

/// The lines that hold more than in the baseline, and how much more.
fn grown(explained: &Explained, baseline: &Explained, comparison: &Comparison) -> Vec<Blamed> {
    let lines = comparison.lines.iter().filter_map(|change| {
        let bytes = u64::try_from(change.bytes()).ok().filter(|&bytes| bytes > 0)?;
        let frame = change.key.frames[1];
        let line = frame.map_or_else(|| words::NO_LINE.to_owned(), |it| words::line(&explained.snapshot, it));
        // User-defined categories have their names in the first recording.
        let category = words::purpose(&baseline.snapshot, change.key.category).into_owned();
        Some(Blamed { line, category: Some(category), bytes })
    });
    lines.collect()
}
