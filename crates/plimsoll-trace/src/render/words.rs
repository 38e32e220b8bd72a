//! Sentences and names that all forms of an explanation share.

use std::borrow::Cow;

use crate::explain::leaks::{self, Course, Growth, Place, Verdict};
use crate::explain::{BackwardBlock, DeviceExplanation, ForwardLine, Line, Purposed, ShownCategory};
use crate::snapshot::{FrameId, Snapshot};
use crate::whatif::{Advice, Row, WhatIf};

/// The text shown in place of a line: the block has no stack, or its stack has no line of Python.
pub const NO_LINE: &str = "no line of Python";

/// Text from a file, as one line without control characters.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, " "))
    } else {
        Cow::Borrowed(text)
    }
}

/// A count with its noun: `1 block`, `2 blocks`.
pub fn counted(count: u64, name: &str) -> String {
    format!("{count} {name}{}", plural(count, "", "s"))
}

/// The singular or the plural.
pub(super) fn plural<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// The first few names, and how many others there are.
pub(super) fn few(names: &[&str]) -> String {
    const FEW: usize = 4;
    let (first, more) = names.split_at(names.len().min(FEW));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", first.join(", "))
}

/// The change of a size as text, with its sign. `size` formats a number of bytes.
pub fn change(bytes: i128, size: impl Fn(u64) -> String) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}

/// The text for a device without events.
pub(super) const NO_EVENTS: &str = "no events were recorded";

/// Whether the file has events for a device. Without events, only the moment of the snapshot is known.
pub fn has_events(device: &DeviceExplanation) -> bool {
    device.timeline.quality.events > 0
}

/// Whether the [`verdict`](super::verdict::sentence) is bad: memory ran out, or a leak was found.
pub fn is_bad(device: &DeviceExplanation) -> bool {
    device.failure.is_some() || leaks(device)
}

/// Whether memory leaks.
pub(super) fn leaks(device: &DeviceExplanation) -> bool {
    device.leaks.whole.verdict == Verdict::Leaking
}

