//! What a request to the allocator costs, through the thread-safe handle with statistics on, in the mixes of
//! the oracle's own bench: the same requests in the same order, drawn before the clock starts. Each mix runs
//! twice and the second run counts; the whole runs several rounds, and the fastest counts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use plimsoll_alloc::{Allocation, Config, DeviceMemory, Request, SimDriver};
use serde_json::json;

use super::mt19937::Mt19937;
use crate::exit::{Exit, Failure};
use crate::output::{self, BOLD, RESET};

const CAPACITY_BYTES: u64 = 200_000_000_000;
const PAIRS: u32 = 2_000_000;
const PAIR_BYTES: [u64; 3] = [512, 65_536, 4 << 20];
const MIXES: [Mix; 4] = [
    Mix { name: "small", most_bytes: 1 << 20, live: 100, requests: 1_000_000 },
    Mix { name: "small", most_bytes: 1 << 20, live: 10_000, requests: 1_000_000 },
    Mix { name: "mixed256", most_bytes: 256 << 20, live: 200, requests: 1_000_000 },
    Mix { name: "mixed64", most_bytes: 64 << 20, live: 2000, requests: 500_000 },
];

#[derive(Args)]
pub(crate) struct AllocatorArgs {
    /// A built oracle (a folder with `fk.sh` and `bench`), to take turns with PyTorch's own allocator
    #[arg(long, value_name = "DIR")]
    oracle: Option<PathBuf>,
    /// How often each takes its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The result as JSON
    #[arg(long)]
    json: bool,
}

/// A mix and its cost.
struct Row {
    /// As the oracle's bench calls it: `pair bytes=512`, `random name=small live=100`.
    name: String,
    /// Nanoseconds per pair, or per free and allocate, in the fastest round.
    ns: f64,
    /// PyTorch's, where it was asked.
    theirs_ns: Option<f64>,
}

/// Measures; the result is text for stdout.
pub(crate) fn run(args: &AllocatorArgs) -> Result<String, Failure> {
    let mut rows = measure()?;
    for round in 1..=args.rounds {
        if round > 1 {
            let again = measure()?;
            rows.iter_mut().zip(again).for_each(|(row, again)| row.ns = row.ns.min(again.ns));
        }
        if let Some(oracle) = &args.oracle {
            output::progress(&format!("round {round}/{}: PyTorch", args.rounds));
            ask(oracle, &mut rows)?;
        }
    }
    Ok(if args.json { as_json(&rows) } else { as_text(&rows) })
}

fn measure() -> Result<Vec<Row>, Failure> {
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(CAPACITY_BYTES));
    let mut rows = Vec::new();
    for bytes in PAIR_BYTES {
        rows.push(Row { name: format!("pair bytes={bytes}"), ns: pair_ns(&memory, bytes)?, theirs_ns: None });
    }
    for mix in MIXES {
        let name = format!("random name={} live={}", mix.name, mix.live);
        rows.push(Row { name, ns: mix.ns(&memory)?, theirs_ns: None });
    }
    Ok(rows)
}

fn alloc(memory: &DeviceMemory, bytes: u64) -> Result<Allocation, Failure> {
    memory.alloc(Request::of(bytes)).map_err(|why| Failure::new(Exit::OutOfMemory, why.to_string()))
}

/// Allocates and frees blocks of one size, with one more of it kept alive.
fn pair_ns(memory: &DeviceMemory, bytes: u64) -> Result<f64, Failure> {
    let keep = alloc(memory, bytes)?;
    let mut ns = 0.0;
    for _ in 0..2 {
        let start = Instant::now();
        for _ in 0..PAIRS {
            memory.free(alloc(memory, bytes)?);
        }
        ns = start.elapsed().as_nanos() as f64 / f64::from(PAIRS);
    }
    memory.free(keep);
    Ok(ns)
}

/// Again and again: a random slot, whose block is freed, and a new one of log-uniform size.
struct Mix {
    name: &'static str,
    most_bytes: u64,
    live: u64,
    requests: u32,
}

