//! Folded stacks, in the format of Brendan Gregg's `flamegraph.pl`: a line for each stack, outermost frame
//! first, `a;b;c 4096`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::Snapshot;

use super::live::{Live, Place};

/// Writes all devices. If there are several, each has a root frame. Lines are sorted and unique. C++ frames are left
/// out by default; a stack that has only C++ frames is `[no Python frame]`.
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
            let none = shown.is_empty().then(|| "[no Python frame]".to_owned());
            let frames = shown.iter().map(|&place| name(snapshot, place)).chain(none);
            let line: Vec<String> = device.into_iter().chain(frames).collect();
            let sum = lines.entry(line.join(";")).or_default();
            *sum = sum.saturating_add(held.bytes);
        }
    }
    lines.iter().try_for_each(|(line, bytes)| writeln!(out, "{line} {bytes}"))
}

/// Whether a place is a C++ frame.
fn is_native(snapshot: &Snapshot, place: Place) -> bool {
    let Place::Frame(id) = place else { return false };
    let file = snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
    !words::is_python(file) && !file.starts_with('<')
}

/// `forward (src/model.py:41)`, without the characters that end a frame or a line.
fn name(snapshot: &Snapshot, place: Place) -> String {
    let Place::Frame(id) = place else { return place.words().to_owned() };
    let frame = snapshot.stacks.get_frame(id);
    let (function, file) = (snapshot.texts.get(frame.name), snapshot.texts.get(frame.filename));
    let name = match file {
        // Layers, operations and categories of our own runtime have no file either.
        "" | "??" | "<label>" | "<plimsoll>" | "<category>" => function.to_owned(),
        _ => format!("{function} ({}:{})", words::short(file), frame.line),
    };
    words::plain(&name).replace(';', ":")
}
