//! The file format of speedscope: a sampled profile for each device, whose weights are bytes.
//! Its schema: <https://www.speedscope.app/file-format-schema.json>.

use std::io::{self, Write};

use plimsoll_trace::snapshot::Snapshot;
use serde_json::{Value, json};

use super::live::{Live, Place};
use crate::recording::Recording;

/// Writes a profile for each device.
pub(super) fn write(recording: &Recording, live: &[Live], out: &mut dyn Write) -> io::Result<()> {
    let mut frames = Frames::new(&recording.snapshot);
    let profiles: Vec<Value> = live.iter().map(|one| profile(&mut frames, one)).collect();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": recording.name,
        "exporter": concat!("plimsoll ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": { "frames": frames.listed },
        "profiles": profiles,
    });
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}

fn profile(frames: &mut Frames<'_>, live: &Live) -> Value {
    let samples: Vec<Vec<usize>> = live
        .stacks
        .iter()
        .map(|held| held.frames.iter().map(|&place| frames.place(place)).collect())
        .collect();
    let weights: Vec<u64> = live.stacks.iter().map(|held| held.bytes).collect();
    json!({
        "type": "sampled",
        "name": format!("device {}, live {}", live.device, live.moment),
        "unit": "bytes",
        "startValue": 0,
        "endValue": live.bytes(),
        "samples": samples,
        "weights": weights,
    })
}

/// Frames in the order of first use, without duplicates.
struct Frames<'a> {
    snapshot: &'a Snapshot,
    listed: Vec<Value>,
    /// The index in `listed` of a frame of the snapshot.
    places: Vec<Option<usize>>,
}

impl<'a> Frames<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Frames { snapshot, listed: Vec::new(), places: vec![None; snapshot.stacks.frame_count()] }
    }

    fn place(&mut self, place: Place) -> usize {
        let Place::Frame(id) = place else {
            let frame = json!({ "name": place.words() });
            return self
                .listed
                .iter()
                .position(|listed| *listed == frame)
                .unwrap_or_else(|| self.list(frame));
        };
        if let Some(known) = self.places[id.index()] {
            return known;
        }
        let frame = self.snapshot.stacks.get_frame(id);
        let mut listed = json!({ "name": self.snapshot.texts.get(frame.name) });
        let file = self.snapshot.texts.get(frame.filename);
        if !["", "??"].contains(&file) {
            listed["file"] = file.into();
            listed["line"] = frame.line.into();
        }
        let known = self.list(listed);
        self.places[id.index()] = Some(known);
        known
    }

    fn list(&mut self, frame: Value) -> usize {
        self.listed.push(frame);
        self.listed.len() - 1
    }
}
