//! The changes from one recording to another: [`Comparison`], at the peaks of both, by line and by category.
//!
//! The changes of all lines add up to the change of the peak, and so do the changes of all categories.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::fragmentation::DeviceAnalysis;
use super::lines::{lead, matched};
use super::owners::{BackwardBlock, Line, Owners};
use super::purpose::ShownCategory;
use crate::snapshot::{Action, EventIndex, FrameId};

/// Two recordings, compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The totals of both recordings.
    pub totals: [Totals; 2],
    /// Every line with live blocks at either moment (the peaks, by default), the largest change first.
    pub lines: Vec<Change<ChangedLine>>,
    /// The changes by category. The user's own categories have the names of the first recording.
    pub categories: Vec<Change<ShownCategory>>,
}

/// The totals of one recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The peak of allocated bytes.
    pub peak_allocated_bytes: u64,
    /// The peak of reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Requests that were served.
    pub allocations: u64,
}

/// The amounts of one line or category in two recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<K> {
    /// The line, or the category.
    pub key: K,
    /// The amounts in the first and in the second recording.
    pub amounts: [Amount; 2],
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Bytes in live blocks.
    pub bytes: u64,
    /// The number of live blocks.
    pub blocks: u64,
}

/// A line, with its frame in each recording, and the category of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangedLine {
    /// The line's frame in each recording; `None` if the line has no live block in this recording, or if the blocks
    /// have no line.
    pub frames: [Option<FrameId>; 2],
    /// The category of the line's blocks.
    pub category: ShownCategory,
}

impl<K> Change<K> {
    /// The second amount minus the first, in bytes.
    pub fn bytes(&self) -> i128 {
        Amount::change(self.amounts)
    }
}

impl Amount {
    /// The second amount minus the first, in bytes.
    pub fn change([first, second]: [Self; 2]) -> i128 {
        i128::from(second.bytes) - i128::from(first.bytes)
    }
}

impl ChangedLine {
    /// The line in the second recording, or else in the first.
    pub fn frame(&self) -> Option<FrameId> {
        let [first, second] = self.frames;
        second.or(first)
    }
}

impl Totals {
    pub(super) fn of(analysis: DeviceAnalysis<'_>) -> Self {
        let trace = analysis.snapshot.trace(analysis.timeline.device);
        Self {
            peak_allocated_bytes: analysis.timeline.peak_allocated.level.allocated_bytes,
            peak_reserved_bytes: analysis.timeline.peak_reserved.level.reserved_bytes,
            allocations: trace.iter().filter(|event| event.action == Action::Alloc).count() as u64,
        }
    }
}

impl Comparison {
    /// Compares one device of each recording at its peak of allocated bytes.
    pub fn of(first: DeviceAnalysis<'_>, second: DeviceAnalysis<'_>) -> Self {
        Self::after(first, second, [first, second].map(|analysis| analysis.timeline.peak_allocated.after))
    }

    /// Compares the recordings at other moments: after an event of each recording, or before the first event (`None`).
    /// The totals are still those of the complete recordings.
    pub fn after(
        first: DeviceAnalysis<'_>,
        second: DeviceAnalysis<'_>,
        moments: [Option<EventIndex>; 2],
    ) -> Self {
        let sides = [Side::of(first, moments[0]), Side::of(second, moments[1])];
        let [a, b] = &sides;
        let pairs = matched((first.snapshot, &a.frames), (second.snapshot, &b.frames));
        let mut both = [BTreeMap::new(), BTreeMap::new()];
        for pair in pairs {
            for (nth, frame) in [pair.0, pair.1].into_iter().enumerate() {
                both[nth].extend(frame.map(|frame| (frame, [pair.0, pair.1])));
            }
        }
        let (mut lines, mut categories) = (Rows::default(), Rows::default());
        for (nth, side) in sides.iter().enumerate() {
            for (Line { frame, category, .. }, amount) in &side.rows {
                let frames = frame.and_then(|frame| both[nth].get(&frame)).copied().unwrap_or_default();
                let category = match *category {
                    ShownCategory::Custom(name) if nth == 1 => {
                        let name = first.origins.category_of(second.origins, name);
                        name.map_or(ShownCategory::Purpose(None), ShownCategory::Custom)
                    }
                    category => category,
                };
                lines.add(nth, ChangedLine { frames, category }, *amount);
                categories.add(nth, category, *amount);
            }
        }
        let totals = [Totals::of(first), Totals::of(second)];
        Self { totals, lines: lines.sorted(), categories: categories.sorted() }
    }
}

/// The owners of memory in one recording at one moment.
struct Side {
    /// The first frame of each line.
    frames: Vec<FrameId>,
    rows: Vec<(Line, Amount)>,
}

impl Side {
    fn of(analysis: DeviceAnalysis<'_>, moment: Option<EventIndex>) -> Self {
        let owners = Owners::after(analysis.timeline, analysis.origins, analysis.purposes, moment);
        let frames: Vec<FrameId> = owners.by_line.iter().filter_map(|share| share.key.frame).collect();
        let leads = lead(analysis.snapshot, &frames);
        let rows = owners.by_line.iter().map(|share| {
            let frame = share.key.frame.and_then(|frame| leads.get(&frame)).copied();
            let key = Line {
                frame,
                package_line: None,
                backward: BackwardBlock::default(),
                category: share.key.category,
            };
            (key, Amount { bytes: share.bytes, blocks: share.blocks })
        });
        Self { rows: rows.collect(), frames }
    }
}

struct Rows<K>(BTreeMap<K, [Amount; 2]>);

impl<K> Default for Rows<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Rows<K> {
    fn add(&mut self, nth: usize, key: K, amount: Amount) {
        let sum = &mut self.0.entry(key).or_default()[nth];
        sum.bytes = sum.bytes.saturating_add(amount.bytes);
        sum.blocks += amount.blocks;
    }

    fn sorted(self) -> Vec<Change<K>> {
        let rows = self.0.into_iter().map(|(key, amounts)| Change { key, amounts });
        let mut rows: Vec<Change<K>> = rows.collect();
        rows.sort_by_key(|row| Reverse(row.bytes().abs()));
        rows
    }
}
