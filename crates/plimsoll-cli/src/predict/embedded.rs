//! The stand-in that a release build carries (`build.rs`), as a file: the loader needs one. Other builds carry none.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// The library; empty if this build carries none.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/standin.bin"));

/// Writes the library to the cache folder, once for each version of its contents; `None` if this build carries none.
///
/// # Errors
/// The folder cannot be created or written to.
pub(super) fn written() -> io::Result<Option<PathBuf>> {
    if LIBRARY.is_empty() {
        return Ok(None);
    }
    let cache = env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map(PathBuf::from);
    let cache =
        cache.or_else(|| env::home_dir().map(|home| home.join(".cache"))).unwrap_or_else(env::temp_dir);
    let name = concat!("libplimsoll_standin-", env!("PLIMSOLL_STANDIN_HASH"), ".so");
    once(&cache.join("plimsoll").join("standin"), name, LIBRARY).map(Some)
}

/// The file of this name, which is written if it is not there. Another process may write it at the same time.
fn once(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let place = folder.join(name);
    if fs::metadata(&place).is_ok_and(|it| it.len() == bytes.len() as u64) {
        return Ok(place);
    }
    fs::create_dir_all(folder)?;
    let mut unfinished = NamedTempFile::new_in(folder)?;
    unfinished.write_all(bytes)?;
    unfinished.as_file().sync_all()?;
    unfinished.persist(&place)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_written_once_and_again_if_it_is_incomplete() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = once(&folder.path().join("a/b"), "it.so", b"bytes").expect("written");
        assert_eq!(fs::read(&place).expect("a file"), b"bytes");
        fs::write(&place, "by").expect("written");
        assert_eq!(once(&folder.path().join("a/b"), "it.so", b"bytes").expect("written"), place);
        assert_eq!(fs::read(&place).expect("a file"), b"bytes");
        assert_eq!(fs::read_dir(folder.path().join("a/b")).expect("a folder").count(), 1);
    }
}
