//! `plimsoll doctor`: checks the quality of a snapshot, and says how to record a better one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use plimsoll_trace::explain::{DataQuality, DeviceExplanation, Options};
use plimsoll_trace::pressure::Pressure;
use plimsoll_trace::render::quality::{Grade, Judged, replayed};
use plimsoll_trace::render::words::counted;
use plimsoll_trace::report::{Rank, Section};
use serde_json::{Value, json};

use crate::bytes;
use crate::categories::Categories;
use crate::exit::{Answer, Failure};
use crate::explained::Explained;
use crate::limit::Limit;
use crate::output::{BOLD, RESET};

#[derive(Args)]
#[command(after_help = "Example: plimsoll doctor snapshot.pickle")]
pub(crate) struct DoctorArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin. Or `cuda[:N]`: test an NVIDIA GPU
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    limit: Limit,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Checks what the snapshot contains and what it lacks. Returns the text for stdout.
pub(crate) fn run(args: &DoctorArgs) -> Result<Answer, Failure> {
    let name = args.file.to_string_lossy();
    // A file with this name can be given with its folder: `./cuda`.
    if name == "cuda" || name.starts_with("cuda:") {
        return crate::cuda::run(&name, args.json);
    }
    args.limit.watch(&[&args.file], args.json);
    let mut explained = Explained::open(&args.file, None, Options::default(), &Categories::default())?;
    // The recording is only as good as its worst device, which comes first.
    let grades = explained.devices.iter().map(|device| {
        let grade = Judged::of(&explained.quality(device), &device.replay).grade;
        (device.timeline.device, grade)
    });
    let grades: BTreeMap<i32, Grade> = grades.collect();
    explained.devices.sort_by_key(|device| Reverse(grades.get(&device.timeline.device).copied()));
    Ok(Answer::from(if args.json { all_as_json(&explained) } else { as_text(&explained) }))
}

fn as_text(explained: &Explained) -> String {
    let mut out = String::new();
    let form = explained.snapshot.facts.form.map_or_else(String::new, |form| form.to_string());
    let written_by = explained.snapshot.written_by();
    // Writing to a `String` cannot fail.
    for (nth, device) in explained.devices.iter().enumerate() {
        let quality = explained.quality(device);
        let judged = Judged::of(&quality, &device.replay);
        if nth > 0 {
            out.push('\n');
        }
        let _ = writeln!(out, "{}{BOLD}{judged}{RESET}", explained.prefix(device));
        if nth == 0 {
            row(&mut out, "format", &format!("{form}, {written_by}; no code in the file was run"));
        }
        if let Some(vendor) = quality.vendor.filter(|_| nth == 0) {
            row(&mut out, "devices", &format!("{}: {}", vendor.name(), vendor.caveat()));
        }
        device_rows(&mut out, device, &quality);
        complaints(&mut out, &quality);
    }
    out
}

fn device_rows(out: &mut String, device: &DeviceExplanation, quality: &DataQuality) {
    let events = &quality.replay;
    let fit = match events.conflicts() {
        0 => "all consistent".to_owned(),
        conflicts => format!("{conflicts} contradict the others"),
    };
    let ring = if events.is_cut { "overflowed: the oldest events are lost" } else { "no sign of overflow" };
    let ring = if events.is_restarted {
        "did not overflow; recording was stopped and restarted: blocks of an earlier recording remain"
    } else {
        ring
    };
    if events.events > 0 {
        row(out, "events", &format!("{}, {fit}", events.events));
        row(out, "ring", ring);
        if events.held_before > 0 {
            row(
                out,
                "held before",
                &format!("{} allocated before the first event", counted(events.held_before as u64, "block")),
            );
        }
    }
    row(out, "releases", &released(&device.pressure));
    row(out, "replay", &replayed(&device.replay));
    let stackless = quality.stackless_percent();
    let frames = if quality.has_native_frames { "Python and C++" } else { "Python only" };
    if stackless < 100.0 {
        row(out, "frames", frames);
    }
    row(
        out,
        "stacks",
        &format!(
            "{:.1} % of the peak's {} have a stack",
            100.0 - stackless,
            bytes::shown(quality.peak_bytes, false)
        ),
    );
    let steps = match device.steps.len() {
        0 => "none found".to_owned(),
        count => format!("{count}; a step ends where {}", device.steps.evidence()),
    };
    row(out, "steps", &steps);
}

