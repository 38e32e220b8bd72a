//! An explanation as one page. It needs no network and no other file, and the verdict and the tables are readable
//! without scripts. A page has a section for each device of a recording. A page about several recordings begins with a
//! summary of all of them.
//!
//! ```text
//! comparison.rs      the beginning of a page about two recordings, and ranks.rs, about the ranks of a job
//!  └ panels.rs       the recordings side by side on one scale, drawn by stacks.rs without a script
//! devices.rs         the beginning of a page about a recording of several devices
//! report.rs          the beginning of a page that shows a report
//! section.rs         one device of a recording, and what the script draws of it
//! summary.rs         what the first screen has below the verdict: what would help, the largest owners
//! tables.rs          what is read without a script in a section, part by part
//!  ├ growth.rs       from step to step: the staircase, the lines that grow
//!  ├ remaining.rs    what stays at the end, compared with the peak
//!  ├ peaks.rs        the peaks of phases, and why one step took more than another
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
//!                    memory.rs wrote; timeline, icicle and map draw it, each next to its HTML
//! ```
//!
//! Text from a file never becomes a tag: HTML is escaped, data is in a separate element without a `<`, the script
//! writes only text, and the page's content security policy allows no other script.

mod blocks;
mod boxes;
mod buckets;
mod cells;
mod comparison;
mod devices;
mod flow;
mod growth;
mod kinds;
mod memory;
mod numbers;
mod panels;
mod peaks;
mod quality;
mod ranks;
mod remaining;
mod report;
mod section;
mod settings;
mod stacks;
mod summary;
mod tables;
#[cfg(test)]
mod tests;
mod text;

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::section::{Section, drawings};
use self::text::{Text, Whole};
use super::Report;
use super::comparison::{SIDES, SnapshotDiff};
use super::quality::provenance;
use super::ranks::RankTable;
use crate::explain::DeviceExplanation;
use crate::report::Report as Answer;

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

/// The maximum number of sections in a comparison.
const SECTIONS: usize = 16;
/// The maximum number of ranks that have a section; the most important ranks do.
const RANKS: usize = 4;
/// The number of recordings whose origin is shown.
const ORIGINS: usize = 256;
/// The number of points of the curve, shared by all devices. There are more points than a screen has pixels, so that
/// users can zoom in.
const BUCKETS: usize = 4096;
/// The number of blocks that are listed individually, shared by all devices; each takes 32 bytes of the page.
const BLOCKS: usize = 75_000;
/// The number of boxes of the icicle, shared by all devices.
const BOXES: usize = 6000;
/// The number of cells of the map at the peak of reserved memory, shared by all devices.
const CELLS: usize = 1600;
/// The maximum number of failures that are marked; the last failures are.
const FAILURES: usize = 50;
/// The number of step ends that are marked, evenly sampled.
const STEPS: usize = 4096;

/// A page.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// The subject of the page.
    pub about: About<'a>,
    /// The subject in a few words, which follow the name of the command.
    pub title: &'a str,
    /// The command that makes the page again.
    pub command: &'a str,
}

/// The subject of a page.
#[derive(Debug, Clone, Copy)]
pub enum About<'a> {
    /// One recording.
    Recording(Report<'a>),
    /// A prediction made from a recording.
    Prediction(Report<'a>, &'a Answer),
    /// The changes from one recording to another.
    Comparison(&'a SnapshotDiff<'a>),
    /// The ranks of a job, and the commands that show each rank by itself.
    Ranks(&'a RankTable<'a>, &'a [String]),
}

impl About<'_> {
    /// The command of `plimsoll` that makes such a page.
    fn verb(self) -> &'static str {
        match self {
            Self::Recording(_) | Self::Ranks(..) => "explain",
            Self::Prediction(..) => "predict",
            Self::Comparison(_) => "diff",
        }
    }
}

