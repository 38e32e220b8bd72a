//! Several recordings side by side on one scale of bytes, visible without a script: [`panels`].

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::Section;
use super::buckets::{Bucket, Buckets};
use super::flow::Ends;
use super::kinds::names;
use super::stacks::{Layer, shapes};
use super::text::Text;

/// The number of columns of a panel.
const COLUMNS: usize = 240;

/// Draws the allocated bytes by category in each section's recording, from its first event to its last. `first` is the
/// index of the first section on the page. `line` is a level in bytes that every panel marks, with its name. Empty if
/// no recording has events.
pub(super) fn panels(
    out: &mut String,
    first: usize,
    sections: &[Section<'_>],
    line: (u64, &str),
) -> fmt::Result {
    let drawn = (first..).zip(sections).map(|(nth, section)| (nth, section, columns(section)));
    let drawn: Vec<(usize, &Section<'_>, Vec<Bucket>)> =
        drawn.filter(|(_, _, columns)| !columns.is_empty()).collect();
    let peaks =
        drawn.iter().flat_map(|(_, _, columns)| columns).map(|bucket| bucket.peak.level.allocated_bytes);
    let Some(most) = peaks.chain([line.0]).max().filter(|_| !drawn.is_empty()) else { return Ok(()) };
    // This leaves some space above, so that a line at the very top is visible.
    let most = most.saturating_add(most / 25).max(1);
    write!(out, "<h3>Allocated over the recording, on one scale</h3><div class=\"panels\">")?;
    for (nth, section, columns) in &drawn {
        let [title, peak] = [
            &section.title,
            &Bytes(section.device.timeline.peak_allocated.level.allocated_bytes).to_string(),
        ];
        write!(
            out,
            "<figure><figcaption><a href=\"#device-{nth}\">{}</a> {peak} at its peak</figcaption>",
            Text(title)
        )?;
        write!(
            out,
            "<svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{} {peak} at its peak\">",
            columns.len(),
            Text(title)
        )?;
        let layers = names(&section.report).into_iter().enumerate().map(|(kind, name)| Layer {
            class: format!("kind-{kind}"),
            name,
            bytes: columns.iter().map(|bucket| bucket.bytes[kind]).collect(),
        });
        let layers: Vec<Layer> = layers.filter(|layer| layer.bytes.iter().any(|&bytes| bytes > 0)).collect();
        shapes(out, &layers, (0, most))?;
        let at = 100.0 - 100.0 * line.0 as f64 / most as f64;
        write!(out, "<path class=\"mark\" d=\"M0 {at:.2}H{}\"/></svg></figure>", columns.len())?;
    }
    out.push_str("</div><ul class=\"legend\">");
    let names = drawn.first().map_or_else(Vec::new, |(_, section, _)| names(&section.report));
    for (kind, name) in names.iter().enumerate() {
        if drawn.iter().flat_map(|(_, _, columns)| columns).any(|bucket| bucket.bytes[kind] > 0) {
            write!(out, "<li>{}{}", swatch(kind), Text(name))?;
        }
    }
    let (bytes, what) = line;
    write!(out, "<li>– – {what}: {}</ul>", Bytes(bytes))?;
    out.push_str("<p class=\"hint\">From the first event of each recording to its last.</p>");
    Ok(())
}

/// The colour of a category.
pub(super) fn swatch(kind: usize) -> String {
    format!(
        "<svg class=\"swatch kind-{kind}\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect width=\"10\" height=\"10\"/></svg>"
    )
}

fn columns(section: &Section<'_>) -> Vec<Bucket> {
    let timeline = &section.device.timeline;
    let trace = section.report.snapshot.trace(timeline.device);
    Buckets::of(section.device, section.report.origins, trace, &Ends::of(timeline), COLUMNS).list
}
