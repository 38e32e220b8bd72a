//! Measures the cost of a request to the allocator, through the thread-safe handle with statistics enabled,
//! for the mixes of requests in PyTorch's own allocator benchmark, the oracle (`mixes.rs`). Each mix runs
//! twice, and the second run counts; then both runs are repeated with history recording enabled. All of this
//! is repeated for several rounds, and the fastest round counts. Instructions are counted in the same runs
//! (`meter.rs`) or, if that is impossible, afterwards (`callgrind.rs`).

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::{Value, json};

use super::callgrind;
use super::meter::{Cost, Meter};
use super::mixes::{CAPACITY_BYTES, HISTORY_ENTRIES, History, MIXES, Mix};
use crate::exit::{Exit, Failure};
use crate::output::{self, BOLD, RESET};

#[derive(Args)]
pub(crate) struct AllocatorArgs {
    /// Also measure PyTorch's own allocator, in alternating rounds; DIR contains its compiled benchmark (`fk.sh` and `bench`)
    #[arg(long, value_name = "DIR")]
    oracle: Option<PathBuf>,
    /// Measure only this mix, named as in the table
    #[arg(long, value_name = "NAME")]
    mix: Option<Mix>,
    /// Run at most this many requests of each mix, as a quick test
    #[arg(long, hide = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A mix and its cost.
struct Row {
    /// The name in the oracle's bench: `pair bytes=512`, `random name=small live=100`.
    name: String,
    /// The cost of a pair, or of a free and an allocation, in the fastest round.
    plain: Cost,
    /// The cost without the handle's lock.
    without_lock: Cost,
    /// The cost with history recording enabled.
    history: Cost,
    /// PyTorch's nanoseconds without a history, if it was measured.
    theirs_ns: Option<f64>,
}

impl Row {
    /// PyTorch's time divided by ours, without and with our history.
    fn ratios(&self) -> Option<[f64; 2]> {
        self.theirs_ns.map(|theirs| [theirs / self.plain.ns, theirs / self.history.ns])
    }
}

/// How the instructions were counted.
#[derive(Clone, Copy)]
enum Source {
    Counter,
    Callgrind,
}

/// Measures. Returns the text for stdout.
pub(crate) fn run(args: &AllocatorArgs) -> Result<String, Failure> {
    let mixes = args.mix.map_or_else(|| MIXES.to_vec(), |mix| vec![mix]);
    let mixes: Vec<Mix> =
        mixes.into_iter().map(|mix| mix.at_most(args.requests.unwrap_or(u32::MAX))).collect();
    let mut meter = Meter::new();
    let mut rows = measure(&mut meter, &mixes)?;
    for round in 1..=args.rounds {
        if round > 1 {
            for (row, again) in rows.iter_mut().zip(measure(&mut meter, &mixes)?) {
                row.plain = row.plain.min(again.plain);
                row.without_lock = row.without_lock.min(again.without_lock);
                row.history = row.history.min(again.history);
            }
        }
        if let Some(oracle) = &args.oracle {
            output::progress(&format!("round {round}/{}: PyTorch", args.rounds));
            ask(oracle, &mut rows)?;
        }
    }
    let source = match meter.why_no_instructions() {
        None => Ok(Source::Counter),
        Some(no_counter) => match count(&mut rows, &mixes) {
            Ok(()) => Ok(Source::Callgrind),
            Err(why) => Err(format!("{no_counter}; {why}")),
        },
    };
    Ok(if args.json { as_json(&rows, &source) } else { as_text(&rows, &source) })
}

fn measure(meter: &mut Meter, mixes: &[Mix]) -> Result<Vec<Row>, Failure> {
    let memory = Mix::device();
    let mut unshared = Mix::unshared();
    let failed = |why: plimsoll_alloc::Error| Failure::new(Exit::OutOfMemory, why.to_string());
    let row = |mix: &Mix| {
        let plain = mix.cost(meter, &memory, History::Off).map_err(failed)?;
        let without_lock = mix.cost_without_lock(meter, &mut unshared).map_err(failed)?;
        let history = mix.cost(meter, &memory, History::On).map_err(failed)?;
        Ok(Row { name: mix.name(), plain, without_lock, history, theirs_ns: None })
    };
    mixes.iter().map(row).collect()
}

/// Has callgrind count the instructions of all mixes, or says why it cannot.
fn count(rows: &mut [Row], mixes: &[Mix]) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|why| format!("this program: {why}"))?;
    let both = |mix: &Mix| {
        output::progress(&format!("callgrind: {}", mix.name()));
        let mix = mix.at_most(callgrind::REQUESTS);
        let of = |history| callgrind::instructions(&program, mix, history);
        Ok([of(History::Off)?, of(History::On)?])
    };
    let all = mixes.iter().map(both).collect::<Result<Vec<_>, String>>()?;
    for (row, [plain, history]) in rows.iter_mut().zip(all) {
        (row.plain.instructions, row.history.instructions) = (Some(plain), Some(history));
    }
    Ok(())
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

