//! The folder of the sockets: `$XDG_RUNTIME_DIR/plimsoll`, or `plimsoll-UID` in the folder for temporary files.
//!
//! A folder that other users own or can write to is not used, either to listen or to look for sockets.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::getuid;

/// Both folders, the preferred one first. A program may have been started without `XDG_RUNTIME_DIR`, so a client
/// looks in both.
pub(super) fn candidates() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let runtime = runtime.map(|folder| PathBuf::from(folder).join("plimsoll"));
    let temporary = std::env::temp_dir().join(format!("plimsoll-{}", getuid().as_raw()));
    runtime.into_iter().chain([temporary]).collect()
}

/// The first of these folders that exists or can be created.
pub(super) fn own() -> io::Result<PathBuf> {
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for folder in candidates() {
        match make(&folder) {
            Ok(()) => return Ok(folder),
            Err(why) => refused = why,
        }
    }
    Err(refused)
}

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => Err(at(folder, &why)),
        _ => check(folder),
    }
}

/// Rejects a folder that other users can access.
///
/// # Errors
/// If it does not exist, is a link or a file, belongs to another user, or is open to others.
pub(super) fn check(folder: &Path) -> io::Result<()> {
    let there = fs::symlink_metadata(folder).map_err(|why| at(folder, &why))?;
    if there.is_dir() && there.uid() == getuid().as_raw() && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("{}: not a folder that only this user can open (mode 0700)", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// An I/O error with its path.
pub(super) fn at(path: &Path, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_is_made_for_the_user_alone_and_one_open_to_others_or_a_link_is_refused() {
        let root = std::env::temp_dir().join(format!("plimsoll-folder-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let own = root.join("own");
        make(&own).unwrap();
        make(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        symlink(&own, root.join("link")).unwrap();
        assert_eq!(make(&root.join("link")).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = make(&own).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("own: not a folder"), "{refused}");
        fs::remove_dir_all(&root).unwrap();
    }
}
