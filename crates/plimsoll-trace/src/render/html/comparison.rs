//! The beginning of a page about two recordings: the changes, as tables whose rows sum to the total change.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::cells::{ChangeBar, Changed, Size};
use super::kinds::kind;
use super::panels::{panels, swatch};
use super::text::{Sentence, Text};
use super::{SECTIONS, Section};
use crate::explain::{Amount, Change};
use crate::render::comparison::{Compared, IN_ALL, Listed, SIDES, SnapshotDiff, Total};
use crate::render::words;

/// The maximum number of rows in a table; the other rows are combined into one more.
const ROWS: usize = 40;

/// `sections` has the sections of the pairs, before and after alternating, then the devices without a counterpart.
pub(super) fn head(out: &mut String, diff: &SnapshotDiff<'_>, sections: &[Section<'_>]) -> fmt::Result {
    out.push_str("<section class=\"head\">");
    for (nth, pair) in diff.pairs.iter().take(SECTIONS / 2).enumerate() {
        compared(
            out,
            &diff.prefix(pair),
            pair,
            (2 * nth, sections.get(2 * nth..2 * nth + 2).unwrap_or_default()),
        )?;
    }
    for alone in diff.alone().take(ROWS) {
        write!(out, "<p>{}</p>", Sentence(alone))?;
    }
    let devices = 2 * diff.pairs.len() + diff.alone.len();
    if let Some(more) = devices.checked_sub(sections.len()).filter(|&more| more > 0) {
        write!(out, "<p class=\"hint\">{more} more are not shown: <code>--device N</code> shows one.</p>")?;
    }
    out.push_str("</section>");
    Ok(())
}

/// The changes from one device to the other. `sections` are the page's sections of both devices, with the index of the
/// first section.
fn compared(
    out: &mut String,
    prefix: &str,
    pair: &Compared<'_>,
    (first, sections): (usize, &[Section<'_>]),
) -> fmt::Result {
    let (size, lines) = (|bytes| Bytes(bytes).to_string(), pair.lines());
    let verdict = pair.verdict(&lines, size);
    write!(out, "<h2 class=\"verdict beside\">{prefix}{}</h2><dl class=\"sides\">", Sentence(verdict))?;
    for (side, name) in SIDES.into_iter().enumerate() {
        let (file, said) = (pair.reports[side].file, pair.side(side, size));
        write!(out, "<dt>{name}<dd><strong>{}</strong>: {}", Text(file), Sentence(said))?;
    }
    out.push_str("</dl>");
    let [allocated, _] = pair.peaks();
    panels(out, first, sections, (allocated.of[0], "the peak before"))?;
    totals(out, pair)?;
    out.push_str("<h3>At the peak, by category</h3>");
    table(out, "category", &pair.comparison.categories, |key| {
        let name = words::category(pair.reports[0].snapshot, *key);
        format!("{}{}", swatch(kind(pair.reports[0].origins, *key)), Text(&name))
    })?;
    out.push_str("<h3>At the peak, by line</h3>");
    table(out, "line", &lines, |line| format!("<code>{}</code>", Text(line)))
}

fn begin(out: &mut String, what: &str) -> fmt::Result {
    out.push_str(
        "<table class=\"changes\"><thead><tr><th>change<th class=\"bar\">less | more<th>before<th>after",
    );
    write!(out, "<th>{what}<tbody>")
}

fn totals(out: &mut String, pair: &Compared<'_>) -> fmt::Result {
    out.push_str("<h3>Total</h3>");
    begin(out, "figure")?;
    let peaks = pair.peaks();
    let most = peaks.iter().map(|total| total.change().unsigned_abs()).max().unwrap_or(0);
    for total in peaks {
        let (change, [before, after]) = (total.change(), total.of.map(Size));
        let bar = ChangeBar { bytes: change, of: most };
        write!(out, "<tr><td>{}{bar}<td>{before}<td>{after}", Changed(change))?;
        write!(out, "<td>{}{}", total.name, total.percent())?;
    }
    let requests = pair.requests();
    let (change, Total { name, of: [before, after] }) = (requests.signed(), requests);
    write!(out, "<tr><td>{change}<td class=\"bar\"><td>{before}<td>{after}<td>{name}</table>")
}

/// A table of the largest changes, with one row for all other changes and a row for the sum.
fn table<K>(out: &mut String, what: &str, rows: &[Change<K>], name: impl Fn(&K) -> String) -> fmt::Result {
    let Listed { rows, rest, all } = Listed::of(rows, ROWS);
    let changes = rows.iter().map(|row| row.bytes()).chain(rest.iter().map(Change::bytes));
    let most = changes.map(i128::unsigned_abs).max().unwrap_or(0);
    let row = |out: &mut String, amounts: [Amount; 2], name: &str| {
        let change = Amount::change(amounts);
        let [before, after] = amounts.map(|amount| Size(amount.bytes));
        let bar = ChangeBar { bytes: change, of: most };
        write!(out, "<tr><td>{}{bar}<td>{before}<td>{after}<td>{name}", Changed(change))
    };
    begin(out, what)?;
    for Change { key, amounts } in rows {
        row(out, *amounts, &name(key))?;
    }
    if let Some(Change { key, amounts }) = rest {
        row(out, amounts, &key)?;
    }
    let change = Amount::change(all);
    let [before, after] = all.map(|amount| Size(amount.bytes));
    write!(
        out,
        "<tfoot><tr><td>{}<td class=\"bar\"><td>{before}<td>{after}<td>{IN_ALL}</table>",
        Changed(change)
    )
}
