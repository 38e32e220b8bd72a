//! The snapshots that tests read: those in this repository, and those next to it, if there are any.

use std::path::{Path, PathBuf};

use plimsoll_trace::input;
use plimsoll_trace::snapshot::Snapshot;
use serde_json::Value;

pub(crate) fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn open(path: &Path) -> Snapshot {
    input::open(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The folders of snapshots: in this repository, and next to it, if there are any.
fn folders() -> Vec<PathBuf> {
    let mut folders = vec![here("tests/snapshots")];
    let shared = here("../../../shared/snapshots");
    if shared.is_dir() {
        folders.extend(["made", "real"].map(|kind| shared.join(kind)));
    }
    folders
}

/// Every snapshot's path; sorted by name within a folder.
pub(crate) fn paths() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for folder in folders() {
        let entries = std::fs::read_dir(&folder).expect("a folder");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "gz" || end == "zst"));
        paths.sort();
        all.extend(paths);
    }
    all
}

/// Every snapshot, with the name of its file.
pub(crate) fn snapshots() -> impl Iterator<Item = (String, Snapshot)> {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    paths().into_iter().map(move |path| (name(&path), open(&path)))
}

/// The snapshots next to the repository that were made by a script, each with the figures that PyTorch reported.
pub(crate) fn made() -> impl Iterator<Item = (String, Snapshot, Value)> {
    snapshots().filter_map(|(name, snapshot)| {
        let figures = here("../../../shared/snapshots/made").join(name.replace(".pickle.gz", ".json"));
        let figures = std::fs::read_to_string(figures).ok()?;
        Some((name, snapshot, serde_json::from_str(&figures).expect("figures")))
    })
}
