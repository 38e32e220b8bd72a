//! Cells of the tables: a [`Size`] with its exact bytes, a share as a [`Bar`], a change as [`Changed`] with a bar, and
//! a [`line`] of the program.

use std::fmt::{self, Display};

use plimsoll_alloc::Bytes;

use super::text::Text;
use crate::render::{Report, words};
use crate::snapshot::FrameId;

/// A size, with the exact bytes as a tooltip.
pub(super) struct Size(pub(super) u64);

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<data value=\"{0}\" title=\"{0} bytes\">{1}</data>", self.0, Bytes(self.0))
    }
}

/// A cell with a share, and a bar of proportional length, coloured by a class of page.css.
pub(super) struct Bar<'a> {
    pub(super) bytes: u64,
    pub(super) of: u64,
    pub(super) class: &'a str,
}

/// The cell of a [`Bar`], for a share that is given in percent, with the class of its bar.
pub(super) struct Percent<'a>(pub(super) f64, pub(super) &'a str);

impl<'a> Bar<'a> {
    /// A bar for rows that have no colour.
    pub(super) fn plain(bytes: u64, of: u64) -> Self {
        Bar { bytes, of, class: "plain" }
    }
}

impl Display for Bar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = if self.of == 0 { 0.0 } else { 100.0 * self.bytes as f64 / self.of as f64 };
        Percent(share, self.class).fmt(f)
    }
}

impl Display for Percent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percent(share, class) = self;
        write!(
            f,
            "<td class=\"bar\"><svg class=\"{class}\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><rect width=\"{:.2}\" height=\"10\"/></svg>{share:.1} %",
            share.min(100.0)
        )
    }
}

/// The change of a size, with the exact bytes as a tooltip.
pub(super) struct Changed(pub(super) i128);

impl Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = words::change(self.0, |bytes| Bytes(bytes).to_string());
        write!(f, "<data value=\"{0}\" title=\"{0:+} bytes\">{text}</data>", self.0)
    }
}

/// A cell with a bar that extends from the middle: to the right for growth, to the left for shrinkage.
pub(super) struct ChangeBar {
    pub(super) bytes: i128,
    /// The bytes that fill one half of the cell.
    pub(super) of: u128,
}

impl Display for ChangeBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = if self.of == 0 { 0.0 } else { 50.0 * self.bytes.unsigned_abs() as f64 / self.of as f64 };
        let (class, x) = if self.bytes < 0 { ("less", -share) } else { ("more", 0.0) };
        write!(
            f,
            "<td class=\"bar\"><svg class=\"{class}\" viewBox=\"-50 0 100 10\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><rect x=\"{x:.2}\" width=\"{share:.2}\" height=\"10\"/><path d=\"M0 0V10\"/></svg>"
        )
    }
}

/// A line of the program, with its full path as a tooltip.
pub(super) fn line(report: &Report<'_>, frame: Option<FrameId>) -> String {
    let Some(id) = frame else { return words::NO_LINE.to_owned() };
    let snapshot = report.snapshot;
    let path = snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
    format!("<code title=\"{}\">{}</code>", Text(path), Text(words::line(snapshot, id)))
}
