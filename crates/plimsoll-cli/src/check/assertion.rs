//! One assertion about one device, decided: [`Assertion`].

use std::collections::BTreeMap;

use plimsoll_alloc::Bytes;
use plimsoll_trace::explain::{DeviceExplanation, Holders, Line, Origins, Share};
use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::EventIndex;

use super::Told;
use crate::exit::{Exit, Failure};

/// What is wanted of a device; sizes are bytes, shares percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Want {
    PeakBelow(u64),
    ReservedBelow(u64),
    FragmentationBelow(f64),
    NoOutOfMemory,
    PeakAsBaseline(f64),
    ReservedAsBaseline(f64),
}

impl Want {
    /// What its figures count.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Want::FragmentationBelow(_) => "percent",
            Want::NoOutOfMemory => "failures",
            _ => "bytes",
        }
    }

    /// As its option; the baseline's two apart.
    pub(super) fn name(self) -> &'static str {
        match self {
            Want::PeakBelow(_) => "peak-below",
            Want::ReservedBelow(_) => "reserved-below",
            Want::FragmentationBelow(_) => "frag-below",
            Want::NoOutOfMemory => "no-oom",
            Want::PeakAsBaseline(_) => "baseline-peak",
            Want::ReservedAsBaseline(_) => "baseline-reserved",
        }
    }
}

/// How it came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    Fails,
    /// What was recorded holds, but not all was recorded.
    Incomplete,
}

/// An assertion, decided.
pub(super) struct Assertion {
    pub(super) want: Want,
    pub(super) device: i32,
    pub(super) verdict: Verdict,
    /// What was wanted and what there was, in words.
    pub(super) message: String,
    /// The bound, in [`Want::unit`].
    pub(super) limit: f64,
    /// What there was, in the same.
    pub(super) actual: f64,
    /// Which lines are to blame, the largest first; only where it fails.
    pub(super) lines: Vec<Blamed>,
}

/// A line of the program with what it holds, or by how much that grew.
pub(super) struct Blamed {
    pub(super) line: String,
    pub(super) category: &'static str,
    pub(super) bytes: u64,
}

impl Assertion {
    /// Decides; `place` is the device's among those told, `rows` how many lines are to blame.
    ///
    /// # Errors
    /// A device that the baseline does not have.
    pub(super) fn of(
        want: Want,
        told: &Told,
        place: usize,
        baseline: Option<&Told>,
        rows: usize,
    ) -> Result<Assertion, Failure> {
        let device = &told.devices[place];
        let before = baseline.map(|baseline| counterpart(baseline, device)).transpose()?;
        let mut decided = decide(want, told, device, before);
        if decided.verdict == Verdict::Fails {
            decided.lines = blamed(want, told, device, baseline.zip(before));
            decided.lines.truncate(rows);
        }
        if told.devices.len() > 1 {
            decided.message.insert_str(0, &format!("device {}: ", device.timeline.device));
        }
        Ok(decided)
    }
}

/// The device of this number in the baseline.
fn counterpart<'a>(baseline: &'a Told, device: &DeviceExplanation) -> Result<&'a DeviceExplanation, Failure> {
    let number = device.timeline.device;
    baseline.devices.iter().find(|one| one.timeline.device == number).ok_or_else(|| {
        let message = format!("the baseline {} has nothing of device {number}", baseline.recording.name);
        Failure::new(Exit::Usage, message)
    })
}

