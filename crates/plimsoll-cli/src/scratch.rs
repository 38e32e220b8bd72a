//! The folder of a session of `predict` or `plan`: [`Scratch`]. It is removed when the process ends. If the process is killed,
//! the next session removes it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{getppid, getuid};
use tempfile::{NamedTempFile, TempDir};

use crate::exit::{Exit, Failure};
use crate::inject::cache;

/// The prefix of the folders' names.
const PREFIX: &str = "plimsoll-predict-";

/// The file in the folder that is locked while its process runs.
const LOCK: &str = "lock";

/// If a folder older than this has no lock file, its process has ended and is not just starting.
const UNLOCKED: Duration = Duration::from_secs(3600);

/// A folder, removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: TempDir,
    /// The kernel releases the lock when the process ends.
    _lock: File,
}

impl Scratch {
    /// Removes the folders of killed processes, and creates a new one.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn begin() -> Result<Scratch, Failure> {
        let parent = cache::temporary()?;
        remove_abandoned(&parent);
        Scratch::within(&parent).map_err(|why| cache::unwritable(&parent, &why))
    }

    fn within(parent: &Path) -> io::Result<Scratch> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // The file is locked before it gets its name. So if a lock file is not locked, its process has ended.
        let mut file = NamedTempFile::new_in(folder.path())?;
        write!(file, "{}", std::process::id())?;
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)?;
        let lock = file.persist(folder.path().join(LOCK))?;
        Ok(Scratch { folder, _lock: lock })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The failure if the folder's files cannot be read or written.
pub(crate) fn unreadable(why: &io::Error) -> Failure {
    Failure::new(Exit::Unreadable, format!("a temporary folder: {why}"))
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// A session's folder that is known to have been created by the parent process.
pub(crate) struct Owned(PathBuf);

impl Owned {
    /// `None` if the parent process did not create the folder. So merely naming a folder does not get it deleted.
    pub(crate) fn of(folder: &Path) -> Option<Owned> {
        let owner = fs::read_to_string(folder.join(LOCK)).ok()?.parse::<i32>().ok();
        let is_parents = owner.is_some() && owner == getppid().map(|parent| parent.as_raw_nonzero().get());
        (is_parents && !is_abandoned(folder)).then(|| Owned(folder.to_path_buf()))
    }

    /// Removes the folder after its process has ended.
    pub(crate) fn remove(self) {
        if is_abandoned(&self.0) {
            remove(&self.0);
        }
    }
}

/// Removes a folder. Overlay file systems leave behind subfolders that cannot be opened.
fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err() {
        open_up(folder);
        // Another process may remove it at the same time.
        let _absent = fs::remove_dir_all(folder);
    }
}

fn open_up(folder: &Path) {
    let _absent = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir())).for_each(|it| open_up(&it.path()));
}

/// Removes this user's folders whose process has ended.
fn remove_abandoned(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let is_own = entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == getuid().as_raw());
        if is_own && is_abandoned(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Whether the process of a folder has ended.
fn is_abandoned(folder: &Path) -> bool {
    match File::open(folder.join(LOCK)) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            let made = fs::metadata(folder).and_then(|it| it.modified());
            made.is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age > UNLOCKED))
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_abandoned_once_its_process_has_ended() {
        let parent = tempfile::tempdir().expect("a folder");
        let scratch = Scratch::within(parent.path()).expect("made");
        let place = scratch.path().to_path_buf();
        remove_abandoned(parent.path());
        assert!(place.is_dir());
        // This is the state after a process has been killed: the folder still exists, but the lock does not.
        let Scratch { folder, _lock } = scratch;
        let _left = folder.keep();
        drop(_lock);
        fs::create_dir(parent.path().join("plimsoll-predict-starting")).expect("made");
        remove_abandoned(parent.path());
        assert!(!place.exists() && parent.path().join("plimsoll-predict-starting").is_dir());
    }
}
