//! What is read without a script: the verdict and the tables of one device.

use std::fmt::{self, Display, Write};

use plimsoll_alloc::Bytes;

use super::Report;
use super::buckets::kind;
use super::text::Text;
use crate::explain::{DeviceExplanation, Holes, Part, Pin, Share};
use crate::render::words;
use crate::snapshot::FrameId;

/// Rows of a table; what is beyond them is one more row.
const ROWS: usize = 40;
/// Segments whose pins are listed.
const PINS: usize = 20;

/// One device's part of the page. `interactive` is put where the drawings go: timeline, icicle, map.
pub(super) fn section(
    report: &Report<'_>,
    device: &DeviceExplanation,
    nth: usize,
    interactive: [&str; 3],
) -> Result<String, fmt::Error> {
    let tables = Tables { report, device };
    let mut out = String::new();
    let [timeline, icicle, map] = interactive;
    let outcome = if device.failure.is_some() { "failed" } else { "well" };
    write!(out, "<section class=\"device\" id=\"device-{nth}\" data-nth=\"{nth}\">")?;
    if report.devices.len() > 1 {
        write!(out, "<p class=\"number\">device {}</p>", device.timeline.device)?;
    }
    let verdict = words::verdict(device, |bytes| Bytes(bytes).to_string());
    write!(out, "<h2 class=\"verdict {outcome}\">{}</h2>", Text(verdict))?;
    tables.failure(&mut out)?;
    tables.ledger(&mut out)?;
    out.push_str(timeline);
    tables.holders(&mut out)?;
    out.push_str(icicle);
    tables.largest(&mut out)?;
    tables.fragmentation(&mut out)?;
    out.push_str(map);
    tables.quality(&mut out)?;
    out.push_str("</section>");
    Ok(out)
}

/// A size, with the exact bytes for who points at it.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<data value=\"{0}\" title=\"{0} bytes\">{1}</data>", self.0, Bytes(self.0))
    }
}

struct Tables<'a> {
    report: &'a Report<'a>,
    device: &'a DeviceExplanation,
}

