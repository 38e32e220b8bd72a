//! What a request to the allocator costs, through the thread-safe handle with statistics on, in the mixes of
//! the oracle's own bench: the same requests in the same order, drawn before the clock starts. Each mix runs
//! twice and the second run counts, then the same with the history on; the whole runs several rounds, and the
//! fastest counts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use plimsoll_alloc::{Allocation, Callers, Config, DeviceMemory, HistoryOptions, Request, SimDriver};
use serde_json::{Value, json};

use super::meter::{Cost, Meter};
use super::mt19937::Mt19937;
use crate::exit::{Exit, Failure};
use crate::output::{self, BOLD, RESET};

const CAPACITY_BYTES: u64 = 200_000_000_000;
/// What the history keeps, as in PyTorch's documentation; without a bound it would measure the system's pages.
const HISTORY_ENTRIES: usize = 100_000;
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
    pub(super) json: bool,
}

/// A mix and its cost.
struct Row {
    /// As the oracle's bench calls it: `pair bytes=512`, `random name=small live=100`.
    name: String,
    /// Of a pair, or of a free and an allocate, in the fastest round.
    plain: Cost,
    /// The same with the history on.
    history: Cost,
    /// PyTorch's nanoseconds without a history, where it was asked.
    theirs_ns: Option<f64>,
}

impl Row {
    /// How many times as long PyTorch takes, and the same if our history is on.
    fn ratios(&self) -> Option<[f64; 2]> {
        self.theirs_ns.map(|theirs| [theirs / self.plain.ns, theirs / self.history.ns])
    }
}

/// Measures; the result is text for stdout.
pub(crate) fn run(args: &AllocatorArgs) -> Result<String, Failure> {
    let mut meter = Meter::new();
    let mut rows = measure(&mut meter)?;
    for round in 1..=args.rounds {
        if round > 1 {
            for (row, again) in rows.iter_mut().zip(measure(&mut meter)?) {
                row.plain = row.plain.min(again.plain);
                row.history = row.history.min(again.history);
            }
        }
        if let Some(oracle) = &args.oracle {
            output::progress(&format!("round {round}/{}: PyTorch", args.rounds));
            ask(oracle, &mut rows)?;
        }
    }
    let why = meter.why_no_instructions();
    Ok(if args.json { as_json(&rows, why.as_deref()) } else { as_text(&rows, why.as_deref()) })
}

fn measure(meter: &mut Meter) -> Result<Vec<Row>, Failure> {
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(CAPACITY_BYTES));
    let mut rows = Vec::new();
    for bytes in PAIR_BYTES {
        let name = format!("pair bytes={bytes}");
        rows.push(row(name, &memory, || pair_cost(meter, &memory, bytes))?);
    }
    for mix in MIXES {
        let (name, requests) = (format!("random name={} live={}", mix.name, mix.live), mix.draw());
        rows.push(row(name, &memory, || mix.cost(meter, &memory, &requests))?);
    }
    Ok(rows)
}

