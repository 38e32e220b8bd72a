//! A table of what the recorded requests would need under other settings of the allocator.

use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::cells::{Bar, Size};
use super::text::{Text, capital};
use crate::render::words;
use crate::whatif::{Outcome, WhatIf};

/// The section of one device.
pub(super) fn section(out: &mut String, what_if: &WhatIf) -> fmt::Result {
    let Some(simulated) = what_if.rows.first() else { return Ok(()) };
    let verdict = words::best_setting(what_if, |bytes| Bytes(bytes).to_string());
    let verdict = Text(capital(&verdict));
    write!(out, "<p class=\"said\"><strong>{verdict}.</strong> {}", words::baseline(what_if))?;
    match what_if.capacity_bytes {
        Some(bytes) => {
            let reason = what_if.capacity_from.map_or("", |from| from.reason());
            write!(out, " The simulated device has {} for the allocator, {reason}.</p>", Size(bytes))?;
        }
        None => out.push_str(" The recording shows no memory limit, so every setting counts as fitting.</p>"),
    }
    out.push_str("<table class=\"settings\"><thead><tr><th>reserved<th class=\"bar\">of the most");
    out.push_str("<th>memory<th>setting<th>effort<tbody>");
    let outcomes = what_if.rows.iter().map(|row| &row.outcome).chain([&what_if.recorded]);
    let most = outcomes.map(|outcome| outcome.peak_reserved_bytes).max().unwrap_or(0);
    let mut row = |outcome: &Outcome, setting: &str| {
        let Outcome { peak_reserved_bytes: reserved, retries, .. } = *outcome;
        let fits = if outcome.fits() { "fits" } else { "<strong class=\"bad\">runs out</strong>" };
        let noun = if retries == 1 { "retry" } else { "retries" };
        let bar = Bar::plain(reserved, most);
        write!(out, "<tr><td>{}{bar}<td>{fits}<td>{setting}", Size(reserved))?;
        write!(out, "<td>{retries} {noun}, {} driver calls", outcome.driver_calls())
    };
    row(&what_if.recorded, "as recorded")?;
    row(&simulated.outcome, "as recorded, simulated")?;
    for tried in what_if.rows.iter().skip(1) {
        let export = format!("<code>export {}</code>", Text(tried.export()));
        let own = if tried.setting.is_empty() { " (PyTorch's own settings)" } else { "" };
        row(&tried.outcome, &format!("{export}{own}"))?;
    }
    row(&what_if.packed.outcome, &words::packed_policy(what_if))?;
    let (packed, bar) = (what_if.packed_bytes, Bar::plain(what_if.packed_bytes, most));
    write!(
        out,
        "<tr class=\"packed\"><td>{}{bar}<td><td>perfect packing: the most bytes in use",
        Size(packed)
    )?;
    out.push_str(" at one time; no arrangement needs less<td></table>");
    out.push_str("<p class=\"hint\">The recorded requests are replayed without timing.</p>");
    Ok(())
}