impl<'a> Page<'a> {
    /// The page as HTML. Its size does not grow with the number of events, devices or ranks, except for the command,
    /// which names every file. Costs a few hundred nanoseconds for each event.
    pub fn html(&self) -> String {
        let sections = self.sections();
        let drawn: Vec<Value> = sections.iter().map(|section| section.drawn(sections.len())).collect();
        let names = sections.first().map_or_else(Vec::new, |section| kinds::names(&section.report));
        let data = json!({ "kinds": names, "waiting": kinds::WAITING, "devices": drawn });
        let body = match self.body(&sections) {
            Ok(body) => body,
            Err(std::fmt::Error) => unreachable!("writing to a string cannot fail"),
        };
        fill(PAGE, |name, out| match name {
            "script-hash" => out.push_str(&hash(SCRIPT)),
            "style-hash" => out.push_str(&hash(STYLE)),
            "style" => out.push_str(STYLE),
            "script" => out.push_str(SCRIPT),
            "verb" => out.push_str(self.about.verb()),
            "title" => write(out, Text(self.title)),
            "sections" => out.push_str(&body),
            "provenance" => self.provenance(out),
            "command" => write(out, Whole(self.command)),
            "version" => out.push_str(env!("CARGO_PKG_VERSION")),
            "data" => out.push_str(&text::json(&data)),
            other => unreachable!("page.html has no place named {other}"),
        })
    }

    /// The summary of all recordings, then the sections.
    fn body(&self, sections: &[Section<'a>]) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        match self.about {
            About::Recording(report) if report.devices.len() > 1 => {
                devices::head(&mut out, report, sections)?;
            }
            About::Recording(_) => {}
            About::Prediction(_, answer) => report::head(&mut out, answer)?,
            About::Comparison(diff) => comparison::head(&mut out, diff, sections)?,
            About::Ranks(table, commands) => {
                ranks::head(&mut out, table, commands, &table.foremost(RANKS), sections)?;
            }
        }
        for (nth, section) in sections.iter().enumerate() {
            out.push_str(&tables::section(section, nth, drawings(section.device))?);
        }
        Ok(out)
    }

    fn sections(&self) -> Vec<Section<'a>> {
        let titled = |name: &str, report: Report<'a>, device: &'a DeviceExplanation| {
            let of = match report.devices.len() {
                1 => String::new(),
                _ => format!(", device {}", device.timeline.device),
            };
            let title = format!("{name}: {}{of}", report.file);
            Section { title, report, device, is_summed_up: false }
        };
        match self.about {
            About::Recording(report) | About::Prediction(report, _) => {
                let sections = report.devices.iter().map(|device| {
                    let several = report.devices.len() > 1;
                    let title = several.then(|| format!("device {}", device.timeline.device));
                    let is_summed_up = several && std::ptr::eq(device, devices::foremost(&report));
                    Section { title: title.unwrap_or_default(), report, device, is_summed_up }
                });
                sections.collect()
            }
            About::Comparison(diff) => {
                let pairs = diff.pairs.iter().flat_map(|pair| [0, 1].map(|side| (side, pair.devices[side])));
                let all = pairs.chain(diff.alone.iter().copied());
                all.take(SECTIONS)
                    .map(|(side, device)| titled(SIDES[side], diff.reports[side], device))
                    .collect()
            }
            About::Ranks(table, _) => {
                let drawn = table.foremost(RANKS).into_iter();
                let section = |nth: usize| (table.name(nth), table.devices[nth]);
                drawn.map(section).map(|(name, (report, device))| titled(name, report, device)).collect()
            }
        }
    }

    /// Lines about the origin of all recordings; collapsed if there are many recordings.
    fn provenance(&self, out: &mut String) {
        let reports: Vec<Report<'a>> = match self.about {
            About::Recording(report) | About::Prediction(report, _) => vec![report],
            About::Comparison(diff) => diff.reports.into(),
            About::Ranks(table, _) => {
                table.by_file().filter_map(|devices| devices.first()).map(|(report, _)| *report).collect()
            }
        };
        let is_folded = reports.len() > 2;
        if is_folded {
            write(out, format_args!("<details><summary>the {} files</summary>", reports.len()));
        }
        for report in reports.iter().take(ORIGINS) {
            for line in provenance(report.file, report.snapshot, report.devices) {
                write(out, format_args!("<p>{}</p>", Text(line)));
            }
        }
        if let Some(more) = reports.len().checked_sub(ORIGINS).filter(|&more| more > 0) {
            write(out, format_args!("<p>and {more} more</p>"));
        }
        if is_folded {
            out.push_str("</details>");
        }
    }
}

/// A template with its placeholders, `{{name}}`, filled; the inserted text is not searched for placeholders.
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

/// The hash by which the page's policy recognizes its own script and style.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}
