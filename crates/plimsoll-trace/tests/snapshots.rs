//! Reads PyTorch's snapshots, and compares what was found with what CPython found in them.

#![allow(clippy::print_stderr, reason = "a test that skips says so")]

use std::path::{Path, PathBuf};

use plimsoll_trace::input;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The snapshots in a folder, sorted by name.
fn pickles(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut pickles: Vec<PathBuf> =
        entries.filter(|path| path.to_string_lossy().contains(".pickle")).collect();
    pickles.sort();
    pickles
}

#[test]
fn every_shared_snapshot_is_read() {
    let folder = here("../../../shared/snapshots");
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    for path in ["made", "real"].iter().flat_map(|kind| pickles(&folder.join(kind))) {
        let snapshot = input::open(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        assert!(!snapshot.segments.is_empty(), "{}: no segments", path.display());
        assert_eq!(snapshot.facts.ignored, [], "{}: keys that are not read", path.display());
    }
}
