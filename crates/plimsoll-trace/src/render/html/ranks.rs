//! The beginning of a page about the ranks of a job: which rank differs from the other ranks, a row for each rank, and
//! the lines that differ.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::Section;
use super::cells::{Bar, Size};
use super::panels::panels;
use super::text::{Sentence, Text};
use crate::explain::LineAcross;
use crate::render::ranks::{COLUMNS, ODD, RANGE, RankTable, line as line_name};
use crate::render::verdict;
use crate::render::words::{self, counted, plural};

/// The maximum number of ranks that have a row; the most important ranks do.
const RANKS: usize = 256;
/// The number of lines to show.
const LINES: usize = 40;
/// The number of unreadable files that are listed.
const MISSING: usize = 50;

/// `drawn` are the ranks that have a section, in the order of the sections; `commands` show each rank separately.
pub(super) fn head(
    out: &mut String,
    table: &RankTable<'_>,
    commands: &[String],
    drawn: &[usize],
    sections: &[Section<'_>],
) -> fmt::Result {
    let is_bad = table.devices.iter().any(|(_, device)| words::is_bad(device));
    let class = if is_bad { "verdict failed" } else { "verdict beside" };
    let verdict = table.verdict(|bytes| Bytes(bytes).to_string());
    write!(out, "<section class=\"head\"><h2 class=\"{class}\">{}</h2>", Sentence(verdict))?;
    for missing in table.missing().take(MISSING) {
        write!(out, "<p class=\"bad\">{}</p>", Sentence(missing))?;
    }
    for unused in table.unused.iter().take(MISSING) {
        write!(out, "<p>{}</p>", Sentence(unused.sentence()))?;
    }
    if let Some(more) = table.unused.len().checked_sub(MISSING).filter(|&more| more > 0) {
        write!(out, "<p>and {more} more</p>")?;
    }
    if let Some(more) = table.unreadable.len().checked_sub(MISSING).filter(|&more| more > 0) {
        write!(out, "<p class=\"bad\">{more} more cannot be read</p>")?;
    }
    panels(out, 0, sections, (table.ranks.allocated.median_bytes, "the median of all peaks"))?;
    ranks(out, table, drawn, "rank")?;
    others(out, table, commands, drawn)?;
    lines(out, table)?;
    out.push_str("</section>");
    Ok(())
}

/// The ranks that are shown, in their order.
fn shown(table: &RankTable<'_>) -> Vec<usize> {
    let mut shown = table.foremost(RANKS);
    shown.sort_unstable();
    shown
}

/// A row for each rank or device.
pub(super) fn ranks(out: &mut String, table: &RankTable<'_>, drawn: &[usize], what: &str) -> fmt::Result {
    let RankTable { ranks, devices, .. } = table;
    let most = ranks.allocated.bytes.iter().max().copied().unwrap_or(0);
    write!(out, "<h3>At the peak, {what} by {what}</h3><table class=\"ranks\"><thead><tr><th>allocated")?;
    write!(out, "<th class=\"bar\">of the most<th>reserved<th>{what}<th>verdict<tbody>")?;
    let shown = shown(table);
    for &nth in &shown {
        let (allocated, reserved) = (ranks.allocated.bytes[nth], ranks.reserved.bytes[nth]);
        let class = if table.is_odd(nth) { "odd" } else { "plain" };
        let bar = Bar { bytes: allocated, of: most, class };
        write!(out, "<tr><td>{}{bar}<td>{}<td>", Size(allocated), Size(reserved))?;
        let name = Text(table.name(nth));
        match drawn.iter().position(|&place| place == nth) {
            Some(section) => write!(out, "<a href=\"#device-{section}\">{name}</a>")?,
            None => write!(out, "{name}")?,
        }
        let brief = verdict::brief(devices[nth].1, |bytes| Bytes(bytes).to_string());
        write!(out, "<td>{}{}", odd(table, nth), Sentence(brief))?;
    }
    let rest = devices.len() - shown.len();
    if rest > 0 {
        write!(
            out,
            "<tr><td><td class=\"bar\"><td><td>{}<td>",
            counted(rest as u64, &format!("more {what}"))
        )?;
    }
    out.push_str("</table>");
    if (0..devices.len()).any(|nth| table.is_odd(nth)) {
        write!(out, "<p class=\"hint\">odd: {ODD}</p>")?;
    }
    Ok(())
}

/// The figures in which a rank is far from the other ranks, in words.
fn odd(table: &RankTable<'_>, nth: usize) -> &'static str {
    match (table.ranks.allocated.is_odd(nth), table.ranks.reserved.is_odd(nth)) {
        (true, true) => "<strong class=\"bad\">odd</strong>: ",
        (true, false) => "<strong class=\"bad\">odd</strong> in allocated bytes: ",
        (false, true) => "<strong class=\"bad\">odd</strong> in reserved bytes: ",
        (false, false) => "",
    }
}

/// The ranks that have no section, and the commands that show them.
fn others(out: &mut String, table: &RankTable<'_>, commands: &[String], drawn: &[usize]) -> fmt::Result {
    let without: Vec<usize> = shown(table).into_iter().filter(|nth| !drawn.contains(nth)).collect();
    if without.is_empty() {
        return Ok(());
    }
    let (shown, all) = (without.len(), table.devices.len() - drawn.len());
    let are = plural(all as u64, "rank is", "ranks are");
    write!(out, "<details><summary>{all} {are} not drawn below; these commands show them")?;
    if shown < all {
        write!(out, " (for {shown} of them)")?;
    }
    out.push_str("</summary><pre>");
    for command in without.iter().filter_map(|&nth| commands.get(nth)) {
        writeln!(out, "{}", Sentence(command))?;
    }
    out.push_str("</pre></details>");
    Ok(())
}

fn lines(out: &mut String, table: &RankTable<'_>) -> fmt::Result {
    let differing = table.differing();
    if differing.is_empty() {
        return Ok(());
    }
    out.push_str("<h3>Lines that differ, at each peak</h3><table class=\"across\"><thead><tr>");
    out.push_str("<th>spread<th class=\"bar\">of the widest");
    let count = table.devices.len();
    let columns: Vec<String> = if count <= COLUMNS {
        (0..count).map(|nth| Text(table.name(nth)).to_string()).collect()
    } else {
        RANGE.map(str::to_owned).into()
    };
    for column in &columns {
        write!(out, "<th>{column}")?;
    }
    out.push_str("<th>line<tbody>");
    let widest = differing.iter().map(|line| line.across.spread_bytes()).max().unwrap_or(0);
    for line in differing.iter().take(LINES) {
        let spread = line.across.spread_bytes();
        let class = if line.across.odd.is_empty() { "plain" } else { "odd" };
        write!(out, "<tr><td>{}{}", Size(spread), Bar { bytes: spread, of: widest, class })?;
        for (column, (bytes, is_odd)) in columns.iter().zip(figures(line, count)) {
            let odd = if is_odd { " <strong class=\"bad\">odd</strong>" } else { "" };
            write!(out, "<td data-of=\"{column}\">{}{odd}", Size(bytes))?;
        }
        write!(out, "<td><code>{}</code>", Text(line_name(line)))?;
        if count > COLUMNS && !line.across.odd.is_empty() {
            write!(out, " <strong class=\"bad\">odd</strong>: {}", Text(table.odd_names(line)))?;
        }
    }
    if let Some(rest) = differing.len().checked_sub(LINES).filter(|&rest| rest > 0) {
        out.push_str("<tr><td><td class=\"bar\">");
        columns.iter().for_each(|_| out.push_str("<td>"));
        write!(out, "<td>{}", counted(rest as u64, "more line"))?;
    }
    out.push_str("</table>");
    Ok(())
}

/// The figures of a line, one for each column, and whether each is far from those of the other ranks.
fn figures(line: &LineAcross, ranks: usize) -> Vec<(u64, bool)> {
    let across = &line.across;
    if ranks <= COLUMNS {
        let figures = across.bytes.iter().enumerate();
        return figures.map(|(nth, &bytes)| (bytes, across.is_odd(nth))).collect();
    }
    across.range().map(|bytes| (bytes, false)).into()
}
