//! The cost of reading a memory snapshot: time, and peak memory. With `--scale`, it writes a snapshot of a
//! longer run instead (`scale.rs`), so that anyone can make a file of any size from a small one.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use plimsoll::memory;
use plimsoll_trace::snapshot::Snapshot;
use plimsoll_trace::{Sharing, SnapshotError, input, output};
use serde_json::json;

use super::scale;
use crate::exit::{Exit, Failure};
use crate::output::{BOLD, RESET};

#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// A snapshot from torch.cuda.memory._dump_snapshot, or as JSON; plain, gzip or zstd
    file: PathBuf,
    /// Instead of measuring, write a recording N times as long to --out; to measure it, run the command again with that file
    #[arg(long, value_name = "N", requires = "out", value_parser = clap::value_parser!(u32).range(1..))]
    scale: Option<u32>,
    /// The file for the longer recording
    #[arg(long, value_name = "FILE", requires = "scale")]
    out: Option<PathBuf>,
    /// How many times to read the file; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Measures how fast the snapshot is read or, with `--scale`, writes a longer one. Returns the text for stdout.
pub(crate) fn run(args: &SnapshotArgs) -> Result<String, Failure> {
    match (args.scale, &args.out) {
        (Some(times), Some(out)) => lengthen(&args.file, times, out, args.json),
        _ => measure(args),
    }
}

fn unreadable(path: &Path, why: &SnapshotError) -> Failure {
    Failure::new(Exit::Unreadable, format!("{}: {why}", path.display()))
}

fn open(path: &Path) -> Result<Snapshot, Failure> {
    input::open(path).map_err(|why| unreadable(path, &why))
}

fn bytes_of(path: &Path) -> Result<u64, Failure> {
    fs::metadata(path).map(|file| file.len()).map_err(|why| unreadable(path, &why.into()))
}

fn lengthen(path: &Path, times: u32, out: &Path, as_json: bool) -> Result<String, Failure> {
    let mut snapshot = open(path)?;
    scale::lengthen(&mut snapshot, times);
    output::save(&snapshot, out, Sharing::Neighbours).map_err(|why| unreadable(out, &why.into()))?;
    let (bytes, events) = (bytes_of(out)?, events(&snapshot));
    if as_json {
        let value = json!({ "schema": "plimsoll.bench.snapshot.scale/1", "bytes": bytes, "events": events });
        return Ok(format!("{value:#}"));
    }
    Ok(format!("{}: {bytes} bytes, {events} events", out.display()))
}

fn events(snapshot: &Snapshot) -> usize {
    snapshot.traces.iter().map(Vec::len).sum()
}

fn measure(args: &SnapshotArgs) -> Result<String, Failure> {
    let bytes = bytes_of(&args.file)?;
    let (mut seconds, mut counted) = (f64::INFINITY, 0);
    let mut peak_bytes = None;
    for _ in 0..args.rounds {
        let start = Instant::now();
        let snapshot = open(&args.file)?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
        counted = events(&snapshot);
        // The first reading counts, because later ones reuse its memory.
        peak_bytes = peak_bytes.or_else(memory::max_process_resident_bytes);
    }
    let rate = bytes as f64 / 1e6 / seconds;
    if args.json {
        let value = json!({
            "schema": "plimsoll.bench.snapshot/1", "bytes": bytes, "events": counted, "seconds": seconds,
            "mb_per_s": rate, "peak_resident_bytes": peak_bytes,
        });
        return Ok(format!("{value:#}"));
    }
    let mut out = format!("{BOLD}{rate:.0} MB/s{RESET}\n\n");
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{:>14} bytes, {counted} events", bytes);
    let _ = writeln!(out, "{seconds:>14.3} seconds, the fastest of {}", args.rounds);
    if let Some(peak) = peak_bytes {
        let _ = writeln!(
            out,
            "{peak:>14} bytes of peak resident memory, {:.2} times the file",
            peak as f64 / bytes as f64
        );
    }
    Ok(out)
}
