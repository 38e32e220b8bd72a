//! To conform: PyTorch's own answers, row by row, with nothing that differs.
//!
//! Each file is a stream of requests with what PyTorch 2.15 answered. Five files are kept here; the rest of
//! the corpus is read from `shared/conformance` beside the repository, where there is one. The format and
//! the replay: `replay/`.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod replay;

use std::path::{Path, PathBuf};

use replay::{Corpus, Replay};

/// The kinds of stream that need nothing which this allocator does not do.
const KINDS: [&str; 5] = ["native-small", "native-mixed", "native-mixed-down", "native-fraction", "segsize"];

#[test]
fn the_kept_slice_of_the_corpus_replays_without_a_difference() {
    let files = corpus_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance"));
    assert_eq!(files.len(), KINDS.len(), "{files:?}");
    replay_all(&files);
}

#[test]
fn the_whole_corpus_replays_without_a_difference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    if !folder.is_dir() {
        eprintln!("skipped: no corpus beside the repository ({} is not a folder)", folder.display());
        return;
    }
    let files = corpus_files(&folder);
    assert!(!files.is_empty(), "no file of the kinds {KINDS:?} in {}", folder.display());
    replay_all(&files);
}

/// The files in `folder` that are named after one of [`KINDS`] and a seed, by name.
fn corpus_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| kind(path).is_some_and(|kind| KINDS.contains(&kind))).collect();
    files.sort();
    files
}

/// `native-small` of `native-small-17.csv.gz`.
fn kind(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?.strip_suffix(".csv.gz")?;
    let (kind, seed) = name.rsplit_once('-')?;
    seed.parse::<u64>().ok()?;
    Some(kind)
}

fn replay_all(files: &[PathBuf]) {
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy();
        let corpus = Corpus::read(file);
        let mut replay = Replay::new(&corpus);
        for row in &corpus.rows {
            if let Err(difference) = replay.step(row) {
                panic!("{name}, line {}: `{}`\n{difference}", row.line, row.text);
            }
        }
    }
}
