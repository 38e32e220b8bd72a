//! Replaces files atomically, so that a file is either complete or missing: [`replace`]. [`save`] writes a snapshot in
//! this way.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::snapshot::Snapshot;
use crate::torch;
use crate::torch::Sharing;

/// Writes a snapshot in PyTorch's format, a pickle of protocol 4.
///
/// ```
/// # use plimsoll_trace::{Sharing, input, output, snapshot::Snapshot};
/// let mut pickle = Vec::new();
/// output::write(&Snapshot::default(), &mut pickle, Sharing::Equal)?;
/// assert!(input::read(pickle.as_slice())?.segments.is_empty());
/// # Ok::<(), plimsoll_trace::SnapshotError>(())
/// ```
///
/// # Errors
/// I/O errors.
pub fn write(snapshot: &Snapshot, out: impl Write, sharing: Sharing) -> io::Result<()> {
    torch::write(snapshot, out, sharing)
}

/// Writes a snapshot as [`write()`] does, to a file that is replaced atomically, as by [`replace`].
///
/// # Errors
/// I/O errors. In this case, no file is left behind.
pub fn save(snapshot: &Snapshot, path: &Path, sharing: Sharing) -> io::Result<()> {
    replace(path, |out| write(snapshot, out, sharing))
}

/// Writes a file under a temporary name, syncs it to disk, then renames it. An existing file is replaced atomically.
///
/// ```
/// # use std::io::Write;
/// let path = std::env::temp_dir().join(format!("plimsoll-replace-{}", std::process::id()));
/// plimsoll_trace::output::replace(&path, |out| out.write_all(b"whole"))?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// I/O errors, or the error that `fill` returns. In both cases, no file is left behind.
pub fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let unfinished = beside(path)?;
    let file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
    let done = filled(file, fill).and_then(|()| fs::rename(&unfinished, path));
    if done.is_err() {
        // Even if the unfinished file cannot be removed, it does not have the requested name.
        let _ = fs::remove_file(&unfinished);
    }
    done
}

fn filled(file: File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    fill(&mut out)?;
    out.into_inner()?.sync_all()
}

/// A name in the same folder that no other process of ours uses.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut unfinished = std::ffi::OsString::from(".");
    unfinished.push(name);
    unfinished.push(format!(".{}.unfinished", std::process::id()));
    Ok(path.with_file_name(unfinished))
}
