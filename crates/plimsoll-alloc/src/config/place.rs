//! A place in a configuration string, for messages: [`Place`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A byte range of a string. Displayed as two lines: the string, and markers under the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(super) text: Arc<str>,
    pub(super) range: Range<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        let line: String = self.text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        let (before, marked) = (self.text[..start].chars().count(), self.text[start..end].chars().count());
        write!(f, "\n  {line}\n  {:before$}{:^<marked$}", "", "", marked = marked.max(1))
    }
}
