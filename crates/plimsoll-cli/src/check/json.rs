//! Assertions for programs: `plimsoll.check/1`.

use serde_json::{Value, json};

use super::assertion::{Assertion, Verdict};
use super::text;

/// All of them, in the order of the options.
pub(super) fn render(file: &str, assertions: &[Assertion]) -> String {
    let rows = assertions.iter().map(|one| {
        let lines = one.lines.iter();
        let lines: Vec<Value> = lines
            .map(|row| json!({ "line": row.line, "category": row.category, "bytes": row.bytes }))
            .collect();
        json!({
            "name": one.want.name(),
            "device": one.device,
            "verdict": text::word(one.verdict),
            "message": one.message,
            "limit": one.limit,
            "actual": one.actual,
            "lines": lines,
        })
    });
    let value = json!({
        "schema": "plimsoll.check/1",
        "file": file,
        "holds": assertions.iter().all(|one| one.verdict == Verdict::Holds),
        "assertions": rows.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}
