//! Memory that is live at the peak but not read again: the variables, the line that frees it, and the peak with
//! that line.

use serde_json::{Value, json};

use crate::predict::analysis::waste::{Freed, Saving, Savings, places};
use crate::predict::answer::Outcome;
use crate::predict::recording::read::{file_name, place};
use crate::protocol::{Waste, WasteKind};

/// One sentence for all variables that can be deleted, one sentence for each line of code other than `del`, and one
/// sentence for all lines of code together.
pub(super) fn sentences(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    let Some(savings) = &outcome.savings else { return Vec::new() };
    let (dels, others): (Vec<&Saving>, Vec<&Saving>) =
        savings.rows.iter().partition(|row| row.waste.kind == WasteKind::Del);
    let mut found = Vec::new();
    if !dels.is_empty() {
        let freed = match &dels[..] {
            [row] => row.alone,
            _ if others.is_empty() => savings.together,
            _ => None,
        };
        found.push(deleted(&dels, freed, savings, &size));
    }
    for row in others {
        let gives = gives(&[row], row.alone, savings, &size);
        found.push(format!("{}: {gives}", what(&row.waste, &size)));
    }
    if let (2.., Some(Freed { allocated_bytes, .. })) = (found.len(), savings.together) {
        let before = size(savings.before_bytes);
        found.push(format!("all changes together lower the peak from {before} to {}", size(allocated_bytes)));
    }
    if let (Some(last), true) = (found.last_mut(), fits_now(outcome, savings)) {
        last.push_str(", which fits");
    }
    found
}

/// Whether the program runs out of memory, but fits with the new lines.
fn fits_now(outcome: &Outcome, savings: &Savings) -> bool {
    outcome.shortage.is_some() && savings.together.is_some_and(|freed| freed.fits)
}

/// The sentence for all variables that can be deleted: `2.00 GiB live at the peak are not read again: …`.
fn deleted(
    rows: &[&Saving],
    freed: Option<Freed>,
    savings: &Savings,
    size: &impl Fn(u64) -> String,
) -> String {
    // If deleting a variable alone frees nothing, several variables share the memory.
    let (single, shared): (Vec<&Saving>, Vec<&Saving>) =
        rows.iter().copied().partition(|row| row.alone.is_some() || savings.together.is_none());
    let shared_bytes = shared.iter().map(|row| row.waste.bytes).max().unwrap_or(0);
    let bytes = single.iter().map(|row| row.waste.bytes).sum::<u64>() + shared_bytes;
    let names: Vec<String> =
        rows.iter().map(|row| format!("`{}` ({})", row.waste.name, at(&row.waste))).collect();
    let alone: Vec<String> = rows
        .iter()
        .filter_map(|row| Some(format!("`{}` {}", row.waste.name, size(row.alone?.allocated_bytes))))
        .collect();
    let alone = if rows.len() > 1 && !alone.is_empty() {
        format!(" (each alone: {})", alone.join(", "))
    } else {
        String::new()
    };
    format!(
        "{} live at the peak are not read again: {}: {}{alone}",
        size(bytes),
        names.join(", "),
        gives(rows, freed, savings, size)
    )
}

/// What a line of code other than `del` frees, and why.
fn what(row: &Waste, size: &impl Fn(u64) -> String) -> String {
    let (bytes, name, place) = (size(row.bytes), &row.name, at(row));
    match row.kind {
        WasteKind::Del => format!("{bytes} live at the peak are not read again: `{name}` ({place})"),
        WasteKind::Shape => {
            format!("{bytes} live at the peak are read again only for their shape: `{name}` ({place})")
        }
        WasteKind::View => {
            format!("the small view `{name}` ({place}) keeps alive {bytes} that it does not use")
        }
        WasteKind::Gradients => {
            format!("{bytes} of gradients that `{name}` has used are live at the peak of the next pass")
        }
        WasteKind::Unread => {
            format!(
                "{bytes} live at the peak are in `{name}` ({place}), which is only added to and never read"
            )
        }
        WasteKind::Graph => {
            let each = size(row.each);
            format!(
                "`{name}` ({place}) keeps the graph of each loss, {each} each, without `.detach()` or `.item()`"
            )
        }
        WasteKind::States => format!(
            "{bytes} of the state of `{name}` belong to frozen parameters (if they are trained later, training starts without it)"
        ),
    }
}

/// The clause `` `del x, aug` after line 12 lowers the peak from 5.58 GiB to 4.58 GiB ``.
fn gives(rows: &[&Saving], freed: Option<Freed>, savings: &Savings, size: &impl Fn(u64) -> String) -> String {
    let rows: Vec<&Waste> = rows.iter().map(|row| &row.waste).collect();
    let lines = places(&rows);
    let is_one_file = rows.iter().all(|row| row.file == rows[0].file);
    let said: Vec<String> = lines.iter().map(|line| line.said(!is_one_file)).collect();
    let verb = if said.len() == 1 { "lowers" } else { "lower" };
    let said = said.join(", ");
    match freed {
        Some(Freed { allocated_bytes, .. }) => {
            format!("{said} {verb} the peak from {} to {}", size(savings.before_bytes), size(allocated_bytes))
        }
        None if savings.together.is_some() => said,
        None => format!(
            "{said} would free it (not tried: the first run took over a minute, or --allow-writes is set)"
        ),
    }
}

/// The line that assigned the variable, as text.
fn at(row: &Waste) -> String {
    place(&row.file.to_string_lossy(), row.line)
}

/// The memory that is not needed, as JSON.
pub(super) fn json(outcome: &Outcome) -> Option<Value> {
    let savings = outcome.savings.as_ref()?;
    let row = |row: &Saving| {
        let Waste { kind, name, file, line, bytes, each, after, replaces, indent, text, .. } = &row.waste;
        json!({ "kind": kind, "name": name, "file": file_name(&file.to_string_lossy()), "line": line,
            "bytes": bytes, "bytes_of_each_graph": (*each > 0).then_some(each), "after": after, "replaces": replaces,
            "indent": indent, "text": text, "peak_allocated_bytes": row.alone.map(|it| it.allocated_bytes) })
    };
    let together = savings.together.map(|it| {
        json!({ "peak_allocated_bytes": it.allocated_bytes, "peak_reserved_bytes": it.reserved_bytes, "fits": it.fits })
    });
    let rows: Vec<Value> = savings.rows.iter().map(row).collect();
    Some(json!({ "rows": rows, "together": together }))
}
