//! `plimsoll whatif`: a recording's memory under other allocator settings.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use plimsoll_alloc::Config;
use plimsoll_trace::explain::{DeviceExplanation, Options};
use plimsoll_trace::render::words;
use plimsoll_trace::whatif::{Advice, Outcome, SETTINGS, WhatIf};
use serde_json::{Value, json};

use crate::bytes;
use crate::exit::{Exit, Failure};
use crate::explained::Explained;
use crate::limit::Limit;
use crate::output::{BOLD, RESET};
use crate::recording::Recording;

#[derive(Args)]
#[command(after_help = "Example: plimsoll whatif snapshot.pickle")]
pub(crate) struct WhatIfArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Settings to try, in the format of PYTORCH_ALLOC_CONF [default: common settings]
    #[arg(value_name = "SETTING")]
    settings: Vec<String>,
    /// The device's total memory, such as 80GiB: a limit for every row
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    device_total: Option<u64>,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Print sizes in bytes, not in MiB and GiB
    #[arg(long)]
    bytes: bool,
    #[command(flatten)]
    limit: Limit,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Replays the recorded requests under each setting. Returns the text for stdout.
pub(crate) fn run(args: &WhatIfArgs) -> Result<String, Failure> {
    for setting in &args.settings {
        Config::parse(setting).map_err(|why| Failure::new(Exit::Usage, format!("{setting}: {why}")))?;
    }
    args.limit.watch(&[&args.file], args.json);
    let options = Options { device_total_bytes: args.device_total, ..Options::default() };
    let explained = Explained::of(Recording::open(&args.file, args.device)?, options).worst_first();
    let settings: Vec<&str> = match args.settings.as_slice() {
        [] => SETTINGS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let answer = |device: &DeviceExplanation| {
        let simulated = || device.simulated(&explained.snapshot, &settings, args.device_total);
        let made = device.what_if.clone().filter(|_| args.settings.is_empty());
        (device.timeline.device, made.unwrap_or_else(simulated))
    };
    let answers: Vec<(i32, WhatIf)> = explained.devices.iter().map(answer).collect();
    Ok(if args.json { all_as_json(&explained.file, &answers) } else { as_text(&answers, args.bytes) })
}

fn as_text(answers: &[(i32, WhatIf)], whole_bytes: bool) -> String {
    let size = |bytes: u64| bytes::shown(bytes, whole_bytes);
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    for (device, what_if) in answers {
        if answers.len() > 1 {
            let _ = write!(out, "device {device}: ");
        }
        let _ = writeln!(out, "{BOLD}{}{RESET}", words::best_setting(what_if, size));
        if what_if.advice() != Advice::NothingRecorded {
            out.push('\n');
            table(&mut out, what_if, size);
        }
    }
    out
}

/// The recorded requests under other settings.
pub(crate) fn table(out: &mut String, what_if: &WhatIf, size: impl Fn(u64) -> String) {
    let _ =
        writeln!(out, "{BOLD}The recorded requests under other settings{RESET} (replayed without timing)");
    if let Some((bytes, from)) = what_if.capacity_bytes.zip(what_if.capacity_from) {
        let _ = writeln!(out, "  {:>12} available to the allocator: {}", size(bytes), from.reason());
    }
    let recorded = std::iter::once(("as recorded".to_owned(), &what_if.recorded));
    let simulated = what_if.rows.iter().enumerate().map(|(nth, row)| match nth {
        0 => ("as recorded, simulated".to_owned(), &row.outcome),
        _ => (row.name(), &row.outcome),
    });
    let packed = std::iter::once((words::packed_policy(what_if), &what_if.packed.outcome));
    for (name, outcome) in recorded.chain(simulated).chain(packed) {
        let fits = if outcome.fits() { "fits" } else { "runs out" };
        let _ = writeln!(
            out,
            "  {:>12} reserved  {fits:<8}  {:>5} {:<7}  {:>6} device calls  {name}",
            size(outcome.peak_reserved_bytes),
            outcome.retries,
            if outcome.retries == 1 { "retry" } else { "retries" },
            outcome.driver_calls()
        );
    }
    let _ = writeln!(out, "  {:>12} in use at the peak: no packing needs less", size(what_if.packed_bytes));
}

fn all_as_json(name: &str, answers: &[(i32, WhatIf)]) -> String {
    let devices =
        answers.iter().map(|(device, what_if)| json!({ "device": device, "what_if": as_json(what_if) }));
    let value = json!({
        "schema": "plimsoll.whatif/1",
        "file": name,
        "devices": devices.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

/// One device's answer.
pub(crate) fn as_json(what_if: &WhatIf) -> Value {
    let outcome = |outcome: &Outcome| {
        json!({
            "peak_allocated_bytes": outcome.peak_allocated_bytes,
            "peak_reserved_bytes": outcome.peak_reserved_bytes,
            "runs_out": outcome.runs_out(),
            "serves_still_needed": outcome.serves_rest,
            "retries": outcome.retries,
            "segment_allocs": outcome.segment_allocs,
            "segment_frees": outcome.segment_frees,
            "maps": outcome.maps,
            "unmaps": outcome.unmaps,
        })
    };
    let rows =
        what_if.rows.iter().map(|row| json!({ "setting": row.setting, "outcome": outcome(&row.outcome) }));
    json!({
        "recorded": outcome(&what_if.recorded),
        "rows": rows.collect::<Vec<_>>(),
        "packed_policy": {
            "outcome": outcome(&what_if.packed.outcome),
            "reserved_ratio": what_if.packed_ratio(),
            "last_step_driver_calls": what_if.packed.last_step_calls,
        },
        "packed_bytes": what_if.packed_bytes,
        "capacity_bytes": what_if.capacity_bytes,
        "capacity_from": what_if.capacity_from.map(|from| from.name()),
        "requests": what_if.requests,
        "advice": {
            "kind": what_if.advice().name(),
            "setting": what_if.advice().row().map(|row| row.setting.as_str()),
            "text": words::best_setting(what_if, |bytes| bytes::shown(bytes, false)),
            "error_bytes": what_if.error_bytes(),
        },
    })
}
