//! A lock that lets only one trainer at a time save into a folder: [`FolderLock`].

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::state_dict::SerializeError;

/// The name of the file.
const NAME: &str = ".plimsoll.lock";

/// The right to save into a folder. The system releases the lock when the process ends for any reason; the file
/// remains.
///
/// ```
/// use plimsoll::serialize::FolderLock;
/// let folder = std::env::temp_dir().join(format!("plimsoll-lock-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let first = FolderLock::of(&folder)?;
/// let error = FolderLock::of(&folder).unwrap_err().to_string();
/// assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
/// drop(first);
/// FolderLock::of(&folder)?;
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock. On a file system without locks, this always succeeds.
    ///
    /// # Errors
    /// If another process has the lock (the error names it), or the folder is missing or not writable.
    pub fn of(folder: impl AsRef<Path>) -> Result<FolderLock, SerializeError> {
        let folder = folder.as_ref();
        let path = folder.join(NAME);
        let failed = |source| SerializeError::io(&path, source);
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let mut by = String::new();
            file.take(4096).read_to_string(&mut by).map_err(failed)?;
            let by = if by.trim().is_empty() { "another process".to_owned() } else { by.trim().to_owned() };
            return Err(SerializeError::InUse { folder: folder.to_owned(), by });
        }
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", own_name()));
        written.map_err(failed)?;
        Ok(FolderLock { _file: file })
    }
}

/// Describes this process: its id, machine and command.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.map_or_else(|_| "this machine".to_owned(), |name| name.trim().to_owned());
    let command: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let shown: String = command.join(" ").chars().filter(|char| !char.is_control()).take(200).collect();
    format!("process {} on {host} ({shown})", std::process::id())
}
