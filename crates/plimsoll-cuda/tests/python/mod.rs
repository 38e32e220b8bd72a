//! The Python from `PLIMSOLL_PYTORCH`, for tests that need its NVRTC.

use std::path::PathBuf;

/// The environment of the Python from `PLIMSOLL_PYTORCH`, in which NVRTC is looked for.
pub(crate) fn environment_of_python() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var("PLIMSOLL_PYTORCH").ok()?.split_whitespace().next()?);
    Some(python.parent()?.parent()?.to_path_buf())
}
