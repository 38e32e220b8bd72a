//! Release builds contain the library plimsoll-standin, the simulated GPU (`build.rs`). It is written to a file,
//! because the dynamic loader needs a file. Other builds do not contain it.

use std::path::{Path, PathBuf};

use plimsoll_standin::place;

use crate::exit::Failure;
use crate::inject::cache;

/// The library; empty if this build does not contain it.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/standin.bin"));

/// The library in the cache folder, or in `instead` if there is no cache. `None` if this build does not contain the
/// library.
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
