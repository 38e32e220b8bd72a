//! The part of the page that needs no script: the verdict and the tables of one device.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::cells::{self, Bar, Size};
use super::kinds::kind;
use super::text::{Sentence, Text};
use super::{Section, growth, peaks, quality, remaining, settings, summary};
use crate::explain::{BackwardBlock, DeviceExplanation, Holes, Part, Pin, Share};
use crate::render::words::{self, counted};
use crate::render::{Report, failure, ledger, verdict};

/// The maximum number of rows in a table; the other rows are combined into one more.
const ROWS: usize = 40;
/// The number of segments whose pinning blocks are listed.
const PINS: usize = 20;

/// The parts of one device's section: the suffix of each part's id, and the text of the link to it.
const PARTS: [(&str, &str); 7] = [
    ("bytes", "bytes"),
    ("time", "over time"),
    ("held", "owners"),
    ("cached", "cached"),
    ("steps", "from step to step"),
    ("settings", "other settings"),
    ("quality", "data quality"),
];

/// One device's section of the page. `interactive` is the HTML of the drawings: timeline, icicle, map.
pub(super) fn section(
    section: &Section<'_>,
    nth: usize,
    interactive: [&str; 3],
) -> Result<String, fmt::Error> {
    let Section { title, report, device, .. } = section;
    let tables = Tables { report, device };
    let what_if = section.what_if();
    let mut out = String::new();
    let [timeline, icicle, map] = interactive;
    let outcome = if words::is_bad(device) { "failed" } else { "well" };
    write!(out, "<section class=\"device\" id=\"device-{nth}\" data-nth=\"{nth}\">")?;
    if !title.is_empty() {
        write!(out, "<p class=\"title\">{}</p>", Text(title))?;
    }
    let verdict = verdict::sentence(device, |bytes| Bytes(bytes).to_string());
    write!(out, "<h2 class=\"verdict {outcome}\">{}</h2>", Sentence(verdict))?;
    if !section.is_summed_up {
        summary::section(&mut out, section, what_if.as_deref())?;
    }
    tables.failure(&mut out)?;
    let is_there = |name| match name {
        "time" => !timeline.is_empty(),
        "settings" => what_if.is_some(),
        _ => true,
    };
    out.push_str("<nav>");
    for (name, text) in PARTS.into_iter().filter(|(name, _)| is_there(*name)) {
        write!(out, "<a href=\"#device-{nth}-{name}\">{text}</a> ")?;
    }
    out.push_str("</nav>");
    for (name, _) in PARTS.into_iter().filter(|(name, _)| is_there(*name)) {
        write!(out, "<section id=\"device-{nth}-{name}\">")?;
        match name {
            "bytes" => tables.ledger(&mut out)?,
            "time" => out.push_str(timeline),
            "held" => {
                tables.owners(&mut out)?;
                out.push_str(icicle);
                tables.largest(&mut out)?;
                remaining::section(&mut out, report, device)?;
            }
            "cached" => {
                tables.fragmentation(&mut out)?;
                out.push_str(map);
            }
            "steps" => {
                out.push_str("<h3>Growth by step</h3>");
                growth::section(&mut out, report, device)?;
                peaks::section(&mut out, report, device)?;
            }
            "settings" => {
                out.push_str("<h3>The recorded requests under other settings</h3>");
                what_if.iter().try_for_each(|what_if| settings::section(&mut out, what_if))?;
            }
            _ => {
                out.push_str("<h3>Data quality</h3>");
                quality::section(&mut out, report, device)?;
            }
        }
        out.push_str("</section>");
    }
    out.push_str("</section>");
    Ok(out)
}

struct Tables<'a> {
    report: &'a Report<'a>,
    device: &'a DeviceExplanation,
}