/// How often cached memory was released to the device, by cause.
fn released(pressure: &Pressure) -> String {
    let times =
        |count: usize, name: &str| (count > 0).then(|| format!("{} {name}", counted(count as u64, "time")));
    let parts = [
        times(pressure.retries.len(), "to retry a refused request"),
        times(pressure.emptied, "by empty_cache()"),
        times(pressure.collected, "by garbage_collection_threshold"),
        times(pressure.unclear, "by empty_cache() or a retry (context=\"all\" distinguishes them)"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// Which stacks and parts of the recording are missing, and how to record them.
fn complaints(out: &mut String, quality: &DataQuality) {
    if !quality.stackless.is_empty() {
        let _ = writeln!(out, "\n{BOLD}Without a stack at the peak{RESET}");
        for part in &quality.stackless {
            let (size, why) = (bytes::shown(part.bytes, false), part.why);
            let _ = writeln!(
                out,
                "  {size:>12}  {:>13}  {}: {}",
                counted(part.blocks, "block"),
                why.reason(),
                why.remedy()
            );
        }
    }
    if !quality.missing.is_empty() {
        let _ = writeln!(out, "\n{BOLD}Not in the file{RESET}");
        for missing in &quality.missing {
            let _ = writeln!(out, "  {}", missing.costs());
        }
    }
    if !quality.is_complete() {
        let how = if quality.is_own { "" } else { " (`plimsoll record` prints a complete module)" };
        let _ = writeln!(out, "\n{BOLD}Next time{RESET}{how}");
        for line in quality.record_with() {
            let _ = writeln!(out, "  {line}");
        }
    }
}

fn row(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "  {name:<12}  {text}");
}

/// The section in an explanation: one line, and one more for each further problem.
pub(crate) fn section(explained: &Explained, device: &DeviceExplanation) -> Section {
    let quality = explained.quality(device);
    let judged = Judged::of(&quality, &device.replay);
    let events = counted(device.timeline.quality.events as u64, "event");
    // A replay that differs is one of the problems.
    let differs = device.replay.requests > 0 && !device.replay.is_identical();
    let replayed = if differs { String::new() } else { format!(", {}", replayed(&device.replay)) };
    let better = (judged.grade != Grade::Good)
        .then(|| format!("`plimsoll doctor {}` shows how to record a better one", explained.file));
    Section::lines(
        "data_quality",
        Rank::Full,
        judged.complaints.iter().map(ToString::to_string).chain(better),
    )
    .headed("Data quality")
    .noted(format!(": {}; {events}{replayed}", judged.grade.name()))
    .valued(as_json(device, &quality, &judged))
}

fn all_as_json(explained: &Explained) -> String {
    let facts = &explained.snapshot.facts;
    let devices = explained.devices.iter().map(|device| {
        let quality = explained.quality(device);
        let mut value = as_json(device, &quality, &Judged::of(&quality, &device.replay));
        value["device"] = device.timeline.device.into();
        value
    });
    let value = json!({
        "schema": "plimsoll.doctor/1",
        "file": explained.file,
        "form": facts.form.map(|form| form.to_string()),
        "written_by": explained.snapshot.written_by(),
        "devices": devices.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

/// The figures of one device, and how exact they are.
fn as_json(device: &DeviceExplanation, quality: &DataQuality, judged: &Judged) -> Value {
    let stackless = quality.stackless.iter().map(|part| {
        json!({
            "why": part.why.reason(),
            "remedy": part.why.remedy(),
            "bytes": part.bytes,
            "blocks": part.blocks,
        })
    });
    json!({
        "grade": judged.grade.name(),
        "complaints": judged.complaints,
        "complete": quality.is_complete(),
        "events": quality.replay.events,
        "conflicts": quality.replay.conflicts(),
        "ring_overflowed": quality.replay.is_cut,
        "restarted": quality.replay.is_restarted,
        "retried_requests": device.pressure.retries.len(),
        "emptied": device.pressure.emptied,
        "collected": device.pressure.collected,
        "held_before": quality.replay.held_before,
        "replay_identical": device.replay.is_identical(),
        "peak_bytes": quality.peak_bytes,
        "stackless_bytes": quality.stackless_bytes(),
        "stackless": stackless.collect::<Vec<_>>(),
        "no_python_bytes": quality.no_python_bytes,
        "vendor": quality.vendor.map(|vendor| vendor.name()),
        "native_frames": quality.has_native_frames,
        "missing": quality.missing.iter().map(|missing| missing.costs()).collect::<Vec<_>>(),
        "record_with": quality.record_with(),
    })
}
