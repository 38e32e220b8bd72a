//! What every form of an explanation says in the same words.

use plimsoll_alloc::Category;

use crate::explain::leaks::Verdict;
use crate::explain::{Cause, DeviceExplanation, Failure, Line, Purposed};
use crate::snapshot::{FrameId, Snapshot};

/// What happened, and the figure that matters. `size` writes a number of bytes.
pub fn verdict(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    let leak = leak(device, &size);
    let Some(failure) = device.failure else {
        if let Some(leak) = leak {
            return format!("a LEAK: {leak}");
        }
        let (allocated, reserved) = (device.timeline.peak_allocated, device.timeline.peak_reserved);
        return format!(
            "nothing failed: at most {} allocated, {} reserved",
            size(allocated.level.allocated_bytes),
            size(reserved.level.reserved_bytes)
        );
    };
    let asked = size(failure.asked_bytes);
    let limited = limited(&failure, &size);
    let (at_most, at_least) = match failure.limit {
        Some(limit) if !limit.is_exact() => ("at most ", "at least "),
        _ => ("", ""),
    };
    match failure.cause() {
        Cause::Capacity { short_bytes } if leak.is_some() => format!(
            "out of memory: a LEAK, {}. {asked} were asked for, short by {at_most}{}{limited}",
            leak.unwrap_or_default(),
            size(short_bytes)
        ),
        Cause::Capacity { short_bytes } if failure.limit.is_some() => format!(
            "out of memory: CAPACITY. {asked} were asked for, short by {at_most}{}{limited}",
            size(short_bytes)
        ),
        Cause::Capacity { short_bytes } => format!(
            "out of memory: CAPACITY. {asked} were asked for, short by {}; perfect packing would still fail, so \
             neither a setting nor empty_cache can help",
            size(short_bytes)
        ),
        Cause::Fragmentation { spare_bytes } => format!(
            "out of memory: FRAGMENTATION. {asked} were asked for and would fit, with {at_least}{} to spare, if \
             the blocks lay together; {}{limited}",
            size(spare_bytes),
            help(device)
        ),
        Cause::Limit { short_bytes } => format!(
            "out of memory: a LIMIT. {asked} were asked for; if the blocks lay together, {} would be lacking at \
             most, and perhaps nothing; {}{limited}",
            size(short_bytes),
            help(device)
        ),
        Cause::Unknown => format!(
            "out of memory: {asked} were asked for; the recording does not say how much the device had free"
        ),
    }
}

/// That it was not the device which refused the request, if so.
fn limited(failure: &Failure, size: impl Fn(u64) -> String) -> String {
    let (Some(limit), Some(free)) = (failure.limit, failure.device_free_bytes) else { return String::new() };
    let of = if limit.is_exact() {
        size(limit.at_least_bytes)
    } else {
        format!("between {} and {}", size(limit.at_least_bytes), size(limit.below_bytes))
    };
    format!(
        "; the device had {} free, so what refused it is a limit of the process \
         (set_per_process_memory_fraction) of {of}",
        size(free)
    )
}

/// How much is never given back, if something is.
fn leak(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> Option<String> {
    let whole = &device.leaks.whole;
    let growth = whole.growth;
    (whole.verdict == Verdict::Leaking).then(|| {
        format!(
            "{} a step in {} of {} steps ({})",
            size(growth.usual_bytes),
            growth.grew,
            growth.steps,
            whole.confidence
        )
    })
}

/// Whether a setting would have served what failed.
fn help(device: &DeviceExplanation) -> String {
    let Some(what_if) = &device.what_if else { return "no setting was tried".to_owned() };
    let serves = what_if.rows.iter().skip(1).find(|row| !row.outcome.runs_out());
    match serves {
        Some(row) => format!("{} would have served it (replayed)", row.export()),
        None => {
            let is_open = device.failure.and_then(|failure| failure.limit).is_some_and(|it| !it.is_exact());
            let within = if is_open { ", were the limit as low as it can be" } else { "" };
            format!("none of the settings that were replayed would have served it{within}")
        }
    }
}

/// Which moment is explained, as the end of "held …".
pub fn when(device: &DeviceExplanation) -> &'static str {
    if device.failure.is_some() { "when memory ran out" } else { "at the peak" }
}

/// `src/model.py:41 forward`, with as much of the path as tells files apart.
pub fn line(snapshot: &Snapshot, frame: FrameId) -> String {
    let frame = snapshot.stacks.get_frame(frame);
    format!("{}:{} {}", short(snapshot.texts.get(frame.filename)), frame.line, snapshot.texts.get(frame.name))
}

/// The last two parts of a path.
pub fn short(path: &str) -> String {
    let parts: Vec<&str> = path.rsplitn(3, ['/', '\\']).collect();
    match parts[..] {
        [file, folder, ..] if !folder.is_empty() => format!("{folder}/{file}"),
        _ => path.to_owned(),
    }
}

/// A row of the table by line: the user's line, and the line of somebody else's package that it called.
pub fn asker(snapshot: &Snapshot, key: Line) -> String {
    let line = key.frame.map_or_else(|| "no line of Python".to_owned(), |frame| line(snapshot, frame));
    match key.package_line {
        Some(package) => format!("{line} > {}", self::line(snapshot, package)),
        None => line,
    }
}

/// What one block is for, in one word or two.
pub fn purpose(category: Option<Category>) -> &'static str {
    category.map_or("unknown", |category| category.name())
}

/// What blocks are for, in one word or two.
pub fn category(key: Purposed) -> &'static str {
    key.category.map_or("unknown", |category| category.plural())
}

/// How that is known.
pub fn reason(key: Purposed) -> String {
    match key.category {
        Some(_) => format!("{}: {}", key.why.confidence(), key.why.evidence()),
        None => key.why.evidence().to_owned(),
    }
}

/// How good the file is, and who wrote it: a line for the file, one for each device. `file` is the snapshot as
/// the user names it.
pub fn provenance(file: &str, snapshot: &Snapshot, devices: &[DeviceExplanation]) -> Vec<String> {
    let mut lines = vec![format!("{file}: {}; nothing in the file was run", snapshot.facts.written_by())];
    lines.extend(devices.iter().map(|device| {
        let (quality, replay) = (device.timeline.quality, &device.replay);
        let of =
            if devices.len() > 1 { format!("device {}: ", device.timeline.device) } else { String::new() };
        let replayed = if replay.requests == 0 {
            "no request recorded: the state alone is explained".to_owned()
        } else if replay.is_identical() {
            format!("{} requests replayed, every block where PyTorch put it", replay.requests)
        } else {
            format!(
                "{} requests replayed, {} of them decided otherwise: figures may differ from PyTorch's",
                replay.requests,
                replay.conflicts + replay.unplaced
            )
        };
        let is_cut = quality.is_cut && replay.requests > 0;
        let cut = if is_cut { "; the ring ran over, so what came before is not known" } else { "" };
        format!("{of}{} events; {replayed}{cut}", quality.events)
    }));
    lines
}
