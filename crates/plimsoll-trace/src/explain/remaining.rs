//! The memory that is still live when the recording ends, compared with the explained moment: [`Remaining`].
//!
//! At its end, a script should keep little memory. If memory remains, a variable, a cache or a module keeps this memory
//! alive. The lines that allocated it show where to look.

use super::compare::{Amount, Change, ChangedLine, Comparison};
use super::device::DeviceExplanation;
use super::fragmentation::DeviceAnalysis;
use super::purpose::ShownCategory;

/// The memory that is live at the end of a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Remaining {
    /// Bytes that are live at the end.
    pub end_bytes: u64,
    /// Bytes that were live at the explained moment.
    pub then_bytes: u64,
    /// The bytes of lines and categories at the explained moment and at the end, sorted by change.
    comparison: Comparison,
}

impl Remaining {
    /// If at most this many percent of the live bytes remain, nothing is reported.
    pub const FEW_PERCENT: u64 = 5;

    /// Compares the end with the explained moment. `None` if at most [`Remaining::FEW_PERCENT`] percent of the bytes
    /// remain, or if the recording ends at the explained moment.
    pub fn of(analysis: DeviceAnalysis<'_>, device: &DeviceExplanation) -> Option<Self> {
        let (then, end) = (device.moment(), analysis.timeline.last());
        if end <= then {
            return None;
        }
        let then_bytes = device.owners.bytes;
        let end_bytes =
            analysis.timeline.held_at_end().fold(0_u64, |sum, life| sum.saturating_add(life.bytes));
        if u128::from(end_bytes) * 100 <= u128::from(then_bytes) * u128::from(Self::FEW_PERCENT) {
            return None;
        }
        let comparison = Comparison::after(analysis, analysis, [then, end]);
        Some(Self { end_bytes, then_bytes, comparison })
    }

    /// The remaining bytes, in percent of the bytes that were live at the explained moment.
    pub fn percent(&self) -> f64 {
        if self.then_bytes == 0 { 100.0 } else { 100.0 * self.end_bytes as f64 / self.then_bytes as f64 }
    }

    /// The lines with live blocks at the end, the largest first. The amounts are those at the explained moment and at
    /// the end.
    pub fn lines(&self) -> Vec<Change<ChangedLine>> {
        at_end(&self.comparison.lines)
    }

    /// The categories with live blocks at the end, with the same order and amounts as for lines.
    pub fn categories(&self) -> Vec<Change<ShownCategory>> {
        at_end(&self.comparison.categories)
    }
}

fn at_end<K: Copy>(rows: &[Change<K>]) -> Vec<Change<K>> {
    let end = |row: &Change<K>| -> Amount { row.amounts[1] };
    let mut rows: Vec<Change<K>> = rows.iter().filter(|row| end(row).blocks > 0).copied().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(end(row).bytes));
    rows
}
