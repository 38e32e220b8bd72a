//! Folded stacks: a line for each, outermost frame first, `a;b;c 4096`. As Brendan Gregg's `flamegraph.pl` reads
//! them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::Snapshot;

use super::live::{Live, Place};

/// Writes all devices, each below a frame of its own where there are several. Lines are sorted, and unlike. Frames of
/// C++ are left out unless they are asked for; of a stack that has no others, the innermost stays.
pub(super) fn write(
    snapshot: &Snapshot,
    live: &[Live],
    with_native: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for one in live {
        for held in &one.stacks {
            let device = (live.len() > 1).then(|| format!("device {}", one.device));
            let shown: Vec<Place> = held
                .frames
                .iter()
                .copied()
                .filter(|&place| with_native || !is_native(snapshot, place))
                .collect();
            let last = held.frames.last().filter(|_| shown.is_empty());
            let frames = shown.iter().chain(last).map(|&place| name(snapshot, place));
            let line: Vec<String> = device.into_iter().chain(frames).collect();
            let sum = lines.entry(line.join(";")).or_default();
            *sum = sum.saturating_add(held.bytes);
        }
    }
    lines.iter().try_for_each(|(line, bytes)| writeln!(out, "{line} {bytes}"))
}

/// Whether a place is a frame of C++.
fn is_native(snapshot: &Snapshot, place: Place) -> bool {
    let Place::Frame(id) = place else { return false };
    let file = snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
    !words::is_python(file) && !file.starts_with('<')
}

/// `forward (src/model.py:41)`, without what ends a frame or a line.
fn name(snapshot: &Snapshot, place: Place) -> String {
    let Place::Frame(id) = place else { return place.words().to_owned() };
    let frame = snapshot.stacks.get_frame(id);
    let (function, file) = (snapshot.texts.get(frame.name), snapshot.texts.get(frame.filename));
    let name = match file {
        // Also layers, operations and categories of our own runtime: there is no file.
        "" | "??" | "<label>" | "<plimsoll>" | "<category>" => function.to_owned(),
        _ => format!("{function} ({}:{})", words::short(file), frame.line),
    };
    words::plain(&name).replace(';', ":")
}
