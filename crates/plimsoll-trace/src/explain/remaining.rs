//! What is still held when the recording ends, beside what was held at the moment that is explained: [`Remaining`].
//!
//! A script that is done should hold little. What stays was kept by a variable, a cache or a module, on purpose or
//! not: the lines that made it say where to look.

use super::compare::{Amount, Change, ChangedLine, Comparison};
use super::device::DeviceExplanation;
use super::fragmentation::DeviceAnalysis;
use super::purpose::ShownCategory;

/// What is held at the end of a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Remaining {
    /// Bytes that are held at the end.
    pub end_bytes: u64,
    /// Bytes that were held at the moment that is explained.
    pub then_bytes: u64,
    /// Lines and categories with what they held then and what they hold at the end. In order of change.
    comparison: Comparison,
}

impl Remaining {
    /// Up to this share of what was held, what stays is of no interest.
    pub const FEW_PERCENT: u64 = 5;

    /// Compares the end with the moment that is explained. `None` where no more than [`Remaining::FEW_PERCENT`]
    /// stays, and where the recording ends at that very moment.
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

    /// Percent of what was held at the moment that is explained.
    pub fn percent(&self) -> f64 {
        if self.then_bytes == 0 { 100.0 } else { 100.0 * self.end_bytes as f64 / self.then_bytes as f64 }
    }

    /// The lines that hold something at the end, the largest first: amounts then and at the end.
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
