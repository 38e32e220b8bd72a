//! Consistency checks of the counters against a snapshot: [`Stats::check`], [`Ledger::check`].
//!
//! The checks of the allocator's own state are in `pools/check.rs` and `pending/check.rs`. All checks visit every
//! block, so they are for tests and debugging. They check the invariants that PyTorch's allocator maintains after every
//! operation.

use crate::category::CategoryBytes;
use crate::ledger::Ledger;
use crate::segment::{BlockState, Segment, SegmentBlock};
use crate::stats::{PoolStats, Stats};
use crate::violation::{Violation, equal};

impl Stats {
    /// Checks the statistics against the segments.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self, segments: &[Segment]) -> Result<(), Violation> {
        let sums = Sums::of(segments);
        let rules = [
            ("allocation counts the active blocks", sums.active_blocks, self.allocation()),
            ("active counts the blocks not cached", sums.active_blocks + sums.pending_blocks, self.active()),
            ("allocated_bytes sums the active blocks", sums.active_bytes, self.allocated_bytes()),
            (
                "active_bytes sums the blocks not cached",
                sums.active_bytes + sums.pending_bytes,
                self.active_bytes(),
            ),
            ("requested_bytes sums the requests", sums.requested_bytes, self.requested_bytes()),
            ("segment counts the segments that do not expand", sums.segments, self.segment()),
            ("reserved_bytes sums the segments", sums.segment_bytes, self.reserved_bytes()),
            ("inactive_split counts the cached pieces", sums.pieces, self.inactive_split()),
            ("inactive_split_bytes sums the cached pieces", sums.piece_bytes, self.inactive_split_bytes()),
        ];
        for (rule, expected, stats) in rules {
            equal(rule, None, expected, stats.all.current)?;
        }
        for (id, stats) in &self.reserved_bytes_by_private_pools() {
            let of_pool = segments.iter().filter(|segment| segment.pool_id == *id);
            let sum: u64 = of_pool.map(|segment| segment.bytes).sum();
            equal("a private pool's reserved_bytes sums its segments", None, sum, stats.all.current)?;
        }
        let by_pool = self.reserved_bytes_by_private_pools().into_values();
        for PoolStats { all, small_pool, large_pool } in
            self.arrays().map(|(_, stats)| stats).into_iter().chain(by_pool)
        {
            let rule = "all is the small pool plus the large pool";
            equal(rule, None, all.current, small_pool.current + large_pool.current)?;
            equal(rule, None, all.allocated, small_pool.allocated + large_pool.allocated)?;
            equal(rule, None, all.freed, small_pool.freed + large_pool.freed)?;
            equal("a peak is never below the current value", None, true, all.peak >= all.current)?;
        }
        Ok(())
    }
}

impl Ledger {
    /// Checks the categories against the segments.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self, segments: &[Segment]) -> Result<(), Violation> {
        let mut expected = CategoryBytes::default();
        for block in active(segments) {
            expected[block.tag.category] += block.bytes;
        }
        for ((_, expected), (_, found)) in expected.iter().zip(self.by_category().iter()) {
            equal("a category sums its active blocks", None, expected, found)?;
        }
        let owners: u64 = self.owners().iter().map(|owner| owner.bytes).sum();
        equal("the owners hold what the categories hold", None, expected.total(), owners)?;
        equal("the peak is never below what is allocated", None, true, self.peak_bytes() >= owners)
    }
}

/// The expected statistics, counted from a snapshot.
#[derive(Default)]
struct Sums {
    active_blocks: i128,
    active_bytes: i128,
    pending_blocks: i128,
    pending_bytes: i128,
    requested_bytes: i128,
    segments: i128,
    segment_bytes: i128,
    pieces: i128,
    piece_bytes: i128,
}

impl Sums {
    fn of(segments: &[Segment]) -> Self {
        let mut sums = Self::default();
        for segment in segments {
            sums.segments += i128::from(!segment.is_expandable);
            sums.segment_bytes += i128::from(segment.bytes);
            for block in &segment.blocks {
                sums.add(segment, block);
            }
        }
        sums
    }

    fn add(&mut self, segment: &Segment, block: &SegmentBlock) {
        let bytes = i128::from(block.bytes);
        match block.state {
            BlockState::Active => {
                self.active_blocks += 1;
                self.active_bytes += bytes;
            }
            BlockState::Pending => {
                self.pending_blocks += 1;
                self.pending_bytes += bytes;
            }
            BlockState::Cached => {
                if segment.blocks.len() > 1 && !segment.is_expandable {
                    self.pieces += 1;
                    self.piece_bytes += bytes;
                }
                return;
            }
        }
        self.requested_bytes += i128::from(block.requested_bytes);
    }
}

fn active(segments: &[Segment]) -> impl Iterator<Item = &SegmentBlock> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::Active)
}
