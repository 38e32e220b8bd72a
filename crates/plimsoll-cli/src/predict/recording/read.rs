//! Values that the program read from the device, and their use: [`Read`], as `reads.py` reports it.

use crate::protocol::{Fate, Read};

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
