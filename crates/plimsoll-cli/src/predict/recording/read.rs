//! Values that the program read from the device, and their use: [`Read`], as `reads.py` reports it.

use serde::Deserialize;
use serde_json::Value;

/// The reads at one line, from one call stack.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Read {
    /// The innermost line outside packages; `None` in a backward pass.
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// That line's source.
    #[serde(default)]
    pub(crate) text: String,
    /// The line that read, if it is in a package.
    pub(crate) via: Option<Place>,
    /// The PyTorch operator that read, such as `nonzero`.
    pub(crate) operator: Option<String>,
    pub(crate) fate: Fate,
    /// The lines where the value decides something.
    #[serde(default)]
    pub(crate) sinks: Vec<Place>,
    pub(crate) count: u64,
    /// The value from `--assume`.
    pub(crate) assumed: Option<Value>,
    /// Whether it depends on the assumption that experts get equal shares.
    #[serde(default)]
    pub(crate) even: bool,
    /// Whether transformers reads it to decide whether a generation ends.
    #[serde(default)]
    pub(crate) generates: bool,
}

/// A line of source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: u64,
    #[serde(default)]
    pub(crate) text: String,
}

/// How the value was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fate {
    /// It was printed, logged, stored or checked.
    Shown,
    /// It decided a size.
    Size,
    /// It decided a branch.
    Branch,
    /// Unknown: there is no source code.
    Unknown,
}

impl Fate {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fate::Shown => "shown",
            Fate::Size => "size",
            Fate::Branch => "branch",
            Fate::Unknown => "unknown",
        }
    }
}

impl Read {
    /// Whether memory requests may depend on the value.
    pub(crate) fn decides(&self) -> bool {
        self.fate != Fate::Shown
    }

    /// The line, as `train.py:5`, if a PyTorch operator selects by values there and the result is empty.
    pub(crate) fn empty_selection(&self) -> Option<String> {
        let is_empty = self.operator.is_some() && self.fate == Fate::Size && self.assumed.is_none();
        let (file, line) = self.file.as_ref().zip(self.line).filter(|_| is_empty)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{name}:{line}"))
    }
}
