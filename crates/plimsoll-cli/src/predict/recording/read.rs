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

    /// The line, as `train.py:5`, if the value decides something and is zero here.
    pub(crate) fn deciding(&self) -> Option<String> {
        self.place_if(self.decides() && self.assumed.is_none() && !self.even)
    }

    /// The line, if the value decides a size there, is unknown, and nothing is assumed of it.
    pub(crate) fn undecided(&self) -> Option<(&str, u64)> {
        let is_open = self.fate == Fate::Size && self.assumed.is_none() && !self.even && !self.generates;
        self.file.as_deref().zip(self.line).filter(|_| is_open)
    }

    /// The line, as `train.py:5`, if a PyTorch operator selects by values there and the result is empty.
    pub(crate) fn empty_selection(&self) -> Option<String> {
        self.place_if(self.operator.is_some() && self.fate == Fate::Size && self.assumed.is_none())
    }

    fn place_if(&self, holds: bool) -> Option<String> {
        let (file, line) = self.file.as_ref().zip(self.line).filter(|_| holds)?;
        Some(place(file, line))
    }

    /// Whether `--assume` knows half of what the operator may find (`extreme` in `reads.py`): it selects among the elements of a
    /// mask. How many values `unique` finds depends on more than their number.
    pub(crate) fn knows_half(&self) -> bool {
        self.operator.as_deref() == Some("nonzero")
    }
}

/// A file's name and a line: `train.py:7`.
pub(crate) fn place(file: &str, line: u64) -> String {
    format!("{}:{line}", file.rsplit(['/', '\\']).next().unwrap_or(file))
}
