//! Measurements in one table: the median over rounds of each process's median, the ratio to the fastest peer,
//! and the ratio to the floor.

use std::fmt::Write;

use serde_json::json;

use super::floor::{Floor, Work};
use super::measured::Measured;
use crate::output::{BOLD, RESET};

/// The median. Sorts `values`.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

/// One line about this program alone.
pub(crate) fn alone(m: &Measured, work: Work, floor: Floor) -> String {
    format!(
        "{BOLD}{:.2} ms a step{RESET} (median; fastest {:.2}), {:.0} {}/s, {:.0} GFLOP/s, loss {:.4} to {:.4}, \
         {} parameters, at most {:.0} MiB resident\n{}",
        m.ms,
        m.ms_min,
        m.per_s,
        work.unit,
        work.flop / m.ms / 1e6,
        m.loss_first,
        m.loss_last,
        m.params,
        m.hwm_mib,
        floor.text(work)
    )
}

/// A row of the comparison.
struct Row<'a> {
    name: &'a str,
    /// The median over rounds.
    ms: f64,
    lowest: f64,
    highest: f64,
    fastest: f64,
    last: &'a Measured,
}

fn rows(measured: &[(String, Vec<Measured>)]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = measured
        .iter()
        .filter_map(|(name, all)| {
            let mut ms: Vec<f64> = all.iter().map(|m| m.ms).collect();
            let median = median(&mut ms);
            let fastest = all.iter().map(|m| m.ms_min).fold(f64::INFINITY, f64::min);
            Some(Row {
                name,
                ms: median,
                lowest: ms[0],
                highest: ms[ms.len() - 1],
                fastest,
                last: all.last()?,
            })
        })
        .collect();
    rows.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    rows
}

/// Our time divided by the fastest peer's, if both were measured.
fn ratio(rows: &[Row<'_>]) -> Option<(f64, String)> {
    let us = rows.iter().find(|row| row.name == "plimsoll")?;
    let best = rows.iter().find(|row| row.name != "plimsoll")?;
    Some((us.ms / best.ms, best.name.to_owned()))
}

/// The comparison as text.
pub(crate) fn beside(measured: &[(String, Vec<Measured>)], work: Work, floor: Floor) -> String {
    let rows = rows(measured);
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    if let Some((ratio, best)) = ratio(&rows) {
        let _ = writeln!(
            out,
            "{BOLD}plimsoll takes {ratio:.2} times as long as the fastest peer, {best}{RESET}\n"
        );
    }
    let _ = writeln!(
        out,
        "{:<22} {:>8} {:>17} {:>8} {:>9} {:>8} {:>8} {:>17}",
        "peer",
        "ms/step",
        "spread of rounds",
        "fastest",
        format!("{}/s", work.unit),
        "GFLOP/s",
        "MiB",
        "loss"
    );
    for row in &rows {
        let m = row.last;
        let _ = writeln!(
            out,
            "{:<22} {:>8.2} {:>17} {:>8.2} {:>9.0} {:>8.0} {:>8.0} {:>17}",
            row.name,
            row.ms,
            format!("{:.2} - {:.2}", row.lowest, row.highest),
            row.fastest,
            work.items as f64 * 1e3 / row.ms,
            work.flop / row.ms / 1e6,
            m.hwm_mib,
            format!("{:.4} > {:.4}", m.loss_first, m.loss_last)
        );
    }
    let _ = writeln!(
        out,
        "\n{}; medians over {} alternating rounds",
        floor.text(work),
        measured.first().map_or(0, |(_, all)| all.len())
    );
    out
}

/// The comparison as JSON.
pub(crate) fn json(measured: &[(String, Vec<Measured>)], work: Work, floor: Floor) -> String {
    let rows = rows(measured);
    let ratio = ratio(&rows);
    let value = json!({
        "schema": "plimsoll.bench.step/1",
        "ratio_to_fastest_peer": ratio.as_ref().map(|(ratio, _)| ratio),
        "fastest_peer": ratio.as_ref().map(|(_, name)| name),
        "flop": work.flop,
        "bytes": work.bytes,
        "floor_compute_ms": floor.compute_ms(work),
        "floor_memory_ms": floor.memory_ms(work),
        "rows": rows.iter().map(|row| json!({
            "name": row.name,
            "ms": row.ms,
            "ms_lowest_round": row.lowest,
            "ms_highest_round": row.highest,
            "ms_fastest_step": row.fastest,
            "hwm_mib": row.last.hwm_mib,
            "loss_first": row.last.loss_first,
            "loss_last": row.last.loss_last,
        })).collect::<Vec<_>>(),
    });
    format!("{value:#}")
}
