//! How reliable the page is, what to record next time, and how to make the page again.

use std::fmt::{self, Write};

use super::cells::{Bar, Size};
use super::text::Text;
use crate::explain::{DataQuality, DeviceExplanation};
use crate::render::Report;
use crate::render::words::{counted, plural};

/// The section of one device.
pub(super) fn section(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    let quality = DataQuality::of(device.analysis(report.snapshot, report.origins), &device.passes);
    out.push_str("<ul>");
    events(out, &quality)?;
    replayed(out, device)?;
    if quality.replay.is_cut {
        out.push_str(
            "<li>The recording overflowed its ring buffer (<code>max_entries</code>): everything before its ",
        );
        out.push_str("first event is lost, perhaps with a higher peak.");
    }
    if quality.replay.is_restarted {
        out.push_str(
            "<li>Recording was stopped and restarted: everything before its first event is missing, perhaps ",
        );
        out.push_str("with a higher peak.");
    }
    for missing in &quality.missing {
        write!(out, "<li>The file has {}.", missing.costs())?;
    }
    let lineless = quality.no_python_bytes;
    if lineless > 0 {
        write!(out, "<li>{} of the peak are in blocks whose stack has no line of Python.", Size(lineless))?;
    }
    if quality.stackless.is_empty() {
        out.push_str("<li>Every byte of the peak has a stack.");
    }
    out.push_str("</ul>");
    stackless(out, &quality)?;
    if !quality.is_complete() {
        out.push_str("<p>To record more next time, add the first line before the model is built, ");
        out.push_str("and the last after some steps, or where memory ran out.</p><pre>");
        out.push_str(if quality.is_own { "" } else { "import torch\n" });
        for line in quality.record_with() {
            writeln!(out, "{}", Text(line))?;
        }
        out.push_str("</pre>");
    }
    Ok(())
}

fn events(out: &mut String, quality: &DataQuality) -> fmt::Result {
    let replay = quality.replay;
    let (events, conflicts) = (replay.events, replay.conflicts());
    write!(out, "<li>{}", counted(events as u64, "event"))?;
    match conflicts {
        0 if events == 0 => out.push_str(": only the moment of the snapshot is known."),
        0 => out.push_str("; all are consistent."),
        _ => {
            write!(out, "; {conflicts} of them {} not fit:", plural(conflicts as u64, "does", "do"))?;
            let kinds = [
                (replay.lost_frees, "blocks freed without an event"),
                (replay.lost_allocs, "blocks allocated without an event"),
                (replay.stray_frees, "frees of blocks that were not live"),
                (replay.stray_segments, "inconsistent segments or pages"),
            ];
            let reasons =
                kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(" {count} {what}"));
            write!(out, "{}.", reasons.collect::<Vec<_>>().join(","))?;
        }
    }
    let before = replay.held_before;
    if before > 0 && events > 0 {
        let was = plural(before as u64, "block was", "blocks were");
        write!(out, "<li>{before} {was} live before the recording began.")?;
    }
    Ok(())
}

/// Whether our allocator places every block where PyTorch did.
fn replayed(out: &mut String, device: &DeviceExplanation) -> fmt::Result {
    let replay = &device.replay;
    if replay.requests == 0 {
        return Ok(());
    }
    let otherwise = replay.conflicts + replay.unplaced;
    write!(out, "<li>{} replayed: ", counted(replay.requests as u64, "request"))?;
    if replay.is_identical() {
        out.push_str("exact, every block at the address that PyTorch chose.");
    } else if otherwise == 0 {
        out.push_str("every block at the address that PyTorch chose, though the final state differs from the snapshot.");
    } else {
        write!(out, "{otherwise} of them placed differently; figures may differ from PyTorch's.")?;
    }
    if let Some(first) = &replay.first {
        write!(out, " The first is event {}, a request for {}.", first.event.index(), Size(first.bytes))?;
    }
    if replay.inexact > 0 {
        let blocks = counted(replay.inexact as u64, "block");
        write!(out, "<li>{blocks} from before the recording may be larger than counted,")?;
        write!(out, " by at most {} in total.", Size(replay.inexact_bytes))?;
    }
    Ok(())
}

/// The blocks that are live at the peak and have no stack, by cause.
fn stackless(out: &mut String, quality: &DataQuality) -> fmt::Result {
    if quality.stackless.is_empty() {
        return Ok(());
    }
    out.push_str("<table><thead><tr><th>no stack<th class=\"bar\">of the peak<th>blocks<th>why");
    out.push_str("<th>next time<tbody>");
    for part in &quality.stackless {
        let bar = Bar::plain(part.bytes, quality.peak_bytes);
        write!(out, "<tr><td>{}{bar}<td class=\"count\">{}", Size(part.bytes), part.blocks)?;
        write!(out, "<td>{}<td>{}", Text(part.why.reason()), Text(part.why.remedy()))?;
    }
    out.push_str("</table>");
    Ok(())
}