fn decide(
    want: Want,
    told: &Told,
    device: &DeviceExplanation,
    before: Option<&DeviceExplanation>,
) -> Assertion {
    let timeline = &device.timeline;
    let allocated = timeline.peak_allocated.level.allocated_bytes;
    let reserved = timeline.peak_reserved.level.reserved_bytes;
    let quality = &timeline.quality;
    // What happened before the ring's oldest event, or without a trace, is not known.
    let is_whole = quality.events > 0 && !quality.is_cut;
    let moment = if device.failure.is_some() { "when memory ran out" } else { "at the peak" };
    let above = |percent: f64, bytes: u64| (bytes as f64 * (1.0 + percent / 100.0)) as u64;
    let at_most = |what: &str, verb: &str, limit: u64, note: &str, actual: u64| {
        let message = if actual > limit {
            format!("{what} was limited to {}{note} but {} were {verb}", Bytes(limit), Bytes(actual))
        } else {
            format!("{what} is {}, within {}{note}", Bytes(actual), Bytes(limit))
        };
        (message, limit as f64, actual as f64)
    };
    let note = |percent: f64, bytes: u64| format!(" ({} of the baseline and {percent} %)", Bytes(bytes));
    let peaks = before.map(|before| &before.timeline);
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
                    "fragmentation was limited to {limit} % but {actual:.2} % {of} were cached beside live blocks"
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
                    "no request was to fail but {} {requests} did, the last for {asked}",
                    failure.failures
                );
                (message, 0.0, failure.failures as f64)
            }
            None => ("no request failed".to_owned(), 0.0, 0.0),
        },
    };
    let (verdict, message) = match (actual > limit, is_whole) {
        (true, _) => (Verdict::Fails, message),
        (false, true) => (Verdict::Holds, message),
        (false, false) => {
            let why = if quality.events == 0 { "it has no events" } else { "its oldest events were lost" };
            let name = &told.recording.name;
            (Verdict::Incomplete, format!("{message}; but {name} does not hold the whole run: {why}"))
        }
    };
    Assertion { want, device: timeline.device, verdict, message, limit, actual, lines: Vec::new() }
}

/// The largest lines at the moment in question; beside a baseline, those that grew the most.
fn blamed(
    want: Want,
    told: &Told,
    device: &DeviceExplanation,
    before: Option<(&Told, &DeviceExplanation)>,
) -> Vec<Blamed> {
    let moment = |device: &DeviceExplanation| match want {
        Want::PeakBelow(_) | Want::PeakAsBaseline(_) => device.timeline.peak_allocated.after,
        Want::ReservedBelow(_) | Want::ReservedAsBaseline(_) => device.timeline.peak_reserved.after,
        Want::FragmentationBelow(_) | Want::NoOutOfMemory => device.moment(),
    };
    let now = by_line(told, device, moment(device));
    let against = matches!(want, Want::PeakAsBaseline(_) | Want::ReservedAsBaseline(_));
    let Some((baseline, before)) = before.filter(|_| against) else { return now };
    let before = by_line(baseline, before, moment(before));
    // Numbers of lines change with every commit, so lines are put together by function.
    let function = |row: &Blamed| (without_number(&row.line), row.category);
    let mut grown: BTreeMap<_, u64> = BTreeMap::new();
    for row in &now {
        *grown.entry(function(row)).or_default() += row.bytes;
    }
    for row in &before {
        grown.entry(function(row)).and_modify(|bytes| *bytes = bytes.saturating_sub(row.bytes));
    }
    let rows = grown.into_iter().filter(|&(_, bytes)| bytes > 0);
    let mut rows: Vec<Blamed> =
        rows.map(|((line, category), bytes)| Blamed { line, category, bytes }).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn by_line(told: &Told, device: &DeviceExplanation, after: Option<EventIndex>) -> Vec<Blamed> {
    let snapshot = &told.recording.snapshot;
    let blamed = |share: &Share<Line>| Blamed {
        line: words::asker(snapshot, share.key),
        category: words::purpose(share.key.category),
        bytes: share.bytes,
    };
    if after == device.holders.after {
        return device.holders.by_line.iter().map(blamed).collect();
    }
    let origins = Origins::of(snapshot);
    let holders = Holders::after(&device.timeline, &origins, &device.purposes, after);
    holders.by_line.iter().map(blamed).collect()
}

/// `src/model.py:41 forward` without the 41.
fn without_number(line: &str) -> String {
    match line.rsplit_once(':') {
        Some((file, rest)) => {
            let function = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-');
            format!("{file}{function}")
        }
        None => line.to_owned(),
    }
}
