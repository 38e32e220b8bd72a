//! An explanation as one page: no network, no other file, the verdict and the tables readable without scripts.
//!
//! ```text
//! tables.rs          what is read without a script, part by part
//!  ├ growth.rs       from step to step: the staircase, the lines that grow
//!  ├ settings.rs     the same requests under other settings
//!  ├ quality.rs      how far all that can be relied on
//!  └ cells.rs        sizes, bars and lines of the program, as all tables have them
//! buckets.rs         the curve in as many points as a screen has: each keeps its peak; flow.rs walks for it
//! blocks.rs          the blocks, from which the script tells what is held after any event
//!  └ boxes.rs        their stacks as a tree
//! memory.rs          the segments over time
//! numbers.rs         arrays as base64; text.rs: words that nobody vouches for
//! page.html          what holds all that; page.css: how it looks, on screens and on paper
//! *.js               what draws, joined into one script: curve.js and held.js have what buckets.rs, blocks.rs and
//!                    memory.rs wrote; timeline, icicle and map draw it, each with its HTML beside it
//! ```
//!
//! What a file says never becomes a tag: HTML is escaped, data stands in an element of its own without a `<`,
//! the script writes only text, and the page's policy lets no other script run.

mod blocks;
mod boxes;
mod buckets;
mod cells;
mod flow;
mod growth;
mod memory;
mod numbers;
mod peaks;
mod quality;
mod settings;
mod tables;
#[cfg(test)]
mod tests;
mod text;

use std::borrow::Cow;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::buckets::{Buckets, kind_names, number};
use self::flow::Ends;
use self::numbers::grains;
use self::text::Text;
use super::words;
use crate::explain::{DeviceExplanation, Origins};
use crate::snapshot::{Action, Event, EventIndex, Snapshot};
use crate::whatif::{SETTINGS, WhatIf};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    include_str!("shared.js"),
    include_str!("held.js"),
    include_str!("curve.js"),
    include_str!("timeline.js"),
    include_str!("icicle.js"),
    include_str!("map.js"),
    include_str!("page.js"),
);
const TIMELINE: &str = include_str!("timeline.html");
const ICICLE: &str = include_str!("icicle.html");
const MAP: &str = include_str!("map.html");

/// Points of the curve, shared by all devices: zoomed in, several for a pixel of the whole.
const BUCKETS: usize = 4096;
/// Blocks that are told one by one, shared by all devices: 32 bytes of the page each.
const BLOCKS: usize = 75_000;
/// Boxes of the icicle, shared by all devices.
const BOXES: usize = 6000;
/// Cells of the map at the most reserved, shared by all devices.
const CELLS: usize = 1600;
/// Failures that are flagged, the last.
const FAILURES: usize = 50;
/// Ends of steps that are marked, evenly chosen.
const STEPS: usize = 4096;

/// What a page is made of.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The snapshot's name, as the user knows it.
    pub file: &'a str,
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// Its lines.
    pub origins: &'a Origins,
    /// What it tells of each device.
    pub devices: &'a [DeviceExplanation],
    /// The command that makes the page again.
    pub command: &'a str,
}

