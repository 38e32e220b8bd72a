//! Assertions for programs: `plimsoll.check/1`. The keys of figures contain the unit: `limit_bytes`,
//! `actual_percent`.

use serde_json::{Value, json};

use super::assertion::{Assertion, Verdict};
use super::text;

/// All assertions, in the order of the options.
pub(super) fn render(file: &str, assertions: &[Assertion]) -> String {
    let rows = assertions.iter().map(|one| {
        let lines = one.lines.iter();
        let lines: Vec<Value> = lines
            .map(|row| json!({ "line": row.line, "category": row.category, "bytes": row.bytes }))
            .collect();
        let mut row = json!({
            "name": one.want.name(),
            "device": one.device,
            "verdict": text::word(one.verdict),
            "message": one.message,
            "lines": lines,
        });
        for (what, figure) in [("limit", one.limit), ("actual", one.actual)] {
            row[format!("{what}_{}", one.want.unit())] = figure_of(one.want.unit(), figure);
        }
        row
    });
    let value = json!({
        "schema": "plimsoll.check/1",
        "file": file,
        "holds": assertions.iter().all(|one| one.verdict == Verdict::Holds),
        "assertions": rows.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

/// Percentages have decimals; counts do not.
fn figure_of(unit: &str, figure: f64) -> Value {
    if unit == "percent" { figure.into() } else { (figure as u64).into() }
}
