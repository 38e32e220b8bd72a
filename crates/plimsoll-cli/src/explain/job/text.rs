//! Ranks side by side, for people: which is odd and by what, a row for each, then the lines that differ.

use std::fmt::Write;

use plimsoll_trace::explain::{Across, LineAcross, Place};
use plimsoll_trace::render::words;

use super::Job;
use crate::explain::ExplainArgs;
use crate::output::{BOLD, RESET};

/// Columns for ranks that fit on a line, and characters in each; of more, each line shows its range alone.
const MOST_COLUMNS: usize = 8;
const COLUMN: usize = 13;

/// The whole answer.
pub(super) fn render(job: &Job, args: &ExplainArgs) -> String {
    let page = Page { job, args };
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{BOLD}{}{RESET}", page.verdict());
    for (name, why) in &job.unreadable {
        let _ = writeln!(out, "incomplete without {name}: {why}");
    }
    page.ranks(&mut out);
    page.lines(&mut out);
    out
}

struct Page<'a> {
    job: &'a Job,
    args: &'a ExplainArgs,
}

impl Page<'_> {
    fn size(&self, bytes: u64) -> String {
        self.args.shown.size(bytes)
    }

    fn name(&self, nth: usize) -> &str {
        &self.job.ranks.ranks[nth].name
    }

    /// What failed, then who is odd.
    fn verdict(&self) -> String {
        let failed = self.job.devices().enumerate().filter(|(_, (_, device))| device.failure.is_some());
        let failed: Vec<&str> = failed.map(|(nth, _)| self.name(nth)).collect();
        let count = self.job.ranks.ranks.len();
        let failed = match failed.len() {
            0 => String::new(),
            all if all == count => format!("all {count} ranks ran out of memory; "),
            few @ 1..=4 => format!("{} ran out of memory ({few} of {count} ranks); ", failed.join(", ")),
            many => format!("{many} of {count} ranks ran out of memory; "),
        };
        format!("{failed}{}", self.odd())
    }

    fn odd(&self) -> String {
        let ranks = &self.job.ranks;
        let (of, what) = match (ranks.allocated.odd.is_empty(), ranks.reserved.odd.is_empty()) {
            (true, false) => (&ranks.reserved, "reserved"),
            _ => (&ranks.allocated, "allocated"),
        };
        let (least, most) = (of.bytes.iter().min(), of.bytes.iter().max());
        let (Some(&least), Some(&most)) = (least, most) else { return "no rank".to_owned() };
        let range = if least == most {
            format!("each has {} {what} at its peak", self.size(most))
        } else {
            format!("{} to {} {what} at their peaks", self.size(least), self.size(most))
        };
        let Some(&odd) = of.odd.first() else {
            return match of.bytes.len() {
                2 if least != most => format!("{range}; which of two is odd cannot be told{}", self.widest()),
                count => format!("none of {count} ranks is odd: {range}"),
            };
        };
        let others = self.size(of.median_bytes);
        let names: Vec<&str> = of.odd.iter().map(|&nth| self.name(nth)).collect();
        let are = if names.len() == 1 { "is the odd one out" } else { "are odd" };
        let cause = self.cause(odd).map_or_else(String::new, |line| {
            let [here, median] =
                [line.across.bytes[odd], line.across.median_bytes].map(|bytes| self.size(bytes));
            format!("; {here} {}, the others {median}", at(line.place.as_ref()))
        });
        let here = self.size(of.bytes[odd]);
        format!("{} {are}: {here} {what} at its peak, the others {others}{cause}", names.join(", "))
    }

    /// The line in which an odd rank differs most from the others.
    fn cause(&self, odd: usize) -> Option<&LineAcross> {
        let lines = self.job.ranks.lines.iter().filter(|line| line.across.odd.contains(&odd));
        lines.max_by_key(|line| line.across.bytes[odd].abs_diff(line.across.median_bytes))
    }

    /// The line in which two ranks differ most.
    fn widest(&self) -> String {
        self.job.ranks.lines.first().map_or_else(String::new, |line| {
            format!(
                "; they differ most by {} {}",
                self.size(line.across.spread_bytes()),
                at(line.place.as_ref())
            )
        })
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
        for (nth, (_, device)) in self.job.devices().enumerate() {
            let cell = |across: &Across| self.cell(across, nth);
            let (allocated, reserved) = (cell(&ranks.allocated), cell(&ranks.reserved));
            let brief = words::brief(device, |bytes| self.size(bytes));
            let name = self.name(nth);
            let _ = writeln!(
                out,
                "  {name:<wide$}  {allocated:>13}  {reserved:>13}  {brief}",
                wide = wide.max(11)
            );
        }
        if ranks.allocated.odd.len() + ranks.reserved.odd.len() > 0 {
            let _ = writeln!(out, "  * far from the others, which are close to each other");
        }
    }

    /// A figure, with a star if it is odd.
    fn cell(&self, across: &Across, nth: usize) -> String {
        let star = if across.odd.contains(&nth) { "*" } else { " " };
        format!("{}{star}", self.size(across.bytes[nth]))
    }

    fn lines(&self, out: &mut String) {
        let differing: Vec<&LineAcross> =
            self.job.ranks.lines.iter().filter(|line| line.across.spread_bytes() > 0).collect();
        if differing.is_empty() {
            return;
        }
        let count = self.job.ranks.ranks.len();
        let is_short = |nth: usize| self.name(nth).chars().count() <= COLUMN;
        let fits = count <= MOST_COLUMNS && (0..count).all(is_short);
        let _ = writeln!(out, "\n{BOLD}Lines in which they differ, at the peak of each{RESET}");
        if fits {
            let names: String = (0..count).map(|nth| format!("{:>COLUMN$} ", self.name(nth))).collect();
            let _ = writeln!(out, "  {}", names.trim_end());
        } else {
            let _ = writeln!(out, "  {:>13} {:>13} {:>13}", "least", "median", "most");
        }
        for line in differing.iter().take(self.args.shown.rows) {
            let across = &line.across;
            let place = place(line.place.as_ref());
            if fits {
                let cells: String =
                    (0..count).map(|nth| format!("{:>COLUMN$} ", self.cell(across, nth))).collect();
                let _ = writeln!(out, "  {cells} {place}");
            } else {
                let figures =
                    [across.bytes.iter().min(), Some(&across.median_bytes), across.bytes.iter().max()];
                let cells = figures.map(|bytes| format!("{:>13}", self.size(bytes.copied().unwrap_or(0))));
                let odd: Vec<&str> = across.odd.iter().map(|&nth| self.name(nth)).collect();
                let odd = if odd.is_empty() { String::new() } else { format!("  odd: {}", odd.join(", ")) };
                let _ = writeln!(out, "  {}  {place}{odd}", cells.join(" "));
            }
        }
        if differing.len() > self.args.shown.rows {
            let _ = writeln!(out, "  {} more", differing.len() - self.args.shown.rows);
        }
    }
}

/// A place in a sentence.
fn at(line: Option<&Place>) -> String {
    format!("{} {}", if line.is_some() { "at" } else { "with" }, place(line))
}

fn place(place: Option<&Place>) -> String {
    place.map_or_else(
        || "no line of Python".to_owned(),
        |Place { file, function, line }| format!("{file}:{line} {function}"),
    )
}
