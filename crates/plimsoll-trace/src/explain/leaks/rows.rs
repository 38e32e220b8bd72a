//! The sums of each line from one walk over the blocks: [`Rows`].

use super::Course;
use crate::explain::origin::Name;
use crate::snapshot::{EventIndex, StackId};
use crate::timeline::Life;

/// Sparse series that become a [`Course`].
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    /// Bytes requested, by step.
    pub(super) asked: Vec<(u32, u64)>,
    /// For each step, the bytes that are live after it but not after the previous step, minus the bytes for which the
    /// reverse holds.
    changes: Vec<(u32, i64)>,
    /// Like `changes`, for blocks that are also live at the end of the next step.
    lasting: Vec<(u32, i64)>,
    /// Blocks that outlived a step and were freed, in the order of their allocation.
    pub(super) releases: Vec<Release>,
    /// Bytes still live at the end, by the step of their allocation.
    kept: Vec<(u32, u64)>,
    /// Bytes that were live before the recording.
    before: u64,
    /// Whether the line's blocks are of a kind that a first step allocates and keeps.
    pub(super) is_first_use: bool,
    pub(super) operator: Option<Option<Name>>,
    /// The stack of the first block that outlives the step of its allocation.
    pub(super) stack: Option<StackId>,
    /// The number of blocks that outlive the step of their allocation.
    pub(super) blocks: usize,
    /// The number of these blocks that hold a single number that is the result of an addition.
    pub(super) sums: usize,
    /// The number of these blocks that the next step frees.
    pub(super) sums_replaced: usize,
    /// Like `sums`, but for any scalar: used if the recording has no C++ frames, and so does not show additions.
    pub(super) numbers: usize,
    /// The number of these blocks that the next step frees.
    pub(super) numbers_replaced: usize,
    /// The index of the first block that holds a single number.
    pub(super) first_number: Option<usize>,
    /// The number of blocks with a single number that a user's line requested directly.
    pub(super) direct_numbers: usize,
    /// Bytes of all blocks that outlive the step of their allocation.
    pub(super) bytes: u64,
}

/// A block that outlived a step and was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Release {
    /// The event that freed the block.
    pub at: EventIndex,
    /// The step in which the block was allocated.
    pub birth: u32,
    /// The first step after which the block is not live.
    pub death: u32,
    pub bytes: u64,
}

impl Rows {
    /// Adds a block that outlives the step of its allocation. `death` is the first step after which the block is not
    /// live.
    pub(super) fn take(&mut self, life: &Life, birth: Option<u32>, death: u32, steps: u32, is_sum: bool) {
        match birth {
            Some(step) => self.changes.push((step, signed(life.bytes))),
            None => self.before = self.before.saturating_add(life.bytes),
        }
        if death < steps {
            self.changes.push((death, -signed(life.bytes)));
        } else if let Some(step) = birth {
            add(&mut self.kept, step, life.bytes);
        }
        let from = birth.unwrap_or(0);
        if death > from + 1 {
            self.lasting.push((from, signed(life.bytes)));
            if death < steps {
                self.lasting.push((death - 1, -signed(life.bytes)));
            }
        }
        self.stack = self.stack.or(life.stack);
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(life.bytes);
        self.sums += usize::from(is_sum);
        self.sums_replaced += usize::from(is_sum && birth.is_some_and(|step| step + 1 == death));
    }

    /// For each step, the bytes that are live after it and still live after the next step.
    pub(super) fn lasting(&self, steps: usize) -> Vec<u64> {
        sums(&self.lasting, 0, steps)
    }

    /// The two series of a course.
    pub(super) fn course(&self, steps: usize) -> Course {
        let mut kept = vec![0; steps];
        for &(step, bytes) in &self.kept {
            kept[step as usize] = bytes;
        }
        Course { held: sums(&self.changes, self.before, steps), kept, ..Course::default() }
    }
}

/// The level after each step, from the changes.
fn sums(changes: &[(u32, i64)], before: u64, steps: usize) -> Vec<u64> {
    let mut row = vec![0_i64; steps];
    for &(step, bytes) in changes {
        let change = &mut row[step as usize];
        *change = change.saturating_add(bytes);
    }
    let level = |level: &mut u64, change: i64| {
        *level = level.saturating_add_signed(change);
        Some(*level)
    };
    row.into_iter().scan(before, level).collect()
}

/// Adds bytes to the entry of a step. If the step already has an entry, it is the last entry of the row.
pub(super) fn add(row: &mut Vec<(u32, u64)>, step: u32, bytes: u64) {
    match row.last_mut() {
        Some((last, sum)) if *last == step => *sum = sum.saturating_add(bytes),
        _ => row.push((step, bytes)),
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
