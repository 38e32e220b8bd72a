//! Why something cannot be saved or loaded: [`SerializeError`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why something cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SerializeError {
    /// The system's own error.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Saving failed; the file that was there before is as it was.
    #[error("{} was not saved: {source}; what was saved there before is unchanged", .path.display())]
    NotSaved {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file that is damaged, or of another kind.
    #[error("{}: {message}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// Keys that do not go with the model.
    #[error(transparent)]
    Keys(Box<IncompatibleKeys>),
    /// A tensor operation that failed, for want of memory most likely.
    #[error(transparent)]
    Tensor(#[from] plimsoll_tensor::Error),
}

impl SerializeError {
    pub(super) fn io(path: &Path, source: io::Error) -> SerializeError {
        SerializeError::Io { path: path.to_owned(), source }
    }

    pub(super) fn format(path: &Path, message: impl Into<String>) -> SerializeError {
        SerializeError::Format { path: path.to_owned(), message: message.into() }
    }
}

/// Keys of a state dict that do not go with a model, all of them.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::serialize::{SerializeError, StateDict, Strict};
/// use plimsoll::{Device, Tensor};
/// let model = Sequential::new(&Scope::new(&Device::cpu(), 1)).add("fc", |s| Linear::new(s, 4, 2))?;
/// let mut dict = StateDict::default();
/// dict.insert("fc.weight", Tensor::ones(&[2, 5], &Device::cpu())?);
/// dict.insert("head.weight", Tensor::ones(&[2], &Device::cpu())?);
/// let error = model.load_state_dict(&dict, Strict::Yes).unwrap_err();
/// let expected = "the state dict does not fit Sequential:
///   missing: fc.bias
///   unexpected: head.weight
///   fc.weight has shape [2, 5] in the state dict and [2, 4] in the model";
/// assert_eq!(error.to_string(), expected);
/// assert!(matches!(error, SerializeError::Keys(keys) if keys.missing == ["fc.bias"]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncompatibleKeys {
    /// The model's type.
    pub kind: String,
    /// Names of the model that the state dict lacks.
    pub missing: Vec<String>,
    /// Names of the state dict that the model lacks.
    pub unexpected: Vec<String>,
    /// Names of both whose shapes differ.
    pub misshaped: Vec<Misshaped>,
}

/// A tensor whose shape is not the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshaped {
    /// Its name.
    pub name: String,
    /// Its shape in the state dict.
    pub found: Vec<usize>,
    /// Its shape in the model.
    pub expected: Vec<usize>,
}

impl std::error::Error for IncompatibleKeys {}

impl fmt::Display for IncompatibleKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the state dict does not fit {}:", self.kind)?;
        for (what, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            if !names.is_empty() {
                write!(f, "\n  {what}: {}", names.join(", "))?;
            }
        }
        for Misshaped { name, found, expected } in &self.misshaped {
            write!(f, "\n  {name} has shape {found:?} in the state dict and {expected:?} in the model")?;
        }
        Ok(())
    }
}