/// A phrase about the size of the leak, if there is a leak.
pub(super) fn leak(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> Option<String> {
    let whole = &device.leaks.whole;
    (whole.verdict == Verdict::Leaking)
        .then(|| format!("{} ({})", rate(&whole.growth, size), whole.confidence))
}

/// A phrase with the bytes that remain per step, and the number of steps in which bytes remain.
pub fn rate(growth: &Growth, size: impl Fn(u64) -> String) -> String {
    let Growth { usual_bytes, grew, steps, every, .. } = *growth;
    let bytes = size(usual_bytes);
    match every {
        Some(every) => format!("{bytes} every {every} steps, {grew} times"),
        None => format!("{bytes} per step in {grew} of {steps} steps"),
    }
}

/// A sentence that says whether memory grows from step to step, and how.
pub fn growth(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    let Course { verdict, confidence, ref held, growth, .. } = device.leaks.whole;
    let name = verdict.name();
    let (Some(&first), Some(&last)) = (held.first(), held.last()) else {
        return match has_events(device) {
            true => format!("{name}: no steps found"),
            false => format!("steps: none found, because {NO_EVENTS}: leaks cannot be detected"),
        };
    };
    // The last step is not judged, because a program that ends frees its memory.
    let settled = held.get(growth.from..held.len().max(2) - 1).unwrap_or_default();
    let (least, most) = (settled.iter().min().unwrap_or(&last), settled.iter().max().unwrap_or(&last));
    let (since, steps) = (growth.from + 1, held.len());
    let rises = || format!("{} after step 1, {} after step {steps}", size(first), size(last));
    match verdict {
        Verdict::Leaking => {
            let leak = leak(device, &size).unwrap_or_default();
            format!("{name}: {leak}, {} in total since step {since}", size(growth.bytes))
        }
        Verdict::TooFewSteps => match kept_of_each(device) {
            0 => format!("{name}: {steps} found"),
            bytes => format!("{name}: only {}: +{} in each", counted(steps as u64, "step"), size(bytes)),
        },
        Verdict::Falling => format!("{name}: {} ({confidence})", rises()),
        Verdict::HeldUntilGc => {
            format!(
                "{name}: {} to {} after each step; the garbage collector frees the memory of many steps at once: \
                 look for reference cycles ({confidence})",
                size(*least),
                size(*most)
            )
        }
        Verdict::HeldUntilCleared => {
            format!(
                "{name}: {} to {} after each step; the memory of many steps is freed at once ({confidence})",
                size(*least),
                size(*most)
            )
        }
        Verdict::WarmingUp => format!("{name}: {}, and nearly flat by then ({confidence})", rises()),
        Verdict::GrowingCache => {
            format!("{name}: {}; each block is replaced by a larger one and freed ({confidence})", rises())
        }
        Verdict::Steady if least == most => {
            format!("{name}: {} after each step since step {since} ({confidence})", size(*most))
        }
        Verdict::Steady | Verdict::FollowsBatchSize => {
            format!(
                "{name}: {} to {} after each step since step {since} ({confidence})",
                size(*least),
                size(*most)
            )
        }
    }
}

/// If there are too few steps for a verdict: the bytes of each step that are still live, summed over all lines.
fn kept_of_each(device: &DeviceExplanation) -> u64 {
    device.leaks.kept_of_each().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
}

/// A sentence with the number of steps, how they were found, and the verdict about growth.
pub fn steps(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    let (verdict, count) = (device.leaks.whole.verdict, device.steps.len());
    match (count, verdict) {
        (0, _) if !has_events(device) => format!("none found: {NO_EVENTS}"),
        (0, _) if device.is_own => {
            "no repeating pattern found: record at least 6 steps, marked with Device::mark_step".to_owned()
        }
        (0, _) => {
            "no repeating pattern found: record at least 6 steps, marked with the code that `plimsoll record` prints"
                .to_owned()
        }
        (_, Verdict::TooFewSteps) => {
            let kept = match kept_of_each(device) {
                0 => String::new(),
                bytes => format!(", +{} in each", size(bytes)),
            };
            format!(
                "{}{kept} (a step ends where {}): too few to detect a leak, record at least 6",
                counted(count as u64, "step"),
                device.steps.evidence()
            )
        }
        _ => format!(
            "{} ({}; a step ends where {})",
            verdict.name(),
            counted(count as u64, "step"),
            device.steps.evidence()
        ),
    }
}

/// A sentence for each pattern that was found: the pattern of all memory if it leaks, or else the patterns of single
/// lines.
pub fn patterns(snapshot: &Snapshot, device: &DeviceExplanation) -> Vec<String> {
    let (leaks, is_own) = (&device.leaks, snapshot.is_own());
    if leaks.whole.verdict == Verdict::Leaking {
        return leaks.pattern.iter().map(|pattern| pattern.advice_for(is_own).to_owned()).collect();
    }
    let lines = leaks.lines.iter().filter_map(|line| Some((line.place, line.pattern?)));
    lines
        .map(|(line, pattern)| format!("{}: {}", place(snapshot, line), pattern.advice_for(is_own)))
        .collect()
}

/// A note that says what a snapshot does not show about a leak.
pub const NO_HOLDER: &str = "these lines allocated the blocks; a snapshot does not record what keeps them alive: plimsoll predict and run name it";

/// The explained moment, as text after "live".
pub fn when(device: &DeviceExplanation) -> &'static str {
    match (device.failure, has_events(device)) {
        (Some(_), _) => "when memory ran out",
        (None, true) => "at the peak",
        (None, false) => "when the file was written",
    }
}

/// A line as text: `src/model.py:41 forward`, with enough of the path to distinguish files.
pub fn line(snapshot: &Snapshot, frame: FrameId) -> String {
    let frame = snapshot.stacks.get_frame(frame);
    let [file, name] = [frame.filename, frame.name].map(|id| plain(snapshot.texts.get(id)));
    // Layers, operations and categories of our own runtime have no file.
    if matches!(&*file, "<label>" | "<plimsoll>" | "<category>") {
        return name.into_owned();
    }
    format!("{}:{} {name}", short(&file), frame.line)
}

/// Whether a frame of this file is Python, not C++.
pub fn is_python(file: &str) -> bool {
    crate::explain::is_python(file)
}

