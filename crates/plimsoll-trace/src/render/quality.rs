//! The quality of a recording, in words: [`Grade`], and the complaints.

use std::fmt;

use plimsoll_alloc::Bytes;

use super::words::{counted, writer};
use crate::explain::{DataQuality, DeviceExplanation, Missing};
use crate::replay::Replay;
use crate::snapshot::Snapshot;

/// How reliable the results are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Everything important is known exactly.
    Good,
    /// Some information is unknown; everything else is reliable.
    Usable,
    /// The information that most questions need is unknown.
    Poor,
}

impl Grade {
    /// The grade in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Usable => "usable",
            Self::Poor => "poor",
        }
    }
}

/// If at most this percentage of the peak's bytes have no stack, there is no complaint. From `MANY_PERCENT` on, the
/// recording is poor.
const FEW_PERCENT: f64 = 5.0;
const MANY_PERCENT: f64 = 50.0;

/// The grade of one device's recording, and its complaints, the worst first.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The grade of the worst complaint.
    pub grade: Grade,
    /// The complaints; empty if there are none.
    pub complaints: Vec<String>,
}

impl Judged {
    /// Grades a device's recording.
    pub fn of(quality: &DataQuality, replay: &Replay) -> Self {
        let mut found: Vec<(Grade, String)> = Vec::new();
        let lacks = |missing: Missing| quality.missing.contains(&missing);
        let grave = [(Missing::Events, Grade::Poor), (Missing::Segments, Grade::Usable)];
        let grave = grave.into_iter().filter(|&(missing, _)| lacks(missing));
        found.extend(grave.map(|(missing, grade)| (grade, missing.costs().to_owned())));
        let percent = quality.stackless_percent();
        if percent >= FEW_PERCENT {
            let grade = if percent > MANY_PERCENT { Grade::Poor } else { Grade::Usable };
            found.push((grade, format!("{percent:.1} % of the peak's bytes have no stack")));
        }
        if quality.replay.is_cut && !lacks(Missing::Events) {
            let cut = "the ring buffer overflowed: earlier events are lost, perhaps with a higher peak";
            found.push((Grade::Usable, cut.to_owned()));
        }
        if let Some(vendor) = quality.vendor.filter(|vendor| !vendor.is_pytorchs()) {
            found.push((Grade::Usable, format!("recorded on {}: {}", vendor.name(), vendor.caveat())));
        }
        if quality.replay.is_restarted && !lacks(Missing::Events) {
            let restarted = "recording was stopped and restarted: events before the last start are missing, perhaps \
                             with a higher peak";
            found.push((Grade::Usable, restarted.to_owned()));
        }
        let (conflicts, events) = (quality.replay.conflicts(), quality.replay.events);
        if conflicts > 0 {
            found.push((Grade::Usable, format!("{conflicts} of {events} events contradict the others")));
        }
        if replay.requests > 0 && !replay.is_identical() {
            found.push((Grade::Usable, differs(replay)));
        }
        if lacks(Missing::DeviceFree) {
            found.push((Grade::Usable, Missing::DeviceFree.costs().to_owned()));
        }
        if replay.requests > 0 && replay.inexact > 0 {
            let (blocks, more) = (counted(replay.inexact as u64, "block"), Bytes(replay.inexact_bytes));
            let inexact = format!(
                "{blocks} from before the recording may be larger than counted, by at most {more} in total"
            );
            found.push((Grade::Usable, inexact));
        }
        found.sort_by_key(|&(grade, _)| std::cmp::Reverse(grade));
        let grade = found.first().map_or(Grade::Good, |&(grade, _)| grade);
        Self { grade, complaints: found.into_iter().map(|(_, complaint)| complaint).collect() }
    }
}

/// The grade with its main reason: the worst complaint, or what went well.
impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = "all figures are exact to the byte";
        let first = self.complaints.first().map_or(first, String::as_str);
        write!(f, "{}: {first}", self.grade.name())?;
        match self.complaints.len() {
            0 | 1 => Ok(()),
            more => write!(f, "; and {} more", more - 1),
        }
    }
}

/// The quality of a file, and the program that wrote it: a line for the file, and a line for each device. `file` is the
/// name that the user gave.
pub fn provenance(file: &str, snapshot: &Snapshot, devices: &[DeviceExplanation]) -> Vec<String> {
    let mut lines = vec![writer(file, snapshot)];
    lines.extend(devices.iter().map(|device| {
        let (quality, replay) = (device.timeline.quality, &device.replay);
        let of =
            if devices.len() > 1 { format!("device {}: ", device.timeline.device) } else { String::new() };
        let replayed = replayed(replay);
        let is_cut = quality.is_cut && replay.requests > 0;
        let is_restarted = quality.is_restarted && replay.requests > 0;
        let cut = match (is_cut, is_restarted) {
            (true, _) => "; the ring buffer overflowed: earlier events are lost",
            (_, true) => "; recording was restarted: earlier events are missing",
            _ => "",
        };
        format!("{of}{} events; {replayed}{cut}", quality.events)
    }));
    lines
}

/// A sentence that says how exactly the requests were replayed.
pub fn replayed(replay: &Replay) -> String {
    if replay.requests == 0 {
        "no requests recorded: only the final state is known".to_owned()
    } else if replay.is_identical() {
        format!(
            "{} replayed, every block at the address that PyTorch chose",
            counted(replay.requests as u64, "request")
        )
    } else {
        format!("{}: figures may differ from PyTorch's", differs(replay))
    }
}

fn differs(replay: &Replay) -> String {
    let Replay { requests, conflicts, unplaced, .. } = replay;
    let (requests, blocks) = (counted(*requests as u64, "request"), counted(*unplaced as u64, "block"));
    match (conflicts, unplaced) {
        (0, 0) => format!("{requests} replayed, but the final state differs from the snapshot"),
        (_, 0) => format!("{requests} replayed, {conflicts} of them placed differently"),
        _ => format!(
            "{requests} replayed, {conflicts} of them placed differently, and {blocks} not placed: the memory \
             was occupied or missing"
        ),
    }
}
