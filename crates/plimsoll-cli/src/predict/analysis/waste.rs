//! Memory that is live at the peak but not needed there: which rows are worth a run ([`worthwhile`]), the program's
//! source with the lines that free the memory ([`edited`]), and the peaks with these lines ([`Savings`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::predict::recording::read::place;
use crate::predict::view::Replaced;
use crate::protocol::{Waste, WasteKind};

/// The memory that a program can free, and how that changes the peaks.
#[derive(Debug, Clone)]
pub(crate) struct Savings {
    /// The peak of allocated bytes of the unchanged program.
    pub(crate) before_bytes: u64,
    /// One row for each line, the largest first.
    pub(crate) rows: Vec<Saving>,
    /// The peaks of a run with the lines of all rows; `None` if there was no such run.
    pub(crate) together: Option<Freed>,
}

/// One line, and the bytes that it frees.
#[derive(Debug, Clone)]
pub(crate) struct Saving {
    pub(crate) waste: Waste,
    /// The peaks with this line alone; `None` if the line was not tried, or does not lower the peak.
    pub(crate) alone: Option<Freed>,
}

/// The peaks of a run with added lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// Whether the program fits.
    pub(crate) fits: bool,
}

/// If the first run took longer than this, no lines are tried.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// The maximum number of lines to try.
const MOST: usize = 4;

/// A line is left out if it lowers the peak by less than 1/`LEAST_PART` of the peak.
const LEAST_PART: u64 = 100;

/// A saving of fewer bytes than this is not worth a run.
const LEAST_BYTES: u64 = 8 << 20;

/// The smallest saving that counts, for a peak of this many bytes.
pub(crate) fn least_bytes(peak_bytes: u64) -> u64 {
    (peak_bytes / LEAST_PART).max(LEAST_BYTES)
}

/// The rows that are worth a run, for a peak of this many bytes.
pub(crate) fn worthwhile(rows: &[Waste], peak_bytes: u64) -> Vec<Waste> {
    let rows = rows.iter().filter(|row| row.bytes >= least_bytes(peak_bytes));
    rows.take(MOST).cloned().collect()
}

/// The source files that these rows change, with the new lines inserted.
///
/// # Errors
/// If the file cannot be read, or has fewer lines than the rows say.
pub(crate) fn replaced(rows: &[&Waste]) -> io::Result<Vec<Replaced>> {
    let mut files: BTreeMap<&Path, Vec<&Waste>> = BTreeMap::new();
    for row in rows {
        files.entry(&row.file).or_default().push(row);
    }
    let replaced = |(path, rows): (&Path, Vec<&Waste>)| {
        let text = edited(&std::fs::read_to_string(path)?, &rows);
        let text = text.ok_or_else(|| io::Error::other(format!("{} has fewer lines", path.display())))?;
        Ok(Replaced { path: PathBuf::from(path), text })
    };
    files.into_iter().map(replaced).collect()
}

/// A source with the lines of these rows inserted; `None` if the source has fewer lines than the rows say.
fn edited(source: &str, rows: &[&Waste]) -> Option<String> {
    let mut lines: Vec<String> = source.split_inclusive('\n').map(str::to_owned).collect();
    let mut new = places(rows);
    // Starts with the last line, so that the numbers of the earlier lines stay valid. If one new line is inserted and
    // another replaces lines at the same place, the insertion comes first.
    new.sort_by_key(|place| (std::cmp::Reverse(place.after), place.replaces));
    for place in new {
        let after = usize::try_from(place.after).ok().filter(|after| (1..=lines.len()).contains(after))?;
        let first = after.checked_sub(usize::try_from(place.replaces).ok()?)?;
        if !lines[after - 1].ends_with('\n') {
            lines[after - 1].push('\n');
        }
        lines.splice(first..after, [format!("{}{}\n", place.indent, place.text)]);
    }
    Some(lines.concat())
}

