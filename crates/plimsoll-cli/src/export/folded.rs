//! Folded stacks: a line for each, outermost frame first, `a;b;c 4096`. As Brendan Gregg's `flamegraph.pl` reads
//! them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::Snapshot;

use super::live::{Live, Place};

/// Writes all devices, each below a frame of its own where there are several. Lines are sorted, and unlike.
pub(super) fn write(snapshot: &Snapshot, live: &[Live], out: &mut dyn Write) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for one in live {
        for held in &one.stacks {
            let device = (live.len() > 1).then(|| format!("device {}", one.device));
            let frames = held.frames.iter().map(|&place| name(snapshot, place));
            let line: Vec<String> = device.into_iter().chain(frames).collect();
            let sum = lines.entry(line.join(";")).or_default();
            *sum = sum.saturating_add(held.bytes);
        }
    }
    lines.iter().try_for_each(|(line, bytes)| writeln!(out, "{line} {bytes}"))
}

/// `forward (src/model.py:41)`, without what ends a frame or a line.
fn name(snapshot: &Snapshot, place: Place) -> String {
    let Place::Frame(id) = place else { return place.words().to_owned() };
    let frame = snapshot.stacks.get_frame(id);
    let (function, file) = (snapshot.texts.get(frame.name), snapshot.texts.get(frame.filename));
    let name = match file {
        "" | "??" => function.to_owned(),
        _ => format!("{function} ({}:{})", words::short(file), frame.line),
    };
    words::plain(&name).replace(';', ":")
}
