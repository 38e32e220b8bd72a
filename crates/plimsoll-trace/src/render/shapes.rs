//! The shape that a failed request may have had, in words.

use super::words::{self, counted};
use crate::explain::{DeviceExplanation, Evidence, Guess, Origins};
use crate::snapshot::Snapshot;

/// A sentence for the best guess at the shape of a failed request, and a sentence for the second-best guess.
pub(super) fn shapes(
    snapshot: &Snapshot,
    origins: &Origins,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let sentences = device.shapes.iter().map(|Guess { dims, element_bytes, evidence }| {
        let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
        let types = match element_bytes {
            2 => "bfloat16 or float16",
            8 => "float64 or int64",
            _ => "float32",
        };
        let evidence = match *evidence {
            Evidence::Parameters { count } => {
                format!(
                    "{} of the same size: a gradient, an optimizer state or a copy of one",
                    counted(count as u64, "parameter")
                )
            }
            Evidence::Rows { sizes } => {
                format!(
                    "{sizes} earlier request sizes have the same number of rows, and a parameter has the same last dimension"
                )
            }
            Evidence::Attention { sizes } => {
                format!("attention scores: {sizes} earlier request sizes have the same total number of rows")
            }
            Evidence::Broadcast { of, vectors } => {
                let length = dims.first().map_or("n", String::as_str);
                let line = origins.get(device.timeline.lives[of.index()].stack).line;
                let line =
                    line.map_or_else(String::new, |frame| format!("requested at {}", words::line(snapshot, frame)));
                let (one, other) = (format!("[{length}, 1]"), format!("[{length}]"));
                let last = if vectors == 1 { "" } else { "the last " };
                format!(
                    "broadcasting {one} with {other} gives it, and {} of {length} elements {} live ({last}{}): \
                     if a loss combines them, give both the same shape",
                    counted(vectors as u64, "vector"),
                    if vectors == 1 { "is" } else { "are" },
                    if line.is_empty() { "without a line".to_owned() } else { line }
                )
            }
            Evidence::Scores { of } => {
                let life = &device.timeline.lives[of.index()];
                let line = origins.get(life.stack).line;
                let line =
                    line.map_or_else(String::new, |frame| format!(" at {}", words::line(snapshot, frame)));
                let asked = size(life.requested_bytes.get().unwrap_or(life.bytes));
                format!(
                    "attention scores for the {asked} requested{line}, if its heads have the usual width"
                )
            }
        };
        format!("[{}] of {types} (a guess): {evidence}", dims.join(", "))
    });
    sentences.collect()
}
