//! Values that the program read from the device, and the decisions that depend on them: [`Read`], as `reads.py` reports
//! it.

use serde_json::Value;

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
    /// Whether memory requests may depend on the value that was read.
    pub(crate) fn decides(&self) -> bool {
        self.fate != Fate::Shown
    }

    /// The line of the read, such as `train.py:5`, if the value decides something and is zero here.
    pub(crate) fn deciding(&self) -> Option<String> {
        self.place_if(self.decides() && self.assumed.is_none() && !self.even)
    }

    /// Whether the value decides a size, is unknown, and has no assumed value.
    pub(crate) fn is_undecided(&self) -> bool {
        self.fate == Fate::Size && self.assumed.is_none() && !self.even && !self.generates
    }

    /// The line of the read, such as `train.py:5`, if a PyTorch operator there selects elements by their values and the
    /// result is empty.
    pub(crate) fn empty_selection(&self) -> Option<String> {
        let is_zero = self.assumed.is_none() && self.taken.is_none();
        self.place_if(self.operator.is_some() && self.fate == Fate::Size && is_zero)
    }

    /// Whether `nms` kept all boxes, the largest possible number (`boxes.py`).
    pub(crate) fn keeps_all_boxes(&self) -> bool {
        self.operator.as_deref() == Some("nms") && self.assumed.is_none() && self.taken.is_some()
    }

    /// A description of the value that the program got.
    pub(crate) fn got(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match (&self.assumed, &self.taken) {
            (Some(value), _) => text(value),
            (None, Some((least, most))) if least == most => text(least),
            (None, Some((least, most))) => format!("{} to {}", text(least), text(most)),
            (None, None) => "0".to_owned(),
        }
    }

    fn place_if(&self, holds: bool) -> Option<String> {
        let (file, line) = self.file.as_ref().zip(self.line).filter(|_| holds)?;
        Some(place(file, line))
    }

    /// Whether `--assume` can compute half of the operator's maximum (`extreme` in `reads.py`). Half is known if the
    /// operator selects elements with a mask. For `unique`, half of the results may come from any number of values.
    pub(crate) fn knows_half(&self) -> bool {
        self.operator.as_deref().is_some_and(|it| ["nonzero", "nms"].contains(&it))
    }
}

/// A file's name and a line: `train.py:7`.
pub(crate) fn place(file: &str, line: u64) -> String {
    format!("{}:{line}", file_name(file))
}

/// A file's name without its folders.
pub(crate) fn file_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}