/// One mix without and with the history.
fn row(
    name: String,
    memory: &DeviceMemory,
    mut cost: impl FnMut() -> Result<Cost, Failure>,
) -> Result<Row, Failure> {
    let plain = cost()?;
    let options = HistoryOptions { max_entries: HISTORY_ENTRIES, skip: Vec::new() };
    let start = quanta::Instant::now();
    memory.record_history(options, Callers::AsGiven, Box::new(move || start.elapsed().as_micros() as u64));
    let history = cost();
    memory.stop_history();
    Ok(Row { name, plain, history: history?, theirs_ns: None })
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` wants it")]
fn failed(why: plimsoll_alloc::Error) -> Failure {
    Failure::new(Exit::OutOfMemory, why.to_string())
}

/// Allocates and frees blocks of one size, with one more of it kept alive.
fn pair_cost(meter: &mut Meter, memory: &DeviceMemory, bytes: u64) -> Result<Cost, Failure> {
    let keep = memory.alloc(Request::of(bytes)).map_err(failed)?;
    let mut pairs = || {
        meter.measure(PAIRS, || {
            for _ in 0..PAIRS {
                memory.free(memory.alloc(Request::of(bytes))?);
            }
            Ok(())
        })
    };
    pairs().map_err(failed)?;
    let cost = pairs().map_err(failed)?;
    memory.free(keep);
    Ok(cost)
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

    fn cost(
        &self,
        meter: &mut Meter,
        memory: &DeviceMemory,
        requests: &[(usize, u64)],
    ) -> Result<Cost, Failure> {
        let mut slots: Vec<Option<Allocation>> = (0..self.live).map(|_| None).collect();
        let mut all = || {
            meter.measure(self.requests, || {
                for &(slot, bytes) in requests {
                    if let Some(old) = slots[slot].take() {
                        memory.free(old);
                    }
                    slots[slot] = Some(memory.alloc(Request::of(bytes))?);
                }
                Ok(())
            })
        };
        all().map_err(failed)?;
        let cost = all().map_err(failed)?;
        slots.into_iter().flatten().for_each(|old| memory.free(old));
        memory.empty_cache().map_err(failed)?;
        Ok(cost)
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
    let refused =
        |why: String| Failure::new(Exit::Program, format!("the oracle in {}: {why}", oracle.display()));
    let answer = Command::new(oracle.join("fk.sh"))
        .arg(oracle.join("bench"))
        .env("FAKE_CUDA_TOTAL", CAPACITY_BYTES.to_string())
        .output()
        .map_err(|why| refused(why.to_string()))?;
    if !answer.status.success() {
        return Err(refused(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.stderr))));
    }
    let text = String::from_utf8_lossy(&answer.stdout);
    for row in rows {
        let line = text.lines().find_map(|line| line.strip_prefix(&row.name)?.trim().strip_prefix("ns="));
        let ns = line.and_then(|ns| ns.parse::<f64>().ok());
        let ns = ns.ok_or_else(|| refused(format!("no line `{} ns=…`", row.name)))?;
        row.theirs_ns = Some(row.theirs_ns.map_or(ns, |before| before.min(ns)));
    }
    Ok(())
}

fn as_text(rows: &[Row], why_no_instructions: Option<&str>) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let ratios: Vec<[f64; 2]> = rows.iter().filter_map(Row::ratios).collect();
    if !ratios.is_empty() {
        let spread = |which: usize| {
            let ratios = ratios.iter().map(|ratios| ratios[which]);
            let least = ratios.clone().fold(f64::INFINITY, f64::min);
            format!("{least:.1} to {:.1}", ratios.fold(0.0, f64::max))
        };
        let _ = writeln!(
            out,
            "{BOLD}{} times as fast as PyTorch's allocator{RESET}, {} with history on\n",
            spread(0),
            spread(1)
        );
    }
    let _ = writeln!(
        out,
        "{:<30} {:>8} {:>8} {:>8} {:>6} {:>8} {:>13} {:>8}",
        "mix (ns a request or pair)",
        "plimsoll",
        "history",
        "PyTorch",
        "ratio",
        "history",
        "instructions",
        "history"
    );
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let Row { name, plain, history, theirs_ns } = row;
        let [ratio, history_ratio] =
            row.ratios().map_or([None, None], |[ratio, history]| [Some(ratio), Some(history)]);
        let _ = writeln!(
            out,
            "{name:<30} {:>8.1} {:>8.1} {:>8} {:>6} {:>8} {:>13} {:>8}",
            plain.ns,
            history.ns,
            shown(*theirs_ns, 1),
            shown(ratio, 1),
            shown(history_ratio, 1),
            shown(plain.instructions, 0),
            shown(history.instructions, 0)
        );
    }
    if let Some(why) = why_no_instructions {
        let _ = writeln!(out, "\ninstructions are not available: {why}");
    }
    out
}

fn as_json(rows: &[Row], why_no_instructions: Option<&str>) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "mix": row.name,
                "ns": row.plain.ns,
                "history_ns": row.history.ns,
                "pytorch_ns": row.theirs_ns,
                "ratio": row.ratios().map(|ratios| ratios[0]),
                "history_ratio": row.ratios().map(|ratios| ratios[1]),
                "instructions": row.plain.instructions,
                "history_instructions": row.history.instructions,
            })
        })
        .collect();
    let value = json!({
        "schema": "plimsoll.bench.allocator/2",
        "instructions_unavailable": why_no_instructions,
        "history_entries": HISTORY_ENTRIES,
        "rows": rows,
    });
    format!("{value:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(theirs_ns: Option<f64>, instructions: Option<f64>) -> [Row; 1] {
        let cost = |ns| Cost { ns, instructions };
        [Row { name: "pair bytes=512".to_owned(), plain: cost(100.0), history: cost(160.0), theirs_ns }]
    }

    #[test]
    fn ratios_are_pytorchs_time_over_ours_without_and_with_history() {
        let text = as_text(&rows(Some(400.0), Some(700.0)), None);
        assert!(
            text.contains("4.0 to 4.0 times as fast") && text.contains("2.5 to 2.5 with history"),
            "{text}"
        );
        assert!(text.lines().any(|line| line.ends_with(" 700      700")), "{text}");
        let json: Value = serde_json::from_str(&as_json(&rows(Some(400.0), None), None)).expect("JSON");
        assert_eq!(
            (&json["rows"][0]["ratio"], &json["rows"][0]["history_ratio"]),
            (&json!(4.0), &json!(2.5))
        );
    }

    #[test]
    fn what_could_not_be_measured_is_said() {
        let text = as_text(&rows(None, None), Some("perf_event_open: no"));
        assert!(text.ends_with("\ninstructions are not available: perf_event_open: no\n"), "{text}");
        assert!(!text.contains("times as fast"), "{text}");
        let json: Value = serde_json::from_str(&as_json(&rows(None, None), Some("no"))).expect("JSON");
        assert_eq!(
            (&json["rows"][0]["pytorch_ns"], &json["instructions_unavailable"]),
            (&Value::Null, &json!("no"))
        );
    }
}
