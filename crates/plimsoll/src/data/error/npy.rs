//! Errors of NPY files.

use std::path::PathBuf;

/// An NPY file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read as NPY: {problem}", path.display())]
pub struct NpyError {
    /// The file.
    pub path: PathBuf,
    /// The problem with the file, and what to do.
    pub problem: String,
}
