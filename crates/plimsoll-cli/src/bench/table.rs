//! Measurements side by side: the median over rounds of each process's median, the ratio to the fastest
//! peer, and how far everybody is from the floor.

use std::fmt::Write;

use serde_json::json;

use super::step::Measured;
use crate::output::{BOLD, RESET};

/// Images in a batch.
const N: f64 = 64.0;
/// Multiply-adds per image of the two convolutions and of the fully connected layers.
const CONV1: f64 = 32.0 * 25.0 * 28.0 * 28.0;
const CONV2: f64 = 64.0 * 800.0 * 10.0 * 10.0;
const FC: f64 = 1600.0 * 120.0 + 120.0 * 84.0 + 84.0 * 10.0;
/// Operations of a step: forward, gradient of the weights, and gradient of every input but the images'; a
/// multiply-add counts as two.
const FLOP: f64 = 2.0 * N * (2.0 * CONV1 + 3.0 * CONV2 + 3.0 * FC);

/// Numbers in what conv1, pool1, conv2 and pool2 give for a batch, and in all weights.
const C1: f64 = N * 32.0 * 784.0;
const P1: f64 = N * 32.0 * 196.0;
const C2: f64 = N * 64.0 * 100.0;
const P2: f64 = N * 64.0 * 25.0;
const WEIGHTS: f64 = 255_230.0;
/// Bytes of a step when each kernel reads its inputs and writes its outputs once. Each convolution's output
/// is written, read and written by relu, read by the pooling; on the way back written by the pooling, read
/// with relu's output and written by relu, and read for weight and bias (conv2: for its input too). The
/// pooled output is written, with an index of a byte, and read three times. Weights are read twice, their
/// gradients written, and the step reads three arrays and writes two.
const BYTES: f64 = 4.0 * (10.0 * C1 + 11.0 * C2 + 4.5 * (P1 + P2) + 8.0 * WEIGHTS);

/// The median; sorts what it is given.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

/// One line about ourselves.
pub(crate) fn alone(m: &Measured) -> String {
    format!(
        "{BOLD}{:.2} ms a step{RESET} (median; fastest {:.2}), {:.0} images/s, {:.0} GFLOP/s, loss {:.4} to {:.4}, \
         {} parameters, at most {:.0} MiB resident",
        m.ms,
        m.ms_min,
        m.per_s,
        FLOP / m.ms / 1e6,
        m.loss_first,
        m.loss_last,
        m.params,
        m.hwm_mib
    )
}

/// A row of the comparison.
struct Row<'a> {
    name: &'a str,
    /// Median over rounds.
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

/// Our time over the fastest other's, where there is one of each.
fn ratio(rows: &[Row<'_>]) -> Option<(f64, String)> {
    let us = rows.iter().find(|row| row.name == "plimsoll")?;
    let best = rows.iter().find(|row| row.name != "plimsoll")?;
    Some((us.ms / best.ms, best.name.to_owned()))
}

/// The comparison in words.
pub(crate) fn beside(measured: &[(String, Vec<Measured>)]) -> String {
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
        "peer", "ms/step", "spread of rounds", "fastest", "images/s", "GFLOP/s", "MiB", "loss"
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
            64e3 / row.ms,
            FLOP / row.ms / 1e6,
            m.hwm_mib,
            format!("{:.4} > {:.4}", m.loss_first, m.loss_last)
        );
    }
    let _ = writeln!(
        out,
        "\nthe floor: {:.2} GFLOP, and {:.0} MB between kernels, a step; medians over {} rounds in turn",
        FLOP / 1e9,
        BYTES / 1e6,
        measured.first().map_or(0, |(_, all)| all.len())
    );
    out
}

/// The comparison for programs.
pub(crate) fn json(measured: &[(String, Vec<Measured>)]) -> String {
    let rows = rows(measured);
    let ratio = ratio(&rows);
    let value = json!({
        "schema": "plimsoll.bench.step/1",
        "ratio_to_fastest_peer": ratio.as_ref().map(|(ratio, _)| ratio),
        "fastest_peer": ratio.as_ref().map(|(_, name)| name),
        "flop": FLOP,
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
