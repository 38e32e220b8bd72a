//! `plimsoll check`: asserts limits on a recording, for CI. The first assertion that fails makes the exit code
//! 1; one that the recording cannot answer makes it 4.
//!
//! `assertion.rs` evaluates assertions; `text.rs`, `json.rs`, `junit.rs` and `github.rs` print them.

mod assertion;
mod github;
mod json;
mod junit;
mod text;

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use plimsoll_trace::explain::Options;

use self::assertion::{Assertion, Verdict, Want};
use crate::bytes;
use crate::categories::Categories;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::limit::Limit;
use crate::sink::Sink;

#[derive(Args)]
#[command(after_help = "Example: plimsoll check --no-oom snapshot.pickle")]
#[command(group = ArgGroup::new("assertion").required(true).multiple(true)
    .args(["peak_below", "reserved_below", "frag_below", "no_oom", "no_leak", "skipped_at_most", "baseline"]))]
pub(crate) struct CheckArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Fail if the allocated peak exceeds this size, such as 22GiB
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    peak_below: Option<u64>,
    /// Fail if the reserved peak exceeds this size
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    reserved_below: Option<u64>,
    /// Fail if cached memory in segments with live blocks is more than this share of the reserved memory; measured
    /// when memory ran out, or else at the peak
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    frag_below: Option<f64>,
    /// Fail if a request failed
    #[arg(long)]
    no_oom: bool,
    /// Fail if memory leaks from step to step
    #[arg(long)]
    no_leak: bool,
    /// Fail if GradScaler skipped more steps than this (`plimsoll run` and plimsoll.record() count them)
    #[arg(long, value_name = "N")]
    skipped_at_most: Option<u64>,
    /// Fail if a peak is higher than in this snapshot
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// How much higher than the baseline a peak may be
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "baseline", default_value = "0")]
    tolerance: f64,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    #[command(flatten)]
    categories: Categories,
    /// Lines of code to print for each failed assertion
    #[arg(long, value_name = "N", default_value_t = 10)]
    rows: usize,
    /// Also write a JUnit XML report, overwriting an existing one
    #[arg(long, value_name = "OUT")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    limit: Limit,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// `2`, `2.5` or `2%`.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("a percentage must be 0 or more, such as 15 or 15%".to_owned()),
    }
}

/// Evaluates every assertion on every device.
pub(crate) fn run(args: &CheckArgs) -> Result<Answer, Failure> {
    let files: Vec<_> = [Some(&args.file), args.baseline.as_ref()].into_iter().flatten().collect();
    args.limit.watch(&files, args.json);
    let open = |file, device| Explained::open(file, device, Options::default(), &args.categories);
    let explained = open(args.file.as_path(), args.device)?;
    let baseline = args.baseline.as_deref().map(|file| open(file, None)).transpose()?;
    let mut of_devices = Vec::new();
    for place in 0..explained.devices.len() {
        let decided = wants(args)
            .into_iter()
            .map(|want| Assertion::of(want, &explained, place, baseline.as_ref(), args.rows));
        of_devices.push(decided.collect::<Result<Vec<_>, Failure>>()?);
    }
    // Devices with a failed assertion come first.
    of_devices.sort_by_key(|assertions| assertions.iter().map(|one| one.verdict).min());
    let assertions: Vec<Assertion> = of_devices.into_iter().flatten().collect();
    let has = |verdict| assertions.iter().any(|one| one.verdict == verdict);
    let exit = match (has(Verdict::Fails), has(Verdict::Incomplete)) {
        (true, _) => Exit::Assertion,
        (false, true) => Exit::OutOfMemory,
        (false, false) => Exit::Done,
    };
    let file = &explained.file;
    if let Some(path) = &args.junit {
        let report = junit::render(file, &assertions);
        Sink::new(path.clone(), true).write(|out| out.write_all(report.as_bytes()))?;
    }
    let text = if args.json {
        json::render(file, &assertions)
    } else {
        let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
        let annotations = if on_github { github::render(file, &assertions) } else { String::new() };
        text::render(&assertions) + &annotations
    };
    Ok(Answer { text, exit })
}

fn wants(args: &CheckArgs) -> Vec<Want> {
    let tolerance = args.baseline.as_ref().map(|_| args.tolerance);
    let all = [
        args.peak_below.map(Want::PeakBelow),
        args.reserved_below.map(Want::ReservedBelow),
        args.frag_below.map(Want::FragmentationBelow),
        args.no_oom.then_some(Want::NoOutOfMemory),
        args.no_leak.then_some(Want::NoLeak),
        args.skipped_at_most.map(Want::SkippedAtMost),
        tolerance.map(Want::PeakAsBaseline),
        tolerance.map(Want::ReservedAsBaseline),
    ];
    all.into_iter().flatten().collect()
}
