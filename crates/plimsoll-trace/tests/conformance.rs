//! Conformance: our results equal PyTorch's, row by row.
//!
//! `corpus/` has the first 1,200 rows of one stream of each kind, and 30 programs. The complete corpus is read from
//! `shared/conformance` next to the repository, if it exists.

use std::path::{Path, PathBuf};

use plimsoll_needs::needs;
use plimsoll_trace::conformance::{self, Unreadable};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Replays every recording in a folder. Returns the number of recordings and of their rows.
fn replay_all(folder: &Path) -> (usize, usize) {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "gz")).collect();
    files.sort();
    let mut rows = 0;
    for file in &files {
        let text = conformance::read(file).expect("text");
        let report = conformance::compare(&text).expect("a recording");
        assert!(report.divergence.is_none(), "{}: {report}", file.display());
        rows += report.rows;
    }
    (files.len(), rows)
}

#[test]
fn the_kept_slice_of_the_corpus_replays_without_a_difference() {
    let (files, rows) = replay_all(&here("tests/corpus"));
    assert!(files == 17 && rows > 20_000, "{files} files, {rows} rows");
}

#[needs(shared_conformance)]
#[test]
fn the_whole_corpus_replays_without_a_difference() {
    let folder = here("../../../shared/conformance");
    let (files, rows) = replay_all(&folder);
    assert!(files >= 33 && rows >= 34_130 + 32 * 1000, "{files} files, {rows} rows");
}

#[test]
fn a_changed_answer_is_found_and_explained() {
    let text = conformance::read(&here("tests/corpus/native-small-2.csv.gz")).expect("text");
    let (line, row) =
        text.lines().enumerate().filter(|(_, row)| row.starts_with("alloc,")).nth(500).expect("a row");
    let mut fields: Vec<String> = row.split(',').map(str::to_owned).collect();
    fields[4] = "500000000200".to_owned();
    let changed = text.replacen(row, &fields.join(","), 1);
    let report = conformance::compare(&changed).expect("a recording");
    let divergence = report.divergence.expect("a difference");
    assert_eq!((divergence.at, divergence.differences[0].what.as_str()), (line + 1, "address"));
    assert!(divergence.choice.is_some_and(|choice| !choice.explanation.candidates.is_empty()));
}

#[test]
fn what_is_no_recording_is_refused_with_its_line() {
    let refused =
        |text: &str| conformance::compare(text).map_err(|why: Unreadable| why.to_string()).unwrap_err();
    assert!(refused("").contains("no requests"));
    assert!(refused("alloc,0,1\n").starts_with("line 1: "), "{}", refused("alloc,0,1\n"));
    assert!(refused("{}").starts_with("line 1: "));
    assert!(refused("#config,max_split_size_mb:3\n").contains("max_split_size_mb"));
    // A program that names a stream that it does not have fails with a message.
    let program = r#"{"mode":"st","seed":1,"total":1000000,"streams":[0],"steps":[{"op":["busy",7,1]}]}"#;
    let report = conformance::compare(program).expect("a program");
    let divergence = report.divergence.expect("a difference");
    assert!(divergence.differences[0].ours.contains("no such stream in the program"));
}
