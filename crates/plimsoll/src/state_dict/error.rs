//! Why something cannot be saved or loaded: [`SerializeError`].

use std::collections::{BTreeMap, BTreeSet};
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
    /// Saving failed; the previous file is unchanged.
    #[error("{} was not saved: {source}; what was saved there before is unchanged", .path.display())]
    NotSaved {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is damaged, or is not of the expected kind.
    #[error("{}: {message}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem, and what to do.
        message: String,
    },
    /// A file whose content does not match its checksum.
    #[error("{}", damage(.path, .what, .good.as_deref()))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damaged part: the name of a tensor, or the header.
        what: String,
        /// The newest undamaged checkpoint nearby, if there is one.
        good: Option<PathBuf>,
    },
    /// Another trainer is saving into the folder.
    #[error("{} is in use by {by}: wait for it or end it, or save to another folder", .folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process that uses the folder.
        by: String,
    },
    /// The ranks that save together do not share the folder.
    #[error(
        "{}: rank {rank} sees a different folder from rank 0: ranks that save together need a folder that all their machines share",
        .folder.display()
    )]
    NotShared {
        /// The folder.
        folder: PathBuf,
        /// The first rank that sees a different folder.
        rank: usize,
    },
    /// Keys that do not match the model's.
    #[error(transparent)]
    Keys(Box<IncompatibleKeys>),
    /// A tensor operation that failed, most likely because memory ran out.
    #[error(transparent)]
    Tensor(#[from] plimsoll_tensor::Error),
}

impl SerializeError {
    pub(crate) fn io(path: &Path, source: io::Error) -> SerializeError {
        SerializeError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> SerializeError {
        SerializeError::Damaged { path: path.to_owned(), what: what.into(), good: None }
    }

    pub(crate) fn format(path: &Path, message: impl Into<String>) -> SerializeError {
        SerializeError::Format { path: path.to_owned(), message: message.into() }
    }
}

fn damage(path: &Path, what: &str, good: Option<&Path>) -> String {
    let good = match good {
        Some(good) => format!("the last good checkpoint is {}", good.display()),
        None => "there is no other complete checkpoint next to it: copy or save it again".to_owned(),
    };
    format!("{}: {what} is damaged, its checksum differs; {good}", path.display())
}

/// All keys of a state dict that do not match a model's.
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
/// let expected = "the state dict does not match Sequential:
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
    /// Names in the model that the state dict lacks.
    pub missing: Vec<String>,
    /// Names in the state dict that the model lacks.
    pub unexpected: Vec<String>,
    /// Names in both whose shapes differ.
    pub misshaped: Vec<Misshaped>,
    /// Names in both whose loaded values include NaN or infinity. These are loaded all the same.
    pub not_finite: Vec<String>,
}

/// A tensor whose shape differs from the model's.
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

/// The maximum number of names in a message; the fields of [`IncompatibleKeys`] contain all of them.
const LISTED: usize = 12;

/// States how many names a message leaves out.
fn more(names: usize) -> Option<String> {
    names.checked_sub(LISTED).filter(|&more| more > 0).map(|more| format!(" and {more} more"))
}

impl IncompatibleKeys {
    /// The prefix that finds the most missing names when it is added to the state dict's names or removed from them,
    /// and how many names it finds.
    fn prefix(&self) -> Option<(bool, &str, usize)> {
        let [missing, unexpected] = [&self.missing, &self.unexpected]
            .map(|names| names.iter().map(String::as_str).collect::<BTreeSet<_>>());
        let mut found = BTreeMap::new();
        for (is_absent, longer, shorter) in
            [(true, &self.missing, &unexpected), (false, &self.unexpected, &missing)]
        {
            for name in longer {
                let ends = name.match_indices('.').map(|(dot, _)| name.split_at(dot + 1));
                for (prefix, _) in ends.filter(|(_, rest)| shorter.contains(rest)) {
                    *found.entry((is_absent, prefix)).or_insert(0) += 1;
                }
            }
        }
        let ((is_absent, prefix), count) = found.into_iter().max_by_key(|&(_, count)| count)?;
        (2 * count >= self.missing.len()).then_some((is_absent, prefix, count))
    }
}

impl fmt::Display for IncompatibleKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.missing.is_empty() && self.unexpected.is_empty() && self.misshaped.is_empty() {
            write!(f, "all keys of the state dict fit {}", self.kind)?;
            if !self.not_finite.is_empty() {
                let listed = &self.not_finite[..self.not_finite.len().min(LISTED)];
                let more = more(self.not_finite.len()).unwrap_or_default();
                write!(f, "\n  NaN or infinite values: {}{more}", listed.join(", "))?;
            }
            return Ok(());
        }
        write!(f, "the state dict does not match {}:", self.kind)?;
        for (what, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            if !names.is_empty() {
                let listed = &names[..names.len().min(LISTED)];
                write!(f, "\n  {what}: {}{}", listed.join(", "), more(names.len()).unwrap_or_default())?;
            }
        }
        for Misshaped { name, found, expected } in self.misshaped.iter().take(LISTED) {
            write!(f, "\n  {name} has shape {found:?} in the state dict and {expected:?} in the model")?;
        }
        if let Some(more) = more(self.misshaped.len()) {
            write!(f, "\n {more} whose shapes differ")?;
        }
        if let Some((is_absent, prefix, count)) = self.prefix() {
            let how = if is_absent { "added to" } else { "removed from" };
            write!(
                f,
                "\n  with `{prefix}` {how} the state dict's names, {count} missing names are found: see `Renamed`"
            )?;
        }
        Ok(())
    }
}
