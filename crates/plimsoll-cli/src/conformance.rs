//! `plimsoll conformance`: recordings of PyTorch's allocator, replayed through ours and compared row by row.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_trace::conformance::{self, Report};
use serde_json::json;

use crate::exit::{Answer, Exit, Failure};
use crate::output;

#[derive(Args)]
pub(crate) struct ConformanceArgs {
    /// Recordings (streams in CSV, programs in JSON lines; plain or gzip), or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A recording and the result of its replay.
struct Compared {
    file: PathBuf,
    report: Report,
}

/// Replays all recordings. The last line is a summary.
pub(crate) fn run(args: &ConformanceArgs) -> Result<Answer, Failure> {
    let mut compared = Vec::new();
    for file in recordings(&args.paths)? {
        output::progress(&format!("replaying {}", file.display()));
        let text = conformance::read(&file).map_err(|why| unreadable(&file, &why))?;
        let report = conformance::compare(&text).map_err(|why| unreadable(&file, &why))?;
        compared.push(Compared { file, report });
    }
    let diverged = compared.iter().any(|one| one.report.divergence.is_some());
    let exit = if diverged { Exit::Assertion } else { Exit::Done };
    Ok(Answer { text: if args.json { as_json(&compared) } else { as_text(&compared) }, exit })
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Unreadable, format!("{}: {why}", path.display()))
}

/// The files among the paths, and the files in the folders whose extension is that of a recording, sorted by
/// name.
fn recordings(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|why| unreadable(path, &why))?;
        let mut inside: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        inside.retain(|file| is_recording(file));
        if inside.is_empty() {
            return Err(unreadable(path, &"no recordings here (.csv, .jsonl, .csv.gz or .jsonl.gz)"));
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

fn is_recording(file: &Path) -> bool {
    let name = file.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".csv") || name.ends_with(".jsonl")
}

/// The number of compared rows, and the number of files that diverged.
fn sums(compared: &[Compared]) -> (usize, usize) {
    let rows = compared.iter().map(|one| one.report.rows).sum();
    (rows, compared.iter().filter(|one| one.report.divergence.is_some()).count())
}

fn as_text(compared: &[Compared]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    for Compared { file, report } in compared {
        let _ = writeln!(out, "{}: {report}", file.display());
    }
    let (rows, diverged) = sums(compared);
    let verdict = match diverged {
        0 => "no divergence".to_owned(),
        n => format!("{n} of them diverged"),
    };
    let _ = writeln!(out, "{} files, {rows} rows compared: {verdict}", compared.len());
    out
}

fn as_json(compared: &[Compared]) -> String {
    let (rows, diverged) = sums(compared);
    let files = compared.iter().map(|Compared { file, report }| {
        json!({
            "path": file.display().to_string(),
            "rows": report.rows,
            "divergence": report.divergence.as_ref().map(|divergence| json!({
                "at": divergence.at,
                "asked": divergence.asked,
                "explanation": divergence.to_string(),
            })),
        })
    });
    let value = json!({
        "schema": "plimsoll.conformance/1",
        "rows": rows,
        "diverged": diverged,
        "files": files.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}
