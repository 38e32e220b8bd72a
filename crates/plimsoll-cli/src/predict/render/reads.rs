//! Sentences about values that the program read from the device, and about the parts of the program that did not run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::protocol::{Fate, Place, Read, Report};

/// A sentence about a value: the lines where it decides something, and the assumed value.
fn sentence(read: &Read) -> String {
    let decides = match read.fate {
        Fate::Shown => "decides nothing",
        Fate::Size => "decides a size",
        Fate::Branch => "decides a branch",
        Fate::Unknown => "may decide a size or a branch (no source code)",
    };
    let operator = read.operator.as_deref().filter(|it| !is_plain(it));
    let operator = operator.map_or_else(String::new, |it| format!(" in `{it}`"));
    let sinks =
        read.sinks.iter().filter(|it| Some(&it.file) != read.file.as_ref() || Some(it.line) != read.line);
    let sinks =
        sinks.filter(|it| read.via.as_ref().is_none_or(|via| (&via.file, via.line) != (&it.file, it.line)));
    let at: Vec<String> = sinks.take(3).map(|it| format!("{}:{}", short(&it.file), it.line)).collect();
    let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
    let via = read
        .via
        .as_ref()
        .map_or_else(String::new, |via| format!(", read at {}:{}", short(&via.file), via.line));
    let taken = if read.generates {
        "; assumed: generation runs to its maximum length".to_owned()
    } else if read.assumed.is_none() && read.even {
        "; assumed: experts get equal shares".to_owned()
    } else if read.assumed.is_some() || read.taken.is_some() {
        format!("; assumed {}", read.got())
    } else {
        String::new()
    };
    format!("{decides}{operator}{at}{via}{taken}")
}

fn read_json(read: &Read) -> Value {
    json!({
        "file": read.file,
        "line": read.line,
        "source": read.text,
        "read_at": read.via.as_ref().map(place_json),
        "operator": read.operator,
        "decides": read.decides(),
        "fate": read.fate.name(),
        "where": read.sinks.iter().map(place_json).collect::<Vec<_>>(),
        "count": read.count,
        "assumed": read.assumed,
        "taken": read.taken,
        "even_share": read.even,
    })
}

fn place_json(place: &Place) -> Value {
    json!({ "file": place.file, "line": place.line, "source": place.text })
}

/// Whether an operator only copies a value.
fn is_plain(operator: &str) -> bool {
    operator.starts_with("to_")
        || ["item", "_local_scalar_dense", "copy_", "_to_copy", "is_nonzero", "cpu", "clone"]
            .contains(&operator)
}

/// A shortened path: it begins at the package's name, or is only the file name.
fn short(file: &str) -> &str {
    let package = file.split_once("-packages/").map(|(_, rest)| rest);
    package.or_else(|| file.rsplit('/').next()).unwrap_or(file)
}

/// The heading above the reads on which a size or a branch depends.
pub(crate) const HEADING: &str =
    "Depends on device values, which are zero here (set them with --assume FILE:LINE=VALUE)";

/// A line where something depends on a value read from the GPU: the line, its source code, and what depends
/// on it.
pub(crate) type Row = [String; 3];

/// A row below the heading.
pub(crate) fn line([place, text, said]: &Row) -> String {
    format!("{place}  {text}\n      {said}")
}

/// Values read from the GPU that decide, or may decide, a size or a branch: one row for each source line.
pub(crate) fn rows(reports: &[Report]) -> Vec<Row> {
    let mut rows: BTreeMap<(String, u64, String), Vec<String>> = BTreeMap::new();
    for read in reports.iter().flat_map(|report| &report.reads).filter(|read| read.decides()) {
        let (file, line) = match (&read.file, read.line, &read.via) {
            (Some(file), Some(line), _) => (short(file).to_owned(), line),
            (_, _, Some(via)) => (short(&via.file).to_owned(), via.line),
            _ => ("the backward pass".to_owned(), 0),
        };
        let said = rows.entry((file, line, read.text.clone())).or_default();
        let sentence = sentence(read);
        if !said.contains(&sentence) {
            said.push(sentence);
        }
    }
    let place = |file: String, line| if line == 0 { file } else { format!("{file}:{line}") };
    rows.into_iter().map(|((file, line, text), said)| [place(file, line), text, said.join("; ")]).collect()
}

