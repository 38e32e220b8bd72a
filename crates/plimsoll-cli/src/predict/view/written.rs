//! The files that the program would have written: [`Written`], from the private files of its view.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::caches::{self, Cache};

/// The maximum number of files in the list.
const MOST: usize = 200;

/// A program's changes to files. Temporary files that no longer exist at the end are not included.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::predict) struct Written {
    /// The changed files, the largest first.
    pub(in crate::predict) files: Vec<File>,
    /// The number of changed files, including those not in the list.
    pub(in crate::predict) count: u64,
    pub(in crate::predict) bytes: u64,
    /// The number of new files that are kept in each cache.
    pub(in crate::predict) kept: BTreeMap<PathBuf, u64>,
    /// Why some new files were not kept.
    pub(in crate::predict) not_kept: Option<String>,
    /// Whether a write failed because --scratch was used up.
    pub(in crate::predict) is_full: bool,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::predict) struct File {
    pub(in crate::predict) path: PathBuf,
    /// The file's size, including holes.
    pub(in crate::predict) bytes: u64,
    pub(in crate::predict) kind: Kind,
}

/// The kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::predict) enum Kind {
    New,
    Changed,
    Removed,
}

impl Kind {
    pub(in crate::predict) fn name(self) -> &'static str {
        match self {
            Kind::New => "new",
            Kind::Changed => "changed",
            Kind::Removed => "removed",
        }
    }
}

/// A folder with an overlay of private files: the program sees these instead of the folder's own.
pub(super) struct Layer<'view> {
    /// The folder's path.
    pub(super) place: &'view Path,
    /// The private files. A character device 0:0 stands for a removed file.
    pub(super) upper: &'view Path,
    /// The unchanged folder on the disk, under another path.
    pub(super) lower: &'view Path,
    /// The folder on the disk, under a path at which new files can be written.
    pub(super) real: &'view Path,
}

impl Written {
    /// Adds a layer's files, except those below `spared`. New files in `caches` are kept if possible
    /// (`caches.rs`).
    pub(super) fn add(&mut self, layer: &Layer<'_>, spared: &[&Path], caches: &[Cache]) {
        self.add_folder(layer, Path::new(""), spared, caches);
        self.files.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.path.cmp(&other.path)));
        self.files.truncate(MOST);
    }

    /// Adds the files that the program has removed, according to the markers in the folder `marks`. `files` is the
    /// folder with the program's own files.
    pub(super) fn add_gone(&mut self, marks: &Path, files: &Path) {
        self.add_marks(marks, Path::new(""), files);
        self.files.truncate(MOST);
    }

    fn add_marks(&mut self, marks: &Path, within: &Path, files: &Path) {
        let entries = fs::read_dir(marks.join(within)).into_iter().flatten().flatten();
        for entry in entries {
            if entry.file_name().as_encoded_bytes() != b"\x01" {
                self.add_marks(marks, &within.join(entry.file_name()), files);
            } else if fs::symlink_metadata(files.join(within)).is_err() {
                self.count += 1;
                self.files.push(File { path: Path::new("/").join(within), bytes: 0, kind: Kind::Removed });
            }
        }
    }

    fn add_folder(&mut self, layer: &Layer<'_>, within: &Path, spared: &[&Path], caches: &[Cache]) {
        let mut entries: Vec<_> =
            fs::read_dir(layer.upper.join(within)).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(made) = entry.metadata() else { continue };
            let within = within.join(entry.file_name());
            let path = layer.place.join(&within);
            if spared.contains(&&*path) || entry.file_name() == "__pycache__" {
                continue;
            }
            let before = fs::symlink_metadata(layer.lower.join(&within)).ok();
            if made.is_dir() {
                self.add_folder(layer, &within, spared, caches);
                continue;
            }
            // The file is a copy of the original and was not changed.
            let is_as_before = before.as_ref().is_some_and(|before| is_same(before, &made));
            if is_as_before {
                continue;
            }
            let kind = match before {
                _ if made.file_type().is_char_device() && made.rdev() == 0 => Kind::Removed,
                Some(_) => Kind::Changed,
                None => Kind::New,
            };
            let can_stay = kind == Kind::New && (made.is_file() || made.is_symlink());
            if let Some(cache) = caches::keeper(&path, caches).filter(|_| can_stay) {
                match caches::keep(&entry.path(), &layer.real.join(&within)) {
                    Ok(true) => *self.kept.entry(cache.to_path_buf()).or_default() += 1,
                    Ok(false) => {}
                    Err(why) => self.not_kept = Some(format!("{}: {why}", path.display())),
                }
                continue;
            }
            let bytes = if made.is_file() { made.len() } else { 0 };
            self.count += 1;
            self.bytes += bytes;
            self.files.push(File { path, bytes, kind });
        }
    }
}

/// Whether a file is unchanged: its mode, size and modification time are the same.
fn is_same(before: &Metadata, now: &Metadata) -> bool {
    let of = |it: &Metadata| (it.mode(), it.len(), it.mtime(), it.mtime_nsec());
    before.is_file() && now.is_file() && of(before) == of(now)
}

/// The disk space that the files in a folder use.
pub(super) fn disk_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { disk_bytes(&entry.path()) } else { found.blocks() * 512 })
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_by_size_and_new_ones_in_caches_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let [upper, lower] = ["upper", "lower"].map(|name| folder.path().join(name));
        for (name, text) in [
            ("upper/a/new", "1234"),
            ("upper/old", "123"),
            ("upper/c/x", "12"),
            ("upper/c/x.pt", "1"),
            ("lower/old", ""),
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        let layer = Layer { place: "/p".as_ref(), upper: &upper, lower: &lower, real: &lower };
        let mut written = Written::default();
        let caches = caches::folders(None, |name| (name == "HF_HOME").then(|| "/p/c".into()));
        written.add(&layer, &[], &caches);
        let files: Vec<_> = written.files.iter().map(|it| (it.path.to_str(), it.bytes, it.kind)).collect();
        let wanted = [("/p/a/new", 4, Kind::New), ("/p/old", 3, Kind::Changed), ("/p/c/x.pt", 1, Kind::New)];
        assert_eq!(files, wanted.map(|(path, bytes, kind)| (Some(path), bytes, kind)));
        assert_eq!(
            (written.count, written.bytes, written.kept),
            (3, 8, BTreeMap::from([(PathBuf::from("/p/c"), 1)]))
        );
        assert!(lower.join("c/x").is_file() && !lower.join("c/x.pt").exists() && !lower.join("a").exists());
    }
}
