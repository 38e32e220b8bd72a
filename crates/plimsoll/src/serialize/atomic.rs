//! Atomic replacement of files: [`write`](self::write()), then [`Written::replace_target`]. To replace several files, first write
//! all of them.
//!
//! The new content is written to a temporary file in the same folder, synced to disk, and renamed over the old file in one step.
//! A process that is killed in between leaves the old file unchanged, and a temporary file that is recognizable by its name; the
//! next save to the same name removes it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::state_dict::SerializeError;

/// A complete file, synced to disk under a temporary name. It is removed unless it is renamed to its final name.
#[derive(Debug)]
pub(super) struct Written {
    partial: PathBuf,
    path: PathBuf,
}

fn failed(path: &Path, source: io::Error) -> SerializeError {
    SerializeError::NotSaved { path: path.to_owned(), source }
}

/// Writes a temporary file in the folder of the one that it will replace.
pub(super) fn write(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), SerializeError>,
) -> Result<Written, SerializeError> {
    let failed = |source: io::Error| failed(path, source);
    let Some(name) = path.file_name() else {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "this is not the name of a file")));
    };
    remove_abandoned(path, name);
    // One process saves to one name at a time, and two processes use different temporary names.
    let partial = path.with_file_name(format!("{}{}", partial_prefix(name), std::process::id()));
    let file = File::create(&partial).map_err(failed)?;
    let written = Written { partial, path: path.to_owned() };
    // On a file system without locks this fails, and so does the lock in `remove_abandoned`, which then removes nothing.
    let _ = file.try_lock();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    write(&mut file).map_err(|error| match error {
        SerializeError::Io { source, .. } => failed(source),
        other => other,
    })?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    Ok(written)
}

/// The prefix of the temporary names for this file; the id of the writing process follows.
fn partial_prefix(name: &OsStr) -> String {
    format!("{}.partial-", name.to_string_lossy())
}

/// Removes temporary files that killed processes have left: those that no process has locked. Otherwise a run that is killed
/// repeatedly would fill the disk. Files that cannot be read, locked or removed stay.
fn remove_abandoned(path: &Path, name: &OsStr) {
    let prefix = partial_prefix(name);
    let folder = fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    let abandoned = folder.map(|entry| entry.path()).filter(|partial| {
        let process = partial.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix(&prefix));
        process.is_some_and(|process| process.parse::<u32>().is_ok())
            && File::open(partial).is_ok_and(|file| file.try_lock().is_ok())
    });
    for partial in abandoned {
        let _ = fs::remove_file(partial);
    }
}

impl Written {
    /// Replaces the file of its name.
    pub(super) fn replace_target(self) -> Result<(), SerializeError> {
        let replaced = fs::rename(&self.partial, &self.path).and_then(|()| sync_folder(&self.path));
        replaced.map_err(|source| failed(&self.path, source))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // The file may be the reason why the disk is full, so it is removed. An error here is ignored because the original one
        // matters more. After a successful rename this name no longer exists.
        let _ = fs::remove_file(&self.partial);
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs a file's new name to disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}