/// A line where values read from the GPU decide a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SizedLine {
    /// The file's short name, and the line.
    pub(crate) file: String,
    pub(crate) line: u64,
    /// The assumed value.
    pub(crate) assumed: String,
    pub(crate) stake: Stake,
}

/// Whether the largest value at a line is known, so that the bytes that depend on this value can be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stake {
    /// `--assume` gives the value.
    Given,
    /// The largest value is known.
    Open,
    /// The assumed value is already the largest.
    Nothing,
    /// The largest value is unknown.
    Unknown,
}

/// The lines where values read from the GPU decide a size.
pub(crate) fn of_sizes(reports: &[Report]) -> Vec<SizedLine> {
    let mut lines: Vec<SizedLine> = Vec::new();
    for read in reports.iter().flat_map(|report| &report.reads).filter(|read| read.fate == Fate::Size) {
        let Some((file, line)) = read.file.as_ref().zip(read.line) else { continue };
        let (stake, assumed) = if read.generates {
            (Stake::Nothing, "generation, assumed to run to its maximum length".to_owned())
        } else if read.assumed.is_none() && read.even {
            (Stake::Unknown, "sizes depend on the experts' shares, which are assumed to be equal".to_owned())
        } else {
            let stake = if read.assumed.is_some() { Stake::Given } else { Stake::Open };
            let what = if read.keeps_all_boxes() {
                format!("`nms` is assumed to keep all boxes, {}", read.got())
            } else {
                format!("a value read from the GPU decides a size, assumed {}", read.got())
            };
            (stake, what)
        };
        let line = SizedLine { file: short(file).to_owned(), line, assumed, stake };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// The lines where values read from the GPU end one of the program's loops.
pub(crate) fn of_loops(reports: &[Report]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for read in reports.iter().flat_map(|report| &report.reads) {
        let is_open = read.fate == Fate::Branch && read.assumed.is_none() && !read.generates && !read.even;
        let ends = read.sinks.iter().find(|sink| sink.text.starts_with("while "));
        let Some(sink) = ends.filter(|_| is_open) else { continue };
        let line = format!("{}:{}", short(&sink.file), sink.line);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// All reads, for the JSON report.
pub(crate) fn json(reports: &[Report]) -> Value {
    reports.iter().flat_map(|report| &report.reads).map(read_json).collect::<Vec<_>>().into()
}

/// The parts of the program that did not run, as sentences without a final period.
pub(crate) fn unseen(reports: &[Report]) -> Vec<String> {
    let mut said = Vec::new();
    let mut say = |sentence: String| {
        if !said.contains(&sentence) {
            said.push(sentence);
        }
    };
    for report in reports.iter().filter(|report| report.cut) {
        let steps = counted(report.steps);
        let end = if report.ended { "" } else { "; the program was stopped before its end" };
        if report.whole {
            say(format!("a part of the code after {steps}{end}"));
        } else if report.went_on {
            say(format!(
                "the rest of the training: its DataLoader was ended after {steps}, and the code after the loop ran{end}"
            ));
        } else {
            say(format!(
                "everything after {steps}: the program was stopped there (`--whole` runs it to its end)"
            ));
        }
        let also = report
            .unseen
            .iter()
            .filter(|it| report.after.iter().all(|other| (&other.file, other.line) != (&it.file, it.line)));
        for place in report.after.iter().chain(also) {
            say(format!("{}:{}  {}", short(&place.file), place.line, place.text));
        }
        if let Some(error) = &report.after_error {
            let place = error.file.as_ref().zip(error.line);
            let place = place.map_or_else(String::new, |(file, line)| format!(" at {}:{line}", short(file)));
            let text = error.text.lines().next().unwrap_or_default();
            say(format!(
                "everything after a failure that followed the shortened loop: {}{place}: {text}",
                error.kind
            ));
        }
    }
    said
}

/// `the first 3 steps`, `the first step`.
pub(crate) fn counted(steps: u64) -> String {
    if steps == 1 { "the first step".to_owned() } else { format!("the first {steps} steps") }
}

/// `--assume` values that could not be applied.
pub(crate) fn problems(reports: &[Report]) -> Vec<String> {
    let all = reports.iter().flat_map(|report| report.problems.iter().cloned());
    all.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}
