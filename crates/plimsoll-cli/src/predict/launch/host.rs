//! The library that counts the program's memory on the host (`../../../host`): its file, and the variables that load it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::exit::Failure;
use crate::inject::cache;

/// The library; empty if it could not be built.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/host.bin"));

const NAME: &str = "libplimsoll_host.so";

/// The folder for the processes' files.
const FOLDER: &str = "PLIMSOLL_HOST_FOLDER";

/// The library in the cache folder, or in `instead` if there is no cache. `None` if this build does not contain the
/// library.
///
/// # Errors
/// If neither folder can be written to.
pub(super) fn installed(instead: &Path) -> Result<Option<PathBuf>, Failure> {
    if LIBRARY.is_empty() {
        return Ok(None);
    }
    let folder = cache::installed("host", &[(NAME.into(), LIBRARY)], Some(instead))?;
    Ok(Some(folder.join(NAME)))
}

/// The environment variables that load the library, before the libraries in `preloaded`, and that name the folder for
/// its files.
pub(crate) fn environment(library: &Path, preloaded: &OsStr, folder: &Path) -> [(&'static str, OsString); 2] {
    let all = [library.as_os_str(), preloaded].join(":".as_ref());
    [("LD_PRELOAD", all), (FOLDER, folder.as_os_str().to_owned())]
}
