//! A sentence about the memory that is still live at the end of a recording.

use super::words;
use crate::explain::{DeviceExplanation, Remaining};

/// A sentence that says how much memory is still live at the end, compared with the explained moment. `size` formats a
/// number of bytes.
pub fn sentence(remaining: &Remaining, device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    format!(
        "{} is live when the recording ends, {:.1} % of the {} live {}",
        size(remaining.end_bytes),
        remaining.percent(),
        size(remaining.then_bytes),
        words::when(device)
    )
}
