//! Writes the stand-in that a release build contains (`build.rs`) to a file, because the loader needs one. Other
//! builds contain none.

use std::path::{Path, PathBuf};

use plimsoll_standin::place;

use crate::exit::Failure;
use crate::inject::cache;

/// The library; empty if this build contains none.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/standin.bin"));

/// The library in the cache folder, or in `instead` if there is no cache. `None` if this build contains none.
///
/// # Errors
/// If neither folder can be written to.
pub(super) fn written(instead: &Path) -> Result<Option<PathBuf>, Failure> {
    if LIBRARY.is_empty() {
        return Ok(None);
    }
    let folder = cache::installed("standin", &[(place::LIBRARY.into(), LIBRARY)], Some(instead))?;
    Ok(Some(folder.join(place::LIBRARY)))
}
