//! To conform: PyTorch's own answers, row by row, with nothing that differs.
//!
//! Each file is a stream of requests with what PyTorch 2.15 answered. The first 1,200 rows of one file of
//! each kind are kept here; the rest of the corpus is read from `shared/conformance` beside the repository, where there is one. The
//! format and the replay: `replay/`.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod replay;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use replay::{Corpus, replay};

#[test]
fn the_kept_slice_of_the_corpus_replays_without_a_difference() {
    let files = corpus_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance"));
    assert_eq!(files.len(), 16, "{files:?}");
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
    assert!(files.len() >= 32, "{files:?}");
    replay_all(&files);
}

/// A row that says something else than PyTorch does stops the replay there, and is explained.
#[test]
fn the_first_difference_is_explained() {
    let text = "#config,backend:native\n#device_bytes,1000000000\n\
        op,id,bytes,stream,address,allocated,reserved,active,inactive_split,requested,allocations,segments,\
        active_blocks,inactive_split_blocks,alloc_retries,ooms,device_allocs,device_frees,peak_allocated,\
        peak_reserved\n\
        #malloc,500000000000,12582912\n\
        alloc,0,12582912,0,500000000000,12582912,12582912,12582912,0,12582912,1,1,1,0,0,0,1,0,12582912,12582912\n\
        free,0,,,,0,12582912,0,0,0,0,1,0,0,0,0,1,0,12582912,12582912\n\
        alloc,1,12000000,0,500000000200,12582912,12582912,12582912,0,12000000,1,1,1,0,0,0,1,0,12582912,12582912\n\
        free,1,,,,0,12582912,0,0,0,0,1,0,0,0,0,1,0,12582912,12582912\n";
    let report = replay(&Corpus::parse(text).unwrap());
    let expected = "3 rows, the last differs\n\
        at 7: alloc,1,12000000,0,500000000200,12582912,12582912,12582912,0,12000000,1,1,1,0,0,0,1,0,12582912,12582912\n  \
          address: PyTorch 0x500000000200, ours 0x500000000000\n  \
          needs 12000256 bytes, or a segment of 12582912; free blocks that hold it:\n    \
            0x500000000000 12582912 bytes, segment 0: taken <- ours\n  \
          PyTorch took new memory, at 0x500000000200\n";
    assert_eq!(report.to_string(), expected);
}

/// The corpus files in `folder`, by name.
fn corpus_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_corpus = |path: &PathBuf| path.to_string_lossy().ends_with(".csv.gz");
    let mut files: Vec<PathBuf> = entries.filter(is_corpus).collect();
    files.sort();
    files
}

fn replay_all(files: &[PathBuf]) {
    for file in files {
        let mut text = String::new();
        GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
        let corpus = Corpus::parse(&text).unwrap();
        let report = replay(&corpus);
        assert!(report.divergence.is_none(), "{}: {report}", file.display());
        assert_eq!(report.rows, corpus.rows.len());
    }
}
