//! What the program read from the device and what became of it: [`Read`], as `reads.py` reports it; and, in sentences, what
//! of the program was not run and which files were not written.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::report::Report;

/// Reads at one line, by one way there.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Read {
    /// The innermost line outside packages; none in a backward pass.
    file: Option<String>,
    line: Option<u64>,
    /// That line's source.
    #[serde(default)]
    text: String,
    /// The line that read, where it is a package's.
    via: Option<Place>,
    /// PyTorch's operator that read, as `nonzero`.
    operator: Option<String>,
    fate: Fate,
    /// Where it decides.
    #[serde(default)]
    sinks: Vec<Place>,
    count: u64,
    /// What `--assume` gave it.
    assumed: Option<Value>,
    /// Whether it rests on an even share among experts.
    #[serde(default)]
    even: bool,
    /// Whether transformers reads it to end a generation.
    #[serde(default)]
    generates: bool,
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) line: u64,
    #[serde(default)]
    pub(super) text: String,
}

/// What became of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fate {
    /// It was printed, logged, stored or checked.
    Shown,
    /// It decided a size.
    Size,
    /// It decided a branch.
    Branch,
    /// There is no source to tell by.
    Unknown,
}

impl Fate {
    fn name(self) -> &'static str {
        match self {
            Fate::Shown => "shown",
            Fate::Size => "size",
            Fate::Branch => "branch",
            Fate::Unknown => "unknown",
        }
    }
}

impl Read {
    /// Whether what was asked for may depend on the value.
    pub(super) fn decides(&self) -> bool {
        self.fate != Fate::Shown
    }

    /// The line, as `train.py:5`, where an operator of PyTorch's selects by values, which leaves nothing here.
    pub(super) fn empty_selection(&self) -> Option<String> {
        let is_empty = self.operator.is_some() && self.fate == Fate::Size && self.assumed.is_none();
        let (file, line) = self.file.as_ref().zip(self.line).filter(|_| is_empty)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{name}:{line}"))
    }

    /// What it decides, where, and what it was taken to be.
    fn sentence(&self) -> String {
        let decides = match self.fate {
            Fate::Shown => "decides nothing",
            Fate::Size => "decides a size",
            Fate::Branch => "decides a branch",
            Fate::Unknown => "may decide a size or a branch (its source is not known)",
        };
        let operator = self.operator.as_deref().filter(|it| !is_plain(it));
        let operator = operator.map_or_else(String::new, |it| format!(" in `{it}`"));
        let sinks =
            self.sinks.iter().filter(|it| Some(&it.file) != self.file.as_ref() || Some(it.line) != self.line);
        let sinks = sinks
            .filter(|it| self.via.as_ref().is_none_or(|via| (&via.file, via.line) != (&it.file, it.line)));
        let at: Vec<String> = sinks.take(3).map(|it| format!("{}:{}", short(&it.file), it.line)).collect();
        let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
        let via = self
            .via
            .as_ref()
            .map_or_else(String::new, |via| format!(", read at {}:{}", short(&via.file), via.line));
        let taken = match &self.assumed {
            _ if self.generates => "; generation is taken to run to its greatest length".to_owned(),
            Some(value) => {
                format!("; assumed {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            }
            None if self.even => "; experts are taken to get even shares".to_owned(),
            None => String::new(),
        };
        format!("{decides}{operator}{at}{via}{taken}")
    }

    fn json(&self) -> Value {
        json!({
            "file": self.file,
            "line": self.line,
            "source": self.text,
            "read_at": self.via.as_ref().map(Place::json),
            "operator": self.operator,
            "decides": self.decides(),
            "fate": self.fate.name(),
            "where": self.sinks.iter().map(Place::json).collect::<Vec<_>>(),
            "count": self.count,
            "assumed": self.assumed,
            "even_share": self.even,
        })
    }
}

impl Place {
    fn json(&self) -> Value {
        json!({ "file": self.file, "line": self.line, "source": self.text })
    }
}

/// Operators that only hand a value over.
fn is_plain(operator: &str) -> bool {
    operator.starts_with("to_")
        || ["item", "_local_scalar_dense", "copy_", "_to_copy", "is_nonzero", "cpu", "clone"]
            .contains(&operator)
}

/// The end of a path: inside packages from the package on, else the file.
fn short(file: &str) -> &str {
    let package = file.split_once("-packages/").map(|(_, rest)| rest);
    package.or_else(|| file.rsplit('/').next()).unwrap_or(file)
}

/// The reads that decide, as rows of a line, its source and what it decides. Of equal lines one, with all that it decides.
pub(super) fn rows(reports: &[Report]) -> Vec<[String; 3]> {
    let mut rows: BTreeMap<(String, u64, String), Vec<String>> = BTreeMap::new();
    for read in reports.iter().flat_map(|report| &report.reads).filter(|read| read.decides()) {
        let (file, line) = match (&read.file, read.line, &read.via) {
            (Some(file), Some(line), _) => (short(file).to_owned(), line),
            (_, _, Some(via)) => (short(&via.file).to_owned(), via.line),
            _ => ("the backward pass".to_owned(), 0),
        };
        let said = rows.entry((file, line, read.text.clone())).or_default();
        let sentence = read.sentence();
        if !said.contains(&sentence) {
            said.push(sentence);
        }
    }
    let place = |file: String, line| if line == 0 { file } else { format!("{file}:{line}") };
    rows.into_iter().map(|((file, line, text), said)| [place(file, line), text, said.join("; ")]).collect()
}

/// All reads, for programs.
pub(super) fn json(reports: &[Report]) -> Value {
    reports.iter().flat_map(|report| &report.reads).map(Read::json).collect::<Vec<_>>().into()
}

/// What of the program was not run; each a sentence without its end.
pub(super) fn unseen(reports: &[Report]) -> Vec<String> {
    let mut said = Vec::new();
    let mut say = |sentence: String| {
        if !said.contains(&sentence) {
            said.push(sentence);
        }
    };
    for report in reports.iter().filter(|report| report.cut) {
        let steps = counted(report.steps);
        if report.went_on {
            let end = if report.ended { "" } else { "; it was ended before it came to its end" };
            say(format!(
                "the rest of the training: its loader was ended after {steps}, and what comes after the loop was run{end}"
            ));
        } else {
            say(format!(
                "what comes after {steps}: the program was ended there (`--whole` runs it to its end)"
            ));
        }
        for place in &report.unseen {
            say(format!("{}:{}  {}", short(&place.file), place.line, place.text));
        }
        if let Some(error) = &report.after_error {
            let place = error.file.as_ref().zip(error.line);
            let place = place.map_or_else(String::new, |(file, line)| format!(" at {}:{line}", short(file)));
            let text = error.text.lines().next().unwrap_or_default();
            say(format!(
                "what comes after a failure past the loop that was cut short: {}{place}: {text}",
                error.kind
            ));
        }
    }
    said
}

/// `3 steps`, `1 step`.
pub(super) fn counted(steps: u64) -> String {
    if steps == 1 { "the first step".to_owned() } else { format!("the first {steps} steps") }
}

/// Files that the program meant to write or remove and that stay as they were, each with what was not done.
pub(super) fn kept_files(reports: &[Report]) -> Vec<(String, String)> {
    let all = reports.iter().flat_map(|report| report.saves.iter().cloned());
    all.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

/// What of `--assume` could not be applied.
pub(super) fn problems(reports: &[Report]) -> Vec<String> {
    let all = reports.iter().flat_map(|report| report.problems.iter().cloned());
    all.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}
