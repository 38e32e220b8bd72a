//! An answer about a text: [`Said`], as lines and as JSON (`plimsoll.message/1`).

use std::fmt::Write;

use serde_json::{Value, json};

use super::next;
use crate::output::{BOLD, RESET};

/// The answer about a text.
pub(super) struct Said {
    /// The kind of text: `message`, `counters` or `profile`.
    pub(super) kind: &'static str,
    /// The first line.
    pub(super) verdict: String,
    /// The lines that follow the verdict.
    pub(super) lines: Vec<String>,
    /// The facts that the text does not contain, the most important first.
    pub(super) unknown: Vec<&'static str>,
    /// Advice.
    pub(super) help: Vec<String>,
    /// Commands, the most useful first.
    pub(super) next: Vec<String>,
    /// The figures.
    pub(super) figures: Value,
}

impl Said {
    pub(super) fn as_text(&self, file: &str) -> String {
        let mut out = format!("{BOLD}{}{RESET}\n", self.verdict);
        // Writing to a `String` cannot fail.
        for line in &self.lines {
            let _ = writeln!(out, "{line}");
        }
        if !self.help.is_empty() {
            let _ = writeln!(out, "\n{BOLD}What would help{RESET}");
            for line in &self.help {
                let _ = writeln!(out, "  {line}");
            }
        }
        if !self.next.is_empty() {
            let _ = writeln!(out, "\n{BOLD}Next{RESET}");
            for line in &self.next {
                let _ = writeln!(out, "  {line}");
            }
            for line in next::to_fill_in(&self.next) {
                let _ = writeln!(out, "  where {line}");
            }
        }
        if !self.unknown.is_empty() {
            let _ = writeln!(out, "\nunknown from {file}: {}", self.unknown.join("; "));
        }
        out
    }

    pub(super) fn as_json(&self, file: &str) -> String {
        let mut value = json!({
            "schema": "plimsoll.message/1",
            "file": file,
            "kind": self.kind,
            "verdict": self.verdict,
            "what_would_help": self.help,
            "next": self.next,
            "to_fill_in": next::to_fill_in(&self.next),
            "unknown": self.unknown,
        });
        if let (Some(all), Some(figures)) = (value.as_object_mut(), self.figures.as_object()) {
            all.extend(figures.clone());
        }
        format!("{value:#}")
    }
}
