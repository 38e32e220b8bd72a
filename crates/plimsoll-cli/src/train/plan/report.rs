//! A plan as text and as JSON.

use std::fmt::Write;

use plimsoll::Bytes;
use plimsoll::fit::Numbers;
use plimsoll_trace::render::words::counted;
use serde_json::{Value, json};

use super::super::job::Job;
use super::super::json::pretty;
use super::super::progress;
use super::{Goal, Plan, Row, Wish};
use crate::output::{BOLD, RESET};

/// The schema of a plan. Changes of meaning raise the version; new fields do not.
const SCHEMA: &str = "plimsoll.train.plan/1";

pub(super) fn text(wish: Wish<'_>, plan: &Plan, job: &Job) -> String {
    let (gpus, bound, rows) = (wish.gpus, wish.bound(), &plan.rows);
    let (best, unit) = (&rows[0], job.task.unit());
    let rate = |row: &Row| {
        progress::rate((row.batch_size * unit.per_sample as usize) as f64 / row.takes.seconds, unit)
    };
    let each = counted(gpus.count as u64, "GPU");
    let name = gpus.gpu.name.trim_start_matches("sim:");
    let mut out = if best.fits {
        format!(
            "{BOLD}{}{}: about {:.1} ms a step, {}, {} of {} on each of {each} ({name}), numbers {}{RESET}\nNext: {}\n",
            if wish.goal == Goal::Batch { "largest batch: " } else { "" },
            best.shown(),
            best.takes.seconds * 1e3,
            rate(best),
            Bytes(best.total_bytes()),
            Bytes(bound),
            best.numbers.name(),
            best.command(gpus)
        )
    } else {
        let others = match wish.numbers {
            Numbers::Changed => "",
            Numbers::Rounding => ", or --numbers changed",
            Numbers::Identical => ", or --numbers rounding",
        };
        format!(
            "{BOLD}does not fit: at least {} on each of {each} ({name}), {} more than {}, with {}{RESET}\nTry a smaller --batch-size, or more GPUs{others}\n",
            Bytes(best.total_bytes()),
            Bytes(best.total_bytes() - bound),
            Bytes(bound),
            best.shown()
        )
    };
    // Writing to a `String` cannot fail.
    for line in best.in_rust.iter().filter(|_| best.fits) {
        let _ = writeln!(out, "In Rust: {line}");
    }
    let width = rows.iter().map(|row| row.shown().len()).max().unwrap_or(0).max(46);
    let _ = writeln!(
        out,
        "\n{:<width$} {:>10} {:>11} {:>11} {:>11}  numbers",
        "", "a step", "allocated", "reserved", "with NCCL"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<width$} {:>7.1} ms {:>11} {:>11} {:>11}  {}{}",
            row.shown(),
            row.takes.seconds * 1e3,
            Bytes(row.takes.allocated_bytes).to_string(),
            Bytes(row.takes.reserved_bytes).to_string(),
            Bytes(row.total_bytes()).to_string(),
            row.numbers.name(),
            if row.fits { "" } else { ", does not fit" }
        );
    }
    out.push_str("\nEach row was simulated. Times are estimates for hosts that keep up with their GPUs.\n");
    if !plan.tried.is_empty() {
        let sets = counted(plan.tried.len() as u64, "set");
        let _ = writeln!(out, "Tried {sets} of techniques; --json lists all.");
    }
    out
}

pub(super) fn json(wish: Wish<'_>, plan: &Plan, job: &Job) -> String {
    let (gpus, best) = (wish.gpus, &plan.rows[0]);
    let all = |rows: &[Row]| rows.iter().map(|row| row.json(gpus)).collect::<Vec<Value>>();
    let fields = json!({
        "schema": SCHEMA,
        "verdict": if best.fits { "fits" } else { "out of memory" },
        "gpus": gpus.count,
        "gpu": gpus.gpu.name.trim_start_matches("sim:"),
        "limit_bytes": wish.bound(),
        "batch_size": if wish.goal == Goal::Batch { best.batch_size } else { job.batch_size },
        "rows": all(&plan.rows),
        "tried": all(&plan.tried),
    });
    pretty(&fields)
}
