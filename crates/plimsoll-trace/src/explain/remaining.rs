//! What is still live when the recording ends, compared with the moment that is explained: [`Remaining`].
//!
//! A finished script should hold little memory. What remains is kept alive by a variable, a cache or a module; the
//! lines that allocated it show where to look.

use super::compare::{Amount, Change, ChangedLine, Comparison};
use super::device::DeviceExplanation;
use super::fragmentation::DeviceAnalysis;
use super::purpose::ShownCategory;

/// The memory that is live at the end of a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Remaining {
    /// Bytes that are live at the end.
    pub end_bytes: u64,
    /// Bytes that were live at the moment that is explained.
    pub then_bytes: u64,
    /// The bytes of lines and categories then and at the end, in the order of change.
    comparison: Comparison,
}

impl Remaining {
    /// Percent of the live bytes. Less than this is not reported.
    pub const FEW_PERCENT: u64 = 5;

    /// Compares the end with the moment that is explained. `None` if no more than [`Remaining::FEW_PERCENT`] remain,
    /// or if the recording ends at that moment.
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

    /// Percent of the bytes that were live at the moment that is explained.
    pub fn percent(&self) -> f64 {
        if self.then_bytes == 0 { 100.0 } else { 100.0 * self.end_bytes as f64 / self.then_bytes as f64 }
    }

    /// The lines with live blocks at the end, the largest first: amounts then and at the end.
    pub fn lines(&self) -> Vec<Change<ChangedLine>> {
        at_end(&self.comparison.lines)
    }

    /// The same by category.
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