impl Tables<'_> {
    fn failure(&self, out: &mut String) -> fmt::Result {
        let size = |bytes: u64| Bytes(bytes).to_string();
        let lines = failure::request(self.report.snapshot, self.report.origins, self.device, size);
        lines.iter().try_for_each(|line| write!(out, "<p>{}</p>", Sentence(line.trim_start())))
    }

    fn ledger(&self, out: &mut String) -> fmt::Result {
        let rows = ledger::rows(&self.device.ledger);
        let whole = rows.iter().filter_map(|row| row.bytes).max().unwrap_or(0);
        write!(out, "<h3>Device memory {}</h3><table class=\"ledger\">", words::when(self.device))?;
        out.push_str("<thead><tr><th>bytes<th class=\"bar\"><th>memory<th>PyTorch's name<tbody>");
        for row in &rows {
            let depth = row.part.within().map_or(0, |part| if part == Part::Total { 1 } else { 2 });
            let size = row.bytes.map_or_else(|| "unknown".to_owned(), |bytes| Size(bytes).to_string());
            let bar = row.bytes.map(|bytes| Bar::plain(bytes, whole).to_string());
            let bar = bar.as_deref().unwrap_or("<td class=\"bar\">");
            let (name, pytorch) = (row.part.name(), row.part.pytorch());
            write!(out, "<tr class=\"depth-{depth}\"><td>{size}{bar}<td>{name}<td><code>{pytorch}</code>")?;
        }
        out.push_str("</table>");
        let outside = ledger::outside(&self.device.ledger);
        outside.iter().try_for_each(|hint| write!(out, "<p class=\"hint\">{hint}</p>"))
    }

    fn owners(&self, out: &mut String) -> fmt::Result {
        let (owners, when) = (&self.device.owners, words::when(self.device));
        write!(out, "<h3>Live memory {when}, by category</h3>")?;
        self.table(out, ["category", "evidence"], &owners.by_category, |key| {
            let name = Text(&words::category(self.report.snapshot, key.category)).to_string();
            (Some(kind(self.report.origins, key.category)), name, words::reason(*key))
        })?;
        out.push_str("<h3>By line</h3>");
        self.table(out, ["line", "category"], &owners.by_line, |key| {
            let category = words::purpose(self.report.snapshot, key.category);
            let line = words::asker(self.report.snapshot, *key);
            (
                Some(kind(self.report.origins, key.category)),
                format!("<code>{}</code>", Text(&line)),
                Text(&category).to_string(),
            )
        })?;
        out.push_str("<h3>By operator</h3>");
        self.table(out, ["operator", ""], &owners.by_operator, |key| {
            let name = key.map(|name| format!("<code>{}</code>", Text(name.of(self.report.snapshot))));
            (None, name.unwrap_or_else(|| "no operator in the stack".to_owned()), String::new())
        })
    }

    /// Writes shares as rows. `words` gives the kind that colours a key's bar, and the text of the two columns, as HTML.
    fn table<K>(
        &self,
        out: &mut String,
        heads: [&str; 2],
        shares: &[Share<K>],
        words: impl Fn(&K) -> (Option<usize>, String, String),
    ) -> fmt::Result {
        let of = self.device.owners.bytes;
        out.push_str("<table><thead><tr><th>bytes<th class=\"bar\">share<th>blocks");
        write!(out, "<th>{}<th>{}<tbody>", heads[0], heads[1])?;
        let (listed, rest) = shares.split_at(shares.len().min(ROWS));
        for share in listed {
            let (kind, name, note) = words(&share.key);
            let class = kind.map_or_else(|| "plain".to_owned(), |kind| format!("kind-{kind}"));
            let bar = Bar { bytes: share.bytes, of, class: &class };
            write!(
                out,
                "<tr><td>{}{bar}<td class=\"count\">{}<td>{name}<td>{note}",
                Size(share.bytes),
                share.blocks
            )?;
        }
        if !rest.is_empty() {
            let bytes = rest.iter().fold(0_u64, |sum, share| sum.saturating_add(share.bytes));
            let blocks: u64 = rest.iter().map(|share| share.blocks).sum();
            let bar = Bar::plain(bytes, of);
            write!(
                out,
                "<tr><td>{}{bar}<td class=\"count\">{blocks}<td>{} more<td>",
                Size(bytes),
                rest.len()
            )?;
        }
        write!(out, "<tfoot><tr><td>{}<td><td class=\"count\">", Size(of))?;
        let blocks: u64 = shares.iter().map(|share| share.blocks).sum();
        write!(out, "{blocks}<td>total<td></table>")
    }

    fn largest(&self, out: &mut String) -> fmt::Result {
        write!(out, "<h3>The largest blocks {}</h3>", words::when(self.device))?;
        out.push_str("<table><thead><tr><th>bytes<th class=\"bar\">share<th>allocated<th>line<th>category");
        out.push_str("<tbody>");
        for &index in &self.device.owners.largest {
            let life = &self.device.timeline.lives[index.index()];
            let (category, _) = self.device.purposes.shown(index, life, self.report.origins);
            let name = words::purpose(self.report.snapshot, category).into_owned();
            let name = Text(&name);
            let born = life.born.map_or_else(
                || "before the recording".to_owned(),
                |event| format!("at event {}", event.index()),
            );
            let class = format!("kind-{}", kind(self.report.origins, category));
            let bar = Bar { bytes: life.bytes, of: self.device.owners.bytes, class: &class };
            let origin = self.report.origins.get(life.stack);
            let line = match (origin.line, origin.package_line) {
                (None, _) => {
                    let (operator, forward) =
                        (origin.operator, origin.forward.or(self.device.forward_lines.get(life.born)));
                    let block = BackwardBlock { operator, forward };
                    Text(&words::backward(self.report.snapshot, block)).to_string()
                }
                (line, None) => cells::line(self.report, line),
                (line, library) => {
                    format!("{}<br>{}", cells::line(self.report, line), cells::line(self.report, library))
                }
            };
            write!(out, "<tr><td>{}{bar}<td>{born}<td>{line}<td>{name}", Size(life.bytes))?;
        }
        out.push_str("</table>");
        Ok(())
    }

    fn fragmentation(&self, out: &mut String) -> fmt::Result {
        let fragmentation = &self.device.fragmentation;
        let Holes { count, largest_bytes, cached, .. } = fragmentation.all;
        write!(out, "<h3>Cached memory {}</h3>", words::when(self.device))?;
        if cached.sum() == 0 {
            out.push_str("<p>Nothing.</p>");
            return Ok(());
        }
        write!(
            out,
            "<p>{} in {}, the largest {}. {} of it are in segments with live blocks ({:.1} % of what is reserved); \
             <code>empty_cache</code> would return {}.</p>",
            Size(cached.sum()),
            counted(count as u64, "hole"),
            Size(largest_bytes),
            Size(cached.pinned),
            100.0 * fragmentation.all.fragmentation(),
            Size(fragmentation.empty_cache_bytes.0)
        )?;
        let mut pins: Vec<&Pin> = fragmentation.pins.iter().collect();
        if pins.is_empty() {
            return Ok(());
        }
        pins.sort_by_key(|pin| std::cmp::Reverse(pin.pinned_bytes));
        out.push_str(
            "<table><thead><tr><th>pinned<th class=\"bar\">share<th>by<th>oldest block<th>its line<tbody>",
        );
        for pin in pins.iter().take(PINS) {
            let bar = Bar::plain(pin.pinned_bytes, cached.pinned);
            let oldest = pin.blocks.first();
            let age = oldest.map_or_else(String::new, |oldest| match oldest.born {
                Some(_) => format!("{} events before", oldest.age_events),
                None => "from before the recording".to_owned(),
            });
            let line = cells::line(self.report, oldest.and_then(|pinning_block| pinning_block.line));
            let (pinned, held) = (Size(pin.pinned_bytes), Size(pin.held_bytes));
            let blocks = counted(pin.blocks.len() as u64, "block");
            write!(out, "<tr><td>{pinned}{bar}<td>{held} in {blocks}<td>{age}<td>{line}")?;
        }
        if let Some(rest) = pins.len().checked_sub(PINS).filter(|&rest| rest > 0) {
            write!(out, "<tr><td><td><td>{rest} more segments<td><td>")?;
        }
        out.push_str("</table>");
        Ok(())
    }
}
