//! The memory that is live at the end of a recording, compared with the explained moment, as tables.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::cells::{Bar, Size, line};
use super::kinds::kind;
use super::text::{Text, capital};
use crate::explain::{Change, DeviceExplanation, Remaining, ShownCategory};
use crate::render::words::{self, counted};
use crate::render::{Report, remaining as say};

/// The maximum number of rows in a table; the other rows are combined into one more.
const ROWS: usize = 20;

/// The section of one device; empty if little remains.
pub(super) fn section(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    let Some(remaining) = Remaining::of(report.analysis(device), device) else { return Ok(()) };
    let size = |bytes: u64| Bytes(bytes).to_string();
    write!(
        out,
        "<h3>Live at the end</h3><p class=\"said\">{}.</p>",
        capital(&say::sentence(&remaining, device, size))
    )?;
    let then = words::when(device);
    let table = Table { then, of: remaining.end_bytes };
    let snapshot = report.snapshot;
    let category = |category: ShownCategory| {
        (kind(report.origins, category), Text(&words::category(snapshot, category)).to_string())
    };
    table.write(out, "by category", &remaining.categories(), |key| category(*key))?;
    table.write(out, "by line", &remaining.lines(), |key| {
        let what = format!("{} {}", line(report, key.frame()), Text(&words::purpose(snapshot, key.category)));
        (kind(report.origins, key.category), what)
    })
}

struct Table {
    then: &'static str,
    of: u64,
}

impl Table {
    /// Writes rows, the largest at the end of the recording first. `words` gives the colour and the name of a row, as HTML.
    fn write<K>(
        &self,
        out: &mut String,
        head: &str,
        rows: &[Change<K>],
        words: impl Fn(&K) -> (usize, String),
    ) -> fmt::Result {
        write!(out, "<table class=\"remaining\"><thead><tr><th>at the end<th class=\"bar\">share")?;
        write!(out, "<th>{}<th>{head}<tbody>", self.then)?;
        let (listed, rest) = rows.split_at(rows.len().min(ROWS));
        for Change { key, amounts: [then, end] } in listed {
            let (kind, what) = words(key);
            let bar = Bar { bytes: end.bytes, of: self.of, class: &format!("kind-{kind}") };
            write!(out, "<tr><td>{}{bar}<td>{}<td>{what}", Size(end.bytes), Size(then.bytes))?;
        }
        if !rest.is_empty() {
            let sum =
                |side: usize| rest.iter().fold(0_u64, |sum, row| sum.saturating_add(row.amounts[side].bytes));
            let (bar, more) = (Bar::plain(sum(1), self.of), counted(rest.len() as u64, "more row"));
            write!(out, "<tr><td>{}{bar}<td>{}<td>{more}", Size(sum(1)), Size(sum(0)))?;
        }
        out.push_str("</table>");
        Ok(())
    }
}
