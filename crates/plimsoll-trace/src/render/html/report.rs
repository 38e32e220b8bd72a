//! The beginning of a page that shows a [`Report`]: its verdict and its sections, except those that the page draws itself.

use std::fmt::{self, Write};

use super::cells::{Percent, Size};
use super::text::{Sentence, Text, Whole, capital};
use crate::report::{Body, Cell, Report, Section, Table};

/// The verdict, then each section in order.
pub(super) fn head(out: &mut String, report: &Report) -> fmt::Result {
    let class = if report.is_bad { "failed" } else { "well" };
    write!(out, "<section class=\"head\"><h2 class=\"verdict {class}\">{}</h2>", Sentence(&report.verdict))?;
    let is_shown = |section: &&Section| !section.is_drawn && !section.body.is_empty();
    report.sections.iter().filter(is_shown).try_for_each(|section| part(out, section))?;
    out.push_str("</section>");
    Ok(())
}

fn part(out: &mut String, section: &Section) -> fmt::Result {
    if !section.heading.is_empty() {
        write!(out, "<h3>{}{}</h3>", Text(&section.heading), Text(&section.note))?;
    }
    match &section.body {
        Body::Lines(lines) => {
            lines.iter().try_for_each(|line| write!(out, "<p>{}</p>", Sentence(capital(line))))
        }
        Body::Command(command) => write!(out, "<pre>{}</pre>", Whole(command)),
        Body::Table(rows) => table(out, rows),
    }
}

fn table(out: &mut String, table: &Table) -> fmt::Result {
    out.push_str("<table>");
    if table.is_titled() {
        out.push_str("<thead><tr>");
        table.columns.iter().try_for_each(|column| write!(out, "<th>{}", Text(column.title)))?;
    }
    out.push_str("<tbody>");
    for cells in table.shown() {
        out.push_str("<tr>");
        for (column, cell) in table.columns.iter().zip(&cells) {
            let unit = if column.unit.is_empty() { String::new() } else { format!(" {}", column.unit) };
            match cell {
                Cell::Bytes(bytes) => write!(out, "<td>{}{unit}", Size(*bytes))?,
                Cell::Percent(percent) => write!(out, "{}", Percent(*percent, "plain"))?,
                Cell::Count(count) => write!(out, "<td>{count}{unit}")?,
                Cell::Figure(text) | Cell::Text(text) => write!(out, "<td>{}", Text(text))?,
            }
        }
    }
    out.push_str("</table>");
    table.notes.iter().try_for_each(|note| write!(out, "<p class=\"hint\">{}</p>", Sentence(note)))
}
