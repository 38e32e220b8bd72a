//! The contents of the first screen below the verdict: the advice, and the largest owners.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::Section;
use super::cells::{Bar, Size};
use super::kinds::kind;
use super::text::{Sentence, Text, capital};
use crate::render::{help, words};
use crate::whatif::WhatIf;

/// The number of lines listed as owners.
const OWNERS: usize = 4;
/// The number of sentences of advice.
const ADVICE: usize = 3;

/// The section of one device. `what_if` is the simulation of other settings.
pub(super) fn section(out: &mut String, section: &Section<'_>, what_if: Option<&WhatIf>) -> fmt::Result {
    let Section { report, device, .. } = section;
    let advice = help::advice(*report, device, what_if, |bytes| Bytes(bytes).to_string());
    out.push_str("<div class=\"summary\">");
    if !advice.is_empty() {
        out.push_str("<div class=\"help\"><h3>What would help</h3><ul>");
        for sentence in advice.iter().take(ADVICE) {
            write!(out, "<li>{}", Sentence(capital(sentence)))?;
        }
        out.push_str("</ul></div>");
    }
    let owners = &device.owners;
    if !owners.by_line.is_empty() {
        write!(
            out,
            "<div class=\"owners\"><h3>The largest owners {}</h3><table><tbody>",
            words::when(device)
        )?;
        for share in owners.by_line.iter().take(OWNERS) {
            let class = format!("kind-{}", kind(report.origins, share.key.category));
            let bar = Bar { bytes: share.bytes, of: owners.bytes, class: &class };
            let line = words::asker(report.snapshot, share.key);
            let purpose = words::purpose(report.snapshot, share.key.category);
            write!(
                out,
                "<tr><td>{}{bar}<td><code>{}</code> {}",
                Size(share.bytes),
                Text(line),
                Text(&purpose)
            )?;
        }
        out.push_str("</table></div>");
    }
    out.push_str("</div>");
    Ok(())
}