impl Tables<'_> {
    fn line(&self, frame: Option<FrameId>) -> String {
        let Some(id) = frame else { return "no line of Python".to_owned() };
        let snapshot = self.report.snapshot;
        let path = snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
        format!("<code title=\"{}\">{}</code>", Text(path), Text(words::line(snapshot, id)))
    }

    fn failure(&self, out: &mut String) -> fmt::Result {
        let Some(failure) = self.device.failure else { return Ok(()) };
        if let Some(line) = self.report.origins.get(failure.stack).line {
            write!(out, "<p>asked for at {}</p>", self.line(Some(line)))?;
        }
        if failure.failures > 1 {
            write!(out, "<p>the last of {} requests that failed</p>", failure.failures)?;
        }
        Ok(())
    }

    fn ledger(&self, out: &mut String) -> fmt::Result {
        let rows = self.device.ledger.rows();
        let whole = rows.iter().filter_map(|row| row.bytes).max().unwrap_or(0);
        write!(out, "<h3>The device's bytes {}</h3><table class=\"ledger\">", words::when(self.device))?;
        out.push_str("<thead><tr><th>bytes<th class=\"bar\"><th>where<th>as PyTorch tells it<tbody>");
        for row in rows.iter().filter(|row| row.bytes != Some(0) || row.part == Part::Reserved) {
            let depth = row.part.within().map_or(0, |part| if part == Part::Total { 1 } else { 2 });
            let size = row.bytes.map_or_else(|| "unknown".to_owned(), |bytes| Size(bytes).to_string());
            let bar = row.bytes.map(|bytes| Bar { bytes, of: whole, kind: None }.to_string());
            let bar = bar.as_deref().unwrap_or("<td class=\"bar\">");
            let (name, pytorch) = (row.part.name(), row.part.pytorch());
            write!(out, "<tr class=\"depth-{depth}\"><td>{size}{bar}<td>{name}<td><code>{pytorch}</code>")?;
        }
        out.push_str("</table>");
        Ok(())
    }

    fn holders(&self, out: &mut String) -> fmt::Result {
        let (holders, when) = (&self.device.holders, words::when(self.device));
        write!(out, "<h3>Held {when}, by category</h3>")?;
        self.table(out, ["for what", "how that is known"], &holders.by_category, |key| {
            (Some(kind(key.category)), words::category(*key).to_owned(), words::reason(*key))
        })?;
        out.push_str("<h3>By line</h3>");
        self.table(out, ["line", "for what"], &holders.by_line, |key| {
            let category = words::purpose(key.category);
            let line = words::asker(self.report.snapshot, *key);
            (Some(kind(key.category)), format!("<code>{}</code>", Text(&line)), category.to_owned())
        })?;
        out.push_str("<h3>By operator</h3>");
        self.table(out, ["operator", ""], &holders.by_operator, |key| {
            let name = key.map(|name| format!("<code>{}</code>", Text(name.of(self.report.snapshot))));
            (None, name.unwrap_or_else(|| "no operator in the stack".to_owned()), String::new())
        })
    }

    /// Shares as rows; `words` tells the kind that colours a key's bar, and the two columns, as HTML.
    fn table<K>(
        &self,
        out: &mut String,
        heads: [&str; 2],
        shares: &[Share<K>],
        words: impl Fn(&K) -> (Option<usize>, String, String),
    ) -> fmt::Result {
        let of = self.device.holders.bytes;
        out.push_str("<table><thead><tr><th>bytes<th class=\"bar\">share<th>blocks");
        write!(out, "<th>{}<th>{}<tbody>", heads[0], heads[1])?;
        let (listed, rest) = shares.split_at(shares.len().min(ROWS));
        for share in listed {
            let (kind, name, note) = words(&share.key);
            let bar = Bar { bytes: share.bytes, of, kind };
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
            let bar = Bar { bytes, of, kind: None };
            write!(
                out,
                "<tr><td>{}{bar}<td class=\"count\">{blocks}<td>{} more<td>",
                Size(bytes),
                rest.len()
            )?;
        }
        write!(out, "<tfoot><tr><td>{}<td><td class=\"count\">", Size(of))?;
        let blocks: u64 = shares.iter().map(|share| share.blocks).sum();
        write!(out, "{blocks}<td>in all<td></table>")
    }

    fn largest(&self, out: &mut String) -> fmt::Result {
        write!(out, "<h3>The largest blocks {}</h3>", words::when(self.device))?;
        out.push_str("<table><thead><tr><th>bytes<th class=\"bar\">share<th>asked for<th>line<th>for what");
        out.push_str("<tbody>");
        for &index in &self.device.holders.largest {
            let life = &self.device.timeline.lives[index.index()];
            let category = self.device.purposes.get(index).category;
            let name = words::purpose(category);
            let born = life.born.map_or_else(
                || "before the recording".to_owned(),
                |event| format!("at event {}", event.index()),
            );
            let bar = Bar { bytes: life.bytes, of: self.device.holders.bytes, kind: Some(kind(category)) };
            let line = self.line(self.report.origins.get(life.stack).line);
            write!(out, "<tr><td>{}{bar}<td>{born}<td>{line}<td>{name}", Size(life.bytes))?;
        }
        out.push_str("</table>");
        Ok(())
    }

    fn fragmentation(&self, out: &mut String) -> fmt::Result {
        let fragmentation = &self.device.fragmentation;
        let Holes { count, largest_bytes, cached, .. } = fragmentation.all;
        write!(out, "<h3>What is cached {}</h3>", words::when(self.device))?;
        if cached.sum() == 0 {
            out.push_str("<p>Nothing.</p>");
            return Ok(());
        }
        write!(
            out,
            "<p>{} in {count} holes, the largest {}. {} of it lie beside live blocks ({:.1} % of what is reserved); \
             <code>empty_cache</code> would return {}.</p>",
            Size(cached.sum()),
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
            let bar = Bar { bytes: pin.pinned_bytes, of: cached.pinned, kind: None };
            let oldest = pin.holders.first();
            let age = oldest.map_or_else(String::new, |oldest| match oldest.born {
                Some(_) => format!("{} events before", oldest.age_events),
                None => "from before the recording".to_owned(),
            });
            let line = self.line(oldest.and_then(|holder| holder.line));
            let (pinned, held, blocks) = (Size(pin.pinned_bytes), Size(pin.held_bytes), pin.holders.len());
            let noun = if blocks == 1 { "block" } else { "blocks" };
            write!(out, "<tr><td>{pinned}{bar}<td>{held} in {blocks} {noun}<td>{age}<td>{line}")?;
        }
        if let Some(rest) = pins.len().checked_sub(PINS).filter(|&rest| rest > 0) {
            write!(out, "<tr><td><td><td>{rest} more segments<td><td>")?;
        }
        out.push_str("</table>");
        Ok(())
    }

    fn quality(&self, out: &mut String) -> fmt::Result {
        let quality = self.device.timeline.quality;
        out.push_str("<h3>How far this can be relied on</h3><ul>");
        write!(out, "<li>{} events; {} of them do not fit", quality.events, quality.conflicts())?;
        write!(out, "<li>{} blocks were held before the recording began", quality.held_before)?;
        if quality.is_cut {
            out.push_str(
                "<li>the recording ran over its ring (<code>max_entries</code>): what happened before ",
            );
            out.push_str("its first event, a higher peak for one, cannot be known");
        }
        out.push_str("</ul>");
        Ok(())
    }
}

/// A cell with a share and a bar of its length; `kind` colours it.
struct Bar {
    bytes: u64,
    of: u64,
    kind: Option<usize>,
}

impl Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = if self.of == 0 { 0.0 } else { 100.0 * self.bytes as f64 / self.of as f64 };
        let class = self.kind.map_or_else(|| "plain".to_owned(), |kind| format!("kind-{kind}"));
        write!(
            f,
            "<td class=\"bar\"><svg class=\"{class}\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><rect width=\"{share:.2}\" height=\"10\"/></svg>{share:.1} %"
        )
    }
}
