//! Assertions for people: one per line, and below each failed one the lines of code that are responsible. Devices
//! with a failed assertion come first.

use std::fmt::Write;

use plimsoll_alloc::Bytes;

use super::assertion::{Assertion, Verdict, Want};
use crate::output::{BOLD, RESET};

/// All assertions, in the order of the options.
pub(super) fn render(assertions: &[Assertion]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    for one in assertions {
        let (bold, reset) = if one.verdict == Verdict::Holds { ("", "") } else { (BOLD, RESET) };
        let _ = writeln!(out, "{bold}{}{reset}: {}", word(one.verdict), one.message);
        out.push_str(&lines(one));
    }
    out
}

/// A verdict in one word.
pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "ok",
        Verdict::Fails => "failed",
        Verdict::Incomplete => "incomplete",
    }
}

/// The lines of code that are responsible, with their bytes.
pub(super) fn lines(one: &Assertion) -> String {
    let mut out = String::new();
    if one.lines.is_empty() {
        return out;
    }
    let (what, plus) = match one.want {
        Want::PeakBelow(_) => ("the largest lines at the peak", ""),
        Want::ReservedBelow(_) => ("the largest lines at the reserved peak", ""),
        Want::FragmentationBelow(_) | Want::SkippedAtMost(_) => ("the largest lines at that moment", ""),
        Want::NoOutOfMemory => ("the largest lines at the last failure", ""),
        Want::NoLeak => ("memory kept per step, by line", "+"),
        Want::PeakAsBaseline(_) | Want::ReservedAsBaseline(_) => ("the lines that grew the most", "+"),
    };
    let _ = writeln!(out, "  {what}:");
    for row in &one.lines {
        let size = format!("{plus}{}", Bytes(row.bytes));
        let category = row.category.as_ref().map_or_else(String::new, |category| format!("  {category}"));
        let _ = writeln!(out, "  {size:>12}  {}{category}", row.line);
    }
    out
}
