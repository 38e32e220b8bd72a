//! Finds the checkpoint to resume from if a file is damaged: [`last_good`].

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The maximum number of files to verify completely.
const MOST: usize = 8;

/// The newest undamaged file (`is_good`): next to a file, or under the same name in the folders next to its own.
pub(super) fn last_good(damaged: &Path, is_good: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let folder = damaged.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = damaged.file_name()?;
    let listed =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_file = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "safetensors");
    let beside = listed(folder).filter(is_file);
    let around = folder.parent().into_iter().flat_map(listed).map(|other| other.join(name));
    let mut found: Vec<(SystemTime, PathBuf)> = beside
        .chain(around)
        .filter(|path| !is_same(path, damaged))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    found.sort_by(|left, right| right.cmp(left));
    found.into_iter().map(|(_, path)| path).take(MOST).find(|path| is_good(path))
}

fn is_same(left: &Path, right: &Path) -> bool {
    fs::canonicalize(left).ok().zip(fs::canonicalize(right).ok()).is_some_and(|(left, right)| left == right)
}
