//! A comparison of ranks as text: which rank differs from the others and why, a row for each rank, then the lines
//! that differ.

use std::fmt::Write;

use plimsoll_trace::explain::Across;
use plimsoll_trace::render::ranks::{COLUMNS, ODD, RANGE, RankTable, line as line_name};
use plimsoll_trace::render::verdict;

use crate::output::{BOLD, RESET};
use crate::shown::Shown;

/// The width of a column, in characters.
const COLUMN: usize = 13;

/// The complete answer.
pub(super) fn render(job: &RankTable<'_>, shown: Shown) -> String {
    let page = Text { job, shown };
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{BOLD}{}{RESET}", job.verdict(|bytes| shown.size(bytes)));
    for missing in job.missing() {
        let _ = writeln!(out, "{missing}");
    }
    for unused in job.unused.iter().take(shown.rows) {
        let _ = writeln!(out, "{}", unused.sentence());
    }
    if job.unused.len() > shown.rows {
        let _ = writeln!(
            out,
            "{} more files are not used, because another file of the same rank is",
            job.unused.len() - shown.rows
        );
    }
    page.ranks(&mut out);
    page.lines(&mut out);
    out
}

/// A row for each rank (or device): the peaks, and the verdict in a few words.
pub(in crate::explain) fn rows(out: &mut String, table: &RankTable<'_>, shown: Shown) {
    Text { job: table, shown }.ranks(out);
}

struct Text<'a> {
    job: &'a RankTable<'a>,
    shown: Shown,
}

impl Text<'_> {
    fn size(&self, bytes: u64) -> String {
        self.shown.size(bytes)
    }

    fn ranks(&self, out: &mut String) {
        let ranks = &self.job.ranks;
        let wide = ranks.ranks.iter().map(|rank| rank.name.chars().count()).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "\n{BOLD}{:<wide$}  {:>13}  {:>13}{RESET}",
            "At the peak",
            "allocated",
            "reserved",
            wide = wide + 2
        );
        for (nth, (_, device)) in self.job.devices.iter().enumerate() {
            let cell = |across: &Across| self.cell(across, nth);
            let (allocated, reserved) = (cell(&ranks.allocated), cell(&ranks.reserved));
            let brief = verdict::brief(device, |bytes| self.size(bytes));
            let name = self.job.name(nth);
            let _ = writeln!(
                out,
                "  {name:<wide$}  {allocated:>13}  {reserved:>13}  {brief}",
                wide = wide.max(11)
            );
        }
        if ranks.allocated.odd.len() + ranks.reserved.odd.len() > 0 {
            let _ = writeln!(out, "  * {ODD}");
        }
    }

    /// A figure, with a star if it is far from those of the other ranks.
    fn cell(&self, across: &Across, nth: usize) -> String {
        let star = if across.is_odd(nth) { "*" } else { " " };
        format!("{}{star}", self.size(across.bytes[nth]))
    }

    fn lines(&self, out: &mut String) {
        let differing = self.job.differing();
        if differing.is_empty() {
            return;
        }
        let count = self.job.ranks.ranks.len();
        let is_short = |nth: usize| self.job.name(nth).chars().count() <= COLUMN;
        let fits = count <= COLUMNS && (0..count).all(is_short);
        let _ = writeln!(out, "\n{BOLD}Lines that differ, at each peak{RESET}");
        if fits {
            let names: String = (0..count).map(|nth| format!("{:>COLUMN$} ", self.job.name(nth))).collect();
            let _ = writeln!(out, "  {}", names.trim_end());
        } else {
            let [least, median, most] = RANGE;
            let _ = writeln!(out, "  {least:>13} {median:>13} {most:>13}");
        }
        for line in differing.iter().take(self.shown.rows) {
            let across = &line.across;
            let place = line_name(line);
            if fits {
                let cells: String =
                    (0..count).map(|nth| format!("{:>COLUMN$} ", self.cell(across, nth))).collect();
                let _ = writeln!(out, "  {cells} {place}");
            } else {
                let cells = across.range().map(|bytes| format!("{:>13}", self.size(bytes)));
                let odd = self.job.odd_names(line);
                let odd = if odd.is_empty() { odd } else { format!("  odd: {odd}") };
                let _ = writeln!(out, "  {}  {place}{odd}", cells.join(" "));
            }
        }
        if differing.len() > self.shown.rows {
            let _ = writeln!(out, "  {} more", differing.len() - self.shown.rows);
        }
    }
}