impl Report<'_> {
    /// The page. Its size does not grow with the number of events; costs some hundred nanoseconds for each.
    pub fn page(&self) -> String {
        let drawn: Vec<Value> = self.devices.iter().map(|device| self.drawn(device)).collect();
        let data = json!({ "kinds": kind_names(), "devices": drawn });
        let mut sections = String::new();
        for (nth, device) in self.devices.iter().enumerate() {
            let what_if = self.what_if(device);
            match tables::section(self, device, nth, what_if.as_deref(), drawings(device)) {
                Ok(section) => sections.push_str(&section),
                Err(std::fmt::Error) => unreachable!("writing to a string cannot fail"),
            }
        }
        let provenance = words::provenance(self.file, self.snapshot, self.devices);
        fill(PAGE, |name, out| match name {
            "script-hash" => out.push_str(&hash(SCRIPT)),
            "style-hash" => out.push_str(&hash(STYLE)),
            "style" => out.push_str(STYLE),
            "script" => out.push_str(SCRIPT),
            "title" => write(out, Text(self.file)),
            "sections" => out.push_str(&sections),
            "provenance" => {
                for line in &provenance {
                    write(out, format_args!("<p>{}</p>", Text(line)));
                }
            }
            "command" => write(out, Text(self.command)),
            "version" => out.push_str(env!("CARGO_PKG_VERSION")),
            "data" => out.push_str(&text::json(&data)),
            other => unreachable!("page.html has no place named {other}"),
        })
    }

    /// What other settings would have come to; `None` where no request was recorded.
    fn what_if<'b>(&self, device: &'b DeviceExplanation) -> Option<Cow<'b, WhatIf>> {
        if device.replay.requests == 0 {
            return None;
        }
        let known = device.what_if.as_ref().map(Cow::Borrowed);
        Some(known.unwrap_or_else(|| Cow::Owned(WhatIf::of(self.snapshot, &device.timeline, &SETTINGS))))
    }

    /// What the script draws of one device.
    fn drawn(&self, device: &DeviceExplanation) -> Value {
        let share = |all: usize| (all / self.devices.len()).max(all / 16);
        let trace = self.snapshot.trace(device.timeline.device);
        let ends = Ends::of(&device.timeline);
        let buckets = Buckets::of(device, trace, &ends, share(BUCKETS));
        json!({
            "explained": number(device.moment()),
            "when": words::when(device),
            "peak": number(device.timeline.peak_allocated.after),
            "failures": failures(trace),
            "limit": limit_bytes(device).map(grains),
            "steps": steps(device),
            "curve": buckets.json(),
            "memory": memory::json(device, trace, share(CELLS) as u64),
            "held": blocks::json(self, device, share(BLOCKS), share(BOXES)),
        })
    }
}

/// Where steps end, as numbers of moments, each so many steps behind the one before.
fn steps(device: &DeviceExplanation) -> Value {
    let ends = &device.steps.boundaries;
    let apart = ends.len().div_ceil(STEPS).max(1);
    let ends = ends.iter().skip(apart - 1).step_by(apart);
    json!({ "apart": apart, "ends": numbers::words(ends.map(|&end| number(Some(end)))) })
}

/// The places of what the script draws: nothing where there is nothing to draw.
fn drawings(device: &DeviceExplanation) -> [&'static str; 3] {
    let timeline = &device.timeline;
    let is_any = [
        timeline.quality.events > 0,
        device.holders.bytes > 0,
        timeline.peak_reserved.level.reserved_bytes > 0,
    ];
    let mut parts = [TIMELINE, ICICLE, MAP];
    for (part, is_any) in parts.iter_mut().zip(is_any) {
        if !is_any {
            *part = "";
        }
    }
    parts
}

/// What the allocator could have had at most, as a failed request tells it; else the whole device, where that
/// is known.
fn limit_bytes(device: &DeviceExplanation) -> Option<u64> {
    let at_failure = device.failure.and_then(|failure| failure.capacity_bytes());
    at_failure.or(device.ledger.device.total)
}

/// The last requests that failed, each as a number of a moment and the bytes that it asked for.
fn failures(trace: &[Event]) -> Vec<[u64; 2]> {
    let failed = trace.iter().enumerate().rev().filter(|(_, event)| event.action == Action::Oom);
    let failed = failed.map(|(place, event)| [u64::from(number(EventIndex::new(place))), event.size]);
    failed.take(FAILURES).collect()
}

/// A text with its places, `{{name}}`, filled; what is put there is not read again.
fn fill(template: &str, value: impl Fn(&str, &mut String)) -> String {
    let mut parts = template.split("{{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or((part, ""));
        value(name, &mut out);
        out.push_str(rest);
    }
    out
}

fn write(out: &mut String, what: impl std::fmt::Display) {
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{what}");
}

/// By which the page's policy knows its own script and style.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}