impl Mix {
    const LEAST_BYTES: f64 = 512.0;

    fn ns(&self, memory: &DeviceMemory) -> Result<f64, Failure> {
        let requests = self.draw();
        let mut slots: Vec<Option<Allocation>> = (0..self.live).map(|_| None).collect();
        let mut ns = 0.0;
        for _ in 0..2 {
            let start = Instant::now();
            for &(slot, bytes) in &requests {
                if let Some(old) = slots[slot].take() {
                    memory.free(old);
                }
                slots[slot] = Some(alloc(memory, bytes)?);
            }
            ns = start.elapsed().as_nanos() as f64 / f64::from(self.requests);
        }
        slots.into_iter().flatten().for_each(|old| memory.free(old));
        memory.empty_cache().map_err(|why| Failure::new(Exit::OutOfMemory, why.to_string()))?;
        Ok(ns)
    }

    /// The slot and the size of each request.
    fn draw(&self) -> Vec<(usize, u64)> {
        let mut random = Mt19937::new(1);
        let range = self.most_bytes as f64 / Self::LEAST_BYTES;
        let mut draw = || {
            let slot = (random.next() % self.live) as usize;
            let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            (slot, (Self::LEAST_BYTES * range.powf(unit)) as u64)
        };
        (0..self.requests).map(|_| draw()).collect()
    }
}

/// Runs PyTorch's bench on the oracle and keeps each mix's fastest round.
fn ask(oracle: &Path, rows: &mut [Row]) -> Result<(), Failure> {
    let failed =
        |why: String| Failure::new(Exit::Program, format!("the oracle in {}: {why}", oracle.display()));
    let answer = Command::new(oracle.join("fk.sh"))
        .arg(oracle.join("bench"))
        .env("FAKE_CUDA_TOTAL", CAPACITY_BYTES.to_string())
        .output()
        .map_err(|why| failed(why.to_string()))?;
    if !answer.status.success() {
        return Err(failed(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.stderr))));
    }
    let text = String::from_utf8_lossy(&answer.stdout);
    for row in rows {
        let line = text.lines().find_map(|line| line.strip_prefix(&row.name)?.trim().strip_prefix("ns="));
        let ns = line.and_then(|ns| ns.parse::<f64>().ok());
        let ns = ns.ok_or_else(|| failed(format!("no line `{} ns=…`", row.name)))?;
        row.theirs_ns = Some(row.theirs_ns.map_or(ns, |before| before.min(ns)));
    }
    Ok(())
}

fn as_text(rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let ratios = rows.iter().filter_map(|row| row.theirs_ns.map(|theirs| theirs / row.ns));
    let least = ratios.clone().fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        let most = ratios.fold(0.0, f64::max);
        let _ = writeln!(out, "{BOLD}{least:.1} to {most:.1} times as fast as PyTorch's allocator{RESET}\n");
    }
    let _ = writeln!(
        out,
        "{:<30} {:>8} {:>12} {:>7}",
        "mix (ns a request or pair)", "plimsoll", "PyTorch", "ratio"
    );
    for Row { name, ns, theirs_ns } in rows {
        let theirs = theirs_ns.map_or_else(String::new, |theirs| format!("{theirs:.1}"));
        let ratio = theirs_ns.map_or_else(String::new, |theirs| format!("{:.1}", theirs / ns));
        let _ = writeln!(out, "{name:<30} {ns:>8.1} {theirs:>12} {ratio:>7}");
    }
    out
}

fn as_json(rows: &[Row]) -> String {
    let rows = rows.iter().map(|Row { name, ns, theirs_ns }| {
        json!({ "mix": name, "ns": ns, "pytorch_ns": theirs_ns, "ratio": theirs_ns.map(|theirs| theirs / ns) })
    });
    let value = json!({ "schema": "plimsoll.bench.allocator/1", "rows": rows.collect::<Vec<_>>() });
    format!("{value:#}")
}
