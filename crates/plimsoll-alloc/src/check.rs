//! Consistency checks of the state and of the counters: [`Allocator::check`],
//! [`Stats::check`], [`Ledger::check`].
//!
//! They visit every block, so they are for tests and debugging. The rules are the invariants
//! that PyTorch's allocator maintains after every operation.

use std::collections::BTreeMap;
use std::fmt;

use crate::allocator::Allocator;
use crate::block::{Block, BlockId, SlotState};
use crate::category::CategoryBytes;
use crate::ledger::Ledger;
use crate::pool::{PoolKind, PoolRef};
use crate::request::Addr;
use crate::segment::{BlockState, Segment, SegmentBlock};
use crate::size::{MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES};
use crate::stats::{PoolStats, Stats};

/// A broken invariant: a bug in this crate, never the caller's fault.
///
/// ```
/// # use plimsoll_alloc::Violation;
/// let broken = Violation { rule: "reserved is the sum of the segments", expected: 2, found: 1, at: None };
/// assert_eq!(broken.to_string(), "broken rule: reserved is the sum of the segments: expected 2, found 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub rule: &'static str,
    /// The expected value.
    pub expected: i128,
    /// The value found.
    pub found: i128,
    /// The address of the block, if one block breaks it.
    pub at: Option<Addr>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken rule: {}: expected {}, found {}", self.rule, self.expected, self.found)?;
        match self.at {
            Some(addr) => write!(f, " (at {addr})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Violation {}

/// Checks that two values are equal.
pub(crate) fn equal(
    rule: &'static str,
    at: Option<Addr>,
    expected: impl Into<i128>,
    found: impl Into<i128>,
) -> Result<(), Violation> {
    let (expected, found) = (expected.into(), found.into());
    if expected == found { Ok(()) } else { Err(Violation { rule, expected, found, at }) }
}

impl<D, O> Allocator<D, O> {
    /// Checks that the blocks, the free sets, the events and `reserved` agree.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Violation> {
        let segments = self.segments();
        let in_segments: usize = segments.iter().map(|segment| segment.blocks.len()).sum();
        let mapped = self.pools.blocks.iter().filter(|block| block.is_mapped());
        equal("every mapped block is in a segment", None, count(mapped.count()), count(in_segments))?;
        let sum: u64 = segments.iter().map(|segment| segment.bytes).sum();
        equal("reserved is the sum of the segments", None, sum, self.reserved_bytes)?;
        for pair in segments.windows(2) {
            let overlap_bytes = (pair[0].addr.0 + pair[0].bytes).saturating_sub(pair[1].addr.0);
            equal("segments do not overlap", Some(pair[1].addr), 0, overlap_bytes)?;
        }
        for first in self.pools.blocks.iter().filter(|block| block.prev.is_none()) {
            self.check_chain(first)?;
        }
        self.pools.halves().try_for_each(|half| self.check_half(half))?;
        let in_pools: u64 = self.pools.halves().map(|half| self.pools.pool(half).segments).sum();
        let firsts = self.pools.blocks.iter().filter(|block| block.prev.is_none()).count();
        equal("every segment is in an existing pool", None, count(firsts), in_pools)?;
        self.check_events()
    }

    /// Checks one segment.
    fn check_chain(&self, first: &Block) -> Result<(), Violation> {
        let chain: Vec<&Block> = self.pools.blocks.chain(first).collect();
        let sum: u64 = chain.iter().map(|block| block.bytes).sum();
        let at = Some(first.addr);
        if let Some(range) = first.range.map(|range| self.ranges.get(range)) {
            equal("an expandable segment fills its range", at, range.bytes, sum)?;
            equal("an expandable segment starts its range", at, range.addr.0, first.addr.0)?;
        } else if self.pools.pool(first.pool).kind == PoolKind::Small {
            equal("a small segment is 2 MiB", at, SMALL_SEGMENT_BYTES, sum)?;
        }
        for block in &chain {
            self.check_block(block)?;
        }
        for pair in chain.windows(2) {
            let (left, right) = (pair[0], pair[1]);
            let at = Some(right.addr);
            equal("blocks are contiguous", at, left.addr.0 + left.bytes, right.addr.0)?;
            let back = right.prev.map(|id| &self.pools.blocks[id]);
            equal("links are symmetric", at, true, back.is_some_and(|back| std::ptr::eq(back, left)))?;
            let unmerged =
                left.state == right.state && matches!(left.state, SlotState::Cached | SlotState::Unmapped);
            equal("no two neighbours are both cached, or both unmapped", at, false, unmerged)?;
            let owner = |block: &Block| (block.stream, block.pool, block.segment_number, block.range);
            equal("a segment has one stream, pool, number and range", at, true, owner(left) == owner(right))?;
        }
        Ok(())
    }

    fn check_block(&self, block: &Block) -> Result<(), Violation> {
        let at = Some(block.addr);
        equal("sizes are multiples of 512", at, 0, block.bytes % MIN_BLOCK_BYTES)?;
        equal("no block is empty", at, true, block.bytes > 0)?;
        match block.state {
            SlotState::Active => {
                equal("a block holds its request", at, true, block.requested_bytes <= block.bytes)
            }
            SlotState::Pending => Ok(()),
            SlotState::Unmapped => {
                let range = block.range.map(|range| self.ranges.get(range));
                let page_bytes = range.map_or(0, |range| range.page_bytes);
                equal("only a range has unmapped blocks", at, true, page_bytes > 0)?;
                let start = block.addr.0 - range.map_or(0, |range| range.addr.0);
                equal(
                    "an unmapped block is a whole number of pages",
                    at,
                    0,
                    start % page_bytes + block.bytes % page_bytes,
                )
            }
            SlotState::Cached | SlotState::Vacant => Ok(()),
        }
    }

    /// Checks that the sets of one half of a pool hold exactly its cached and its unmapped blocks.
    fn check_half(&self, half: PoolRef) -> Result<(), Violation> {
        let pool = self.pools.pool(half);
        for id in pool.cached.iter(&self.pools.blocks) {
            let block = &self.pools.blocks[id];
            let at = Some(block.addr);
            equal(
                "a cached block is filed under its size and address",
                at,
                true,
                pool.cached.holds(&self.pools.blocks, id),
            )?;
            let fits = block.state == SlotState::Cached && block.pool == half;
            equal("the free set holds cached blocks of its pool", at, true, fits)?;
        }
        for (&(stream, addr), &id) in &pool.unmapped {
            let block = &self.pools.blocks[id];
            let fits = block.state == SlotState::Unmapped && block.pool == half;
            let filed = (block.stream, block.addr) == (stream, addr);
            equal("the unmapped set holds unmapped blocks of its pool", Some(addr), true, fits && filed)?;
        }
        let here = || self.pools.blocks.iter().filter(|block| block.pool == half);
        let in_state = |state| count(here().filter(|block| block.state == state).count());
        equal(
            "the free set holds every cached block",
            None,
            in_state(SlotState::Cached),
            count(pool.cached.len(&self.pools.blocks)),
        )?;
        let unmapped = count(pool.unmapped.len());
        equal("the unmapped set holds every unmapped block", None, in_state(SlotState::Unmapped), unmapped)?;
        let firsts = here().filter(|block| block.prev.is_none()).count();
        equal("a pool counts its segments", None, count(firsts), pool.segments)
    }

    /// Checks that a block is pending exactly while events or uses on other streams are outstanding.
    fn check_events(&self) -> Result<(), Violation> {
        let mut waiting: BTreeMap<BlockId, u32> = BTreeMap::new();
        for id in self.streams.waiting() {
            *waiting.entry(id).or_default() += 1;
        }
        for id in self.streams.deferred() {
            waiting.entry(id).or_default();
            let uses = self.pools.blocks[id].uses.is_some();
            equal("a deferred block has uses to record", Some(self.pools.blocks[id].addr), true, uses)?;
        }
        for &id in &self.streams.elsewhere {
            waiting.entry(id).or_default();
        }
        for (&id, &events) in &waiting {
            let block = &self.pools.blocks[id];
            equal(
                "an event belongs to a pending block",
                Some(block.addr),
                true,
                block.state == SlotState::Pending,
            )?;
            equal("a pending block counts its events", Some(block.addr), events, block.events)?;
        }
        let pending = self.pools.blocks.iter().filter(|block| block.state == SlotState::Pending).count();
        equal("every pending block waits for something", None, count(waiting.len()), count(pending))?;
        let idle = |block: &&Block| matches!(block.state, SlotState::Cached | SlotState::Unmapped);
        let in_use = |block: &Block| block.events > 0 || block.uses.is_some();
        let wrong = self.pools.blocks.iter().filter(idle).filter(|block| in_use(block)).count();
        equal("no block in a free set is used by a stream", None, 0, count(wrong))
    }
}

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

pub(crate) fn count(number: usize) -> i128 {
    number as i128
}