/// A new line of code, and its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewLine {
    pub(crate) file: PathBuf,
    pub(crate) after: u64,
    /// The number of lines, up to `after`, that the new line replaces.
    pub(crate) replaces: u64,
    pub(crate) indent: String,
    /// A line with this indentation, if the line `after` has another one, else 0.
    pub(crate) aligned: u64,
    pub(crate) text: String,
}

impl NewLine {
    /// The new line and its place, for example `` `del x` after line 15 (indented like line 12) ``. Without
    /// `has_file`, the text around it names the file.
    pub(crate) fn said(&self, has_file: bool) -> String {
        let how = if self.replaces == 0 { "after" } else { "in place of" };
        let at = match (has_file, self.replaces) {
            (true, _) => place(&self.file.to_string_lossy(), self.after),
            (false, 0 | 1) => format!("line {}", self.after),
            (false, many) => format!("lines {} to {}", self.after + 1 - many, self.after),
        };
        let indented = match self.aligned {
            0 => String::new(),
            line => format!(" (indented like line {line})"),
        };
        format!("`{}` {how} {at}{indented}", self.text)
    }
}

/// The new lines of these rows, in the program's order. Variables that are deleted at the same place share a line.
pub(crate) fn places(rows: &[&Waste]) -> Vec<NewLine> {
    let mut found: Vec<NewLine> = Vec::new();
    let mut sorted = rows.to_vec();
    sorted.sort_by(|one, other| (&one.file, one.after).cmp(&(&other.file, other.after)));
    for row in sorted {
        let here =
            |it: &&mut NewLine| (&it.file, it.after, &it.indent) == (&row.file, row.after, &row.indent);
        match found.iter_mut().filter(here).find(|it| it.text.starts_with("del ")) {
            Some(line) if row.kind == WasteKind::Del => {
                line.text.push_str(", ");
                line.text.push_str(&row.name);
            }
            _ => found.push(NewLine {
                file: row.file.clone(),
                after: row.after,
                replaces: row.replaces,
                indent: row.indent.clone(),
                aligned: if row.replaces == 0 { row.aligned } else { 0 },
                text: row.text.clone(),
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, after: u64, kind: WasteKind, text: &str) -> Waste {
        let (name, indent, text) = (name.to_owned(), "  ".to_owned(), text.to_owned());
        let file = "train.py".into();
        Waste { kind, name, file, line: 1, bytes: 7, each: 0, after, replaces: 0, indent, aligned: 0, text }
    }

    #[test]
    fn a_new_line_may_replace_others() {
        let source = "for it in data:\n  total += net(\n    it)\n  more()\n";
        let sum = Waste { replaces: 2, ..row("total", 3, WasteKind::Graph, "total += net(it).detach()") };
        let rows = [sum, row("it", 3, WasteKind::Del, "del it")];
        let rows: Vec<&Waste> = rows.iter().collect();
        let expected = "for it in data:\n  total += net(it).detach()\n  del it\n  more()\n";
        assert_eq!(edited(source, &rows).as_deref(), Some(expected));
        let all = Waste { replaces: 4, ..row("x", 3, WasteKind::Unread, "pass") };
        assert_eq!(edited(source, &[&all]), None);
    }

    #[test]
    fn new_lines_are_indented_and_variables_of_one_place_share_one() {
        let source = "for it in data:\n  x = it\n  use(x)\n  more()";
        let rows = [
            row("y", 4, WasteKind::View, "y = y.clone()"),
            row("x", 3, WasteKind::Del, "del x"),
            row("z", 3, WasteKind::Del, "del z"),
        ];
        let rows: Vec<&Waste> = rows.iter().collect();
        let expected = "for it in data:\n  x = it\n  use(x)\n  del x, z\n  more()\n  y = y.clone()\n";
        assert_eq!(edited(source, &rows).as_deref(), Some(expected));
        assert_eq!(edited("one line", &rows), None);
    }
}
