//! Files that are replaced whole or not at all: [`replace`].
//!
//! What is written goes to a file of another name in the same folder, is brought to the disk, and takes the old file's
//! name in one step. Whoever is killed meanwhile leaves the old file, and a file whose name says that it is not whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::SerializeError;

/// Replaces a file by what `write` writes.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), SerializeError>,
) -> Result<(), SerializeError> {
    let failed = |source: io::Error| SerializeError::NotSaved { path: path.to_owned(), source };
    let Some(name) = path.file_name() else {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "this is not the name of a file")));
    };
    // One process saves to one name at a time; two processes do not meet.
    let partial = path.with_file_name(format!("{}.partial-{}", name.to_string_lossy(), std::process::id()));
    let written = (|| {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial).map_err(failed)?);
        write(&mut file)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&partial, path).map_err(failed)?;
        sync_folder(path).map_err(failed)
    })();
    if written.is_err() {
        // It may be what the disk has no room for; that it cannot be removed is the smaller error.
        let _ = fs::remove_file(&partial);
    }
    written.map_err(|error| match error {
        SerializeError::Io { source, .. } => failed(source),
        other => other,
    })
}

/// Brings a file's new name to the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
