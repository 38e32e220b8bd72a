//! The Python that `PLIMSOLL_PYTORCH` names, for tests that need its NVRTC.

use std::path::PathBuf;

/// The environment of the Python that `PLIMSOLL_PYTORCH` names: NVRTC is looked for there.
pub(crate) fn environment_of_python() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var("PLIMSOLL_PYTORCH").ok()?.split_whitespace().next()?);
    Some(python.parent()?.parent()?.to_path_buf())
}