/// The last two parts of a path.
pub fn short(path: &str) -> String {
    let parts: Vec<&str> = path.rsplitn(3, ['/', '\\']).collect();
    match parts[..] {
        [file, folder, ..] if !folder.is_empty() => format!("{folder}/{file}"),
        _ => path.to_owned(),
    }
}

/// How a row of the table by line names its place: the user's line and the library line that it called, or whatever is
/// known if there is no line.
pub fn asker(snapshot: &Snapshot, key: Line) -> String {
    match key.frame {
        Some(frame) => with_library(snapshot, frame, key.package_line),
        None => backward(snapshot, key.backward),
    }
}

/// The text for a block without a Python line: `backward of model.py:41 forward (likely), MmBackward0`.
pub fn backward(snapshot: &Snapshot, block: BackwardBlock) -> String {
    let operator = block.operator.map_or_else(String::new, |name| format!(", {}", plain(name.of(snapshot))));
    match block.forward {
        Some(ForwardLine { frame, package_line, by }) => {
            let line = with_library(snapshot, frame, package_line);
            format!("backward of {line} ({}){operator}", by.confidence())
        }
        None => format!("{NO_LINE}{operator}"),
    }
}

fn with_library(snapshot: &Snapshot, frame: FrameId, library: Option<FrameId>) -> String {
    let line = line(snapshot, frame);
    match library {
        Some(library) => format!("{line} > {}", self::line(snapshot, library)),
        None => line,
    }
}

/// The category of one block, in a word or two.
pub fn purpose(snapshot: &Snapshot, category: ShownCategory) -> Cow<'_, str> {
    category.name(snapshot).map_or(Cow::Borrowed("unknown"), plain)
}

/// The category of several blocks, in a word or two.
pub fn category(snapshot: &Snapshot, category: ShownCategory) -> Cow<'_, str> {
    category.plural(snapshot).map_or(Cow::Borrowed("unknown"), plain)
}

/// How a category was determined.
pub fn reason(key: Purposed) -> String {
    match key.category {
        ShownCategory::Purpose(None) => key.why.evidence().to_owned(),
        _ => format!("{}: {}", key.why.confidence(), key.why.evidence()),
    }
}

/// The program that wrote the file.
pub fn writer(file: &str, snapshot: &Snapshot) -> String {
    let vendor = snapshot.vendor().map(|vendor| format!(", on {}: {}", vendor.name(), vendor.caveat()));
    let vendor = vendor.unwrap_or_default();
    format!("{file}: {}{vendor}; no code in the file was run", snapshot.written_by())
}

/// The place of a leaking line, with the library line that it calls.
pub fn leaking_place(snapshot: &Snapshot, line: &leaks::Line) -> String {
    match (line.place, line.inner) {
        (Place::Line(frame), inner) => with_library(snapshot, frame, inner),
        (other, _) => place(snapshot, other),
    }
}

/// A sentence about memory that forward passes keep for a backward pass that never runs, and about the remedy; `None`
/// if there is no such memory.
pub fn unused_graph(
    snapshot: &Snapshot,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) -> Option<String> {
    let graph = device.unused_graph?;
    let around = graph.line.map_or_else(|| "the call to the model".to_owned(), |frame| line(snapshot, frame));
    Some(format!(
        "of {}, {} are kept by forward passes for a backward pass that never runs: put torch.no_grad() around {around} ({})",
        size(device.owners.bytes),
        size(graph.bytes),
        graph.confidence
    ))
}

/// The name of a place that requests memory.
pub fn place(snapshot: &Snapshot, place: Place) -> String {
    match place {
        Place::Line(frame) => line(snapshot, frame),
        Place::Operator(name) => plain(name.of(snapshot)).into_owned(),
        Place::Stack(_) => "a stack without a Python frame".to_owned(),
        Place::Unknown => "no stack".to_owned(),
    }
}