fn as_text(rows: &[Row], source: &Result<Source, String>) -> String {
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
        "{:<30} {:>8} {:>8} {:>8} {:>8} {:>6} {:>8} {:>13} {:>8}",
        "mix (ns a request or pair)",
        "plimsoll",
        "no lock",
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
        let Row { name, plain, without_lock, history, theirs_ns } = row;
        let [ratio, history_ratio] =
            row.ratios().map_or([None, None], |[ratio, history]| [Some(ratio), Some(history)]);
        let _ = writeln!(
            out,
            "{name:<30} {:>8.1} {:>8.1} {:>8.1} {:>8} {:>6} {:>8} {:>13} {:>8}",
            plain.ns,
            without_lock.ns,
            history.ns,
            shown(*theirs_ns, 1),
            shown(ratio, 1),
            shown(history_ratio, 1),
            shown(plain.instructions, 0),
            shown(history.instructions, 0)
        );
    }
    let _ = match source {
        Ok(Source::Counter) => writeln!(out, "\ninstructions: counted by the processor"),
        Ok(Source::Callgrind) => {
            writeln!(
                out,
                "\ninstructions: counted by callgrind, in separate runs of up to {} requests",
                callgrind::REQUESTS
            )
        }
        Err(why) => writeln!(out, "\ninstructions are not available: {why}"),
    };
    out
}

fn as_json(rows: &[Row], source: &Result<Source, String>) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "mix": row.name,
                "ns": row.plain.ns,
                "without_lock_ns": row.without_lock.ns,
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
        "instructions_source": source.as_ref().ok().map(|source| match source {
            Source::Counter => "counter",
            Source::Callgrind => "callgrind",
        }),
        "instructions_unavailable": source.as_ref().err(),
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
        let (plain, without_lock, history) = (cost(100.0), cost(90.0), cost(160.0));
        [Row { name: "pair bytes=512".to_owned(), plain, without_lock, history, theirs_ns }]
    }

    #[test]
    fn ratios_are_pytorchs_time_over_ours_without_and_with_history() {
        let text = as_text(&rows(Some(400.0), Some(700.0)), &Ok(Source::Counter));
        assert!(
            text.contains("4.0 to 4.0 times as fast") && text.contains("2.5 to 2.5 with history"),
            "{text}"
        );
        assert!(text.lines().any(|line| line.ends_with(" 700      700")), "{text}");
        let json: Value =
            serde_json::from_str(&as_json(&rows(Some(400.0), None), &Ok(Source::Counter))).expect("JSON");
        assert_eq!(
            (&json["rows"][0]["ratio"], &json["rows"][0]["history_ratio"]),
            (&json!(4.0), &json!(2.5))
        );
    }

    #[test]
    fn who_counted_instructions_is_said() {
        for (source, line, word) in [
            (Source::Counter, "\ninstructions: counted by the processor\n", "counter"),
            (Source::Callgrind, "\ninstructions: counted by callgrind, in separate runs of", "callgrind"),
        ] {
            let (rows, source) = (rows(None, Some(700.0)), Ok(source));
            assert!(as_text(&rows, &source).contains(line), "{}", as_text(&rows, &source));
            let json: Value = serde_json::from_str(&as_json(&rows, &source)).expect("JSON");
            assert_eq!(json["instructions_source"], word);
        }
    }

    #[test]
    fn what_could_not_be_measured_is_said() {
        let text = as_text(&rows(None, None), &Err("perf_event_open: no".to_owned()));
        assert!(text.ends_with("\ninstructions are not available: perf_event_open: no\n"), "{text}");
        assert!(!text.contains("times as fast"), "{text}");
        let json: Value =
            serde_json::from_str(&as_json(&rows(None, None), &Err("no".to_owned()))).expect("JSON");
        assert_eq!(
            (&json["rows"][0]["pytorch_ns"], &json["instructions_unavailable"]),
            (&Value::Null, &json!("no"))
        );
    }
}