/// A sentence about the recommended allocator setting, compared with a simulation of the recorded settings.
pub fn best_setting(what_if: &WhatIf, size: impl Fn(u64) -> String) -> String {
    let baseline = what_if.rows.first().map(|row| &row.outcome).unwrap_or(&what_if.recorded);
    let instead = |row: &Row| {
        let (bytes, before) = (row.outcome.peak_reserved_bytes, baseline.peak_reserved_bytes);
        let (bytes, before) = (size(bytes), size(before));
        if bytes == before { format!("the same {bytes}") } else { format!("{bytes} instead of {before}") }
    };
    match what_if.advice() {
        Advice::NothingRecorded => {
            "no requests were recorded, so settings cannot be compared: start recording \
                                    before the model is built"
                .to_owned()
        }
        Advice::NotReproduced if what_if.recorded.runs_out() => {
            "the failed request succeeds in the simulation of the recorded settings, so settings cannot be compared"
                .to_owned()
        }
        Advice::NotReproduced => {
            "the simulation of the recorded settings runs out of memory, unlike the recording, so settings \
                                  cannot be compared"
                .to_owned()
        }
        Advice::Serves(row) if row.outcome.serves_rest.is_some() => {
            format!("{} would have served the failed request and what was still needed after it", row.name())
        }
        Advice::Serves(row) => format!("{} would have served the failed request", row.name()),
        Advice::ServesOneRequest(row) => format!(
            "{} would have served the failed request, but no setting tried serves what the program still needed \
             after it: reduce memory use",
            row.name()
        ),
        Advice::NoneServes => "no setting tried would have served the failed request".to_owned(),
        Advice::FewerRetries(row) => format!(
            "{} would have needed {} instead of {}, with {} reserved",
            row.name(),
            retries(row.outcome.retries),
            baseline.retries,
            instead(row)
        ),
        Advice::Saves(row) => format!("{} would have reserved {}", row.name(), instead(row)),
        Advice::NothingBetter => match what_if.error_bytes() {
            0 => {
                format!("no setting tried reserves less than {}", size(baseline.peak_reserved_bytes))
            }
            error => format!(
                "no setting tried reserves less than {} by more than the simulation error of {}",
                size(baseline.peak_reserved_bytes),
                size(error)
            ),
        },
    }
}

fn retries(count: usize) -> String {
    format!("{count} {}", plural(count as u64, "retry", "retries"))
}

/// The name of the table row for the packed policy ([`PackedPolicy`](crate::whatif::PackedPolicy)), with the driver
/// calls of the last step if the steps are known.
pub fn packed_policy(what_if: &WhatIf) -> String {
    let name = "packed policy (plimsoll-alloc, not PyTorch)";
    match what_if.packed.last_step_calls {
        Some(calls) => format!("{name}; {calls} device calls in the last step"),
        None => name.to_owned(),
    }
}

/// A sentence that says how close the simulation of the recorded settings comes to the recording. The other rows are
/// about equally accurate.
pub fn baseline(what_if: &WhatIf) -> String {
    let (recorded, Some(simulated)) = (&what_if.recorded, what_if.rows.first()) else { return String::new() };
    let (was, is) = (recorded.peak_reserved_bytes, simulated.outcome.peak_reserved_bytes);
    if *recorded == simulated.outcome {
        return "The simulation of the recorded settings matches the recording: peaks, retries and driver calls are \
                identical."
            .to_owned();
    }
    if was == is {
        return "The simulation of the recorded settings reserves the recorded number of bytes.".to_owned();
    }
    let percent = 100.0 * (is as f64 - was as f64) / (was as f64).max(1.0);
    format!(
        "The simulation of the recorded settings reserves {percent:+.1} % compared with the recording: other rows may be off by as much."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Frame;

    #[test]
    fn names_that_a_file_has_do_nothing_to_a_terminal() {
        let mut snapshot = Snapshot::default();
        let [filename, name] = ["a\u{1b}[2J/m.py", "f\n"].map(|text| snapshot.texts.intern(text).unwrap());
        let frame = snapshot.stacks.frame(Frame { filename, name, line: 7, fx: None }).unwrap();
        assert_eq!(line(&snapshot, frame), "a [2J/m.py:7 f ");
        assert_eq!(plain("plain"), "plain");
    }

    #[test]
    fn of_many_names_a_few_are_shown() {
        assert_eq!(few(&["a", "b"]), "a, b");
        assert_eq!(few(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
    }
}
