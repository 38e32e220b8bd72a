//! The judge: is the state sound, and do the counters agree with it? [`Allocator::check`],
//! [`Stats::check`], [`Ledger::check`].
//!
//! It walks everything, so it is for tests and for hunting a bug, not for each request. The rules are
//! those that PyTorch's allocator keeps after every operation.

use std::fmt;

use crate::allocator::Allocator;
use crate::block::{Block, State};
use crate::category::CategoryBytes;
use crate::ledger::Ledger;
use crate::pool::PoolKind;
use crate::request::Addr;
use crate::segment::{BlockState, Segment, SegmentBlock};
use crate::size::{MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES};
use crate::stats::{PoolStats, Stats};

/// A rule that does not hold: a bug here, never the caller's fault.
///
/// ```
/// # use plimsoll_alloc::Violation;
/// let broken = Violation { rule: "reserved is the sum of the segments", expected: 2, found: 1, at: None };
/// assert_eq!(broken.to_string(), "broken rule: reserved is the sum of the segments: expected 2, found 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule, as it should be.
    pub rule: &'static str,
    /// What the rule demands.
    pub expected: i128,
    /// What there is.
    pub found: i128,
    /// The block where it was seen, if it was one block.
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

fn equal(
    rule: &'static str,
    at: Option<Addr>,
    expected: impl Into<i128>,
    found: impl Into<i128>,
) -> Result<(), Violation> {
    let (expected, found) = (expected.into(), found.into());
    if expected == found { Ok(()) } else { Err(Violation { rule, expected, found, at }) }
}

impl<D, O> Allocator<D, O> {
    /// Whether the blocks, the cache and `reserved` agree.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let segments = self.segments();
        let in_segments: usize = segments.iter().map(|segment| segment.blocks.len()).sum();
        equal(
            "every block is in a segment",
            None,
            count(self.pools.blocks.iter().count()),
            count(in_segments),
        )?;
        let sum: u64 = segments.iter().map(|segment| segment.bytes).sum();
        equal("reserved is the sum of the segments", None, sum, self.reserved_bytes)?;
        for pair in segments.windows(2) {
            let overlap_bytes = (pair[0].addr.0 + pair[0].bytes).saturating_sub(pair[1].addr.0);
            equal("segments do not overlap", Some(pair[1].addr), 0, overlap_bytes)?;
        }
        for first in self.pools.blocks.iter().filter(|block| block.prev.is_none()) {
            self.check_chain(first)?;
        }
        self.check_cache(PoolKind::Small)?;
        self.check_cache(PoolKind::Large)
    }

    /// The rules of one segment.
    fn check_chain(&self, first: &Block) -> Result<(), Violation> {
        let chain: Vec<&Block> = self.pools.blocks.chain(first).collect();
        if first.pool == PoolKind::Small {
            let sum: u64 = chain.iter().map(|block| block.bytes).sum();
            equal("a small segment is 2 MiB", Some(first.addr), SMALL_SEGMENT_BYTES, sum)?;
        }
        for block in &chain {
            let at = Some(block.addr);
            equal("sizes are multiples of 512", at, 0, block.bytes % MIN_BLOCK_BYTES)?;
            equal("no block is empty", at, true, block.bytes > 0)?;
            if block.state == State::Active {
                equal("a block holds what was asked", at, true, block.requested_bytes <= block.bytes)?;
            }
        }
        for pair in chain.windows(2) {
            let (left, right) = (pair[0], pair[1]);
            let at = Some(right.addr);
            equal("blocks lie end to end", at, left.addr.0 + left.bytes, right.addr.0)?;
            let back = right.prev.map(|id| &self.pools.blocks[id]);
            equal("links go both ways", at, true, back.is_some_and(|back| std::ptr::eq(back, left)))?;
            let both_cached = left.state == State::Cached && right.state == State::Cached;
            equal("no two neighbours are both cached", at, false, both_cached)?;
            let owner = |block: &Block| (block.stream, block.pool, block.segment_number);
            equal("a segment has one stream, pool and number", at, true, owner(left) == owner(right))?;
        }
        Ok(())
    }

    /// The free set holds exactly the pool's blocks that are not active.
    fn check_cache(&self, pool: PoolKind) -> Result<(), Violation> {
        let cached = self.pools.cached(pool);
        for id in cached.iter(&self.pools.blocks) {
            let block = &self.pools.blocks[id];
            let at = Some(block.addr);
            equal(
                "a cached block is filed under its size and address",
                at,
                true,
                cached.holds(&self.pools.blocks, id),
            )?;
            let fits = block.state == State::Cached && block.pool == pool;
            equal("the free set holds cached blocks of its pool", at, true, fits)?;
        }
        let blocks = self.pools.blocks.iter();
        let expected = blocks.filter(|block| block.state == State::Cached && block.pool == pool).count();
        equal(
            "the free set holds every cached block",
            None,
            count(expected),
            count(cached.len(&self.pools.blocks)),
        )
    }
}

impl Stats {
    /// Whether the statistics agree with the segments that they counted.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self, segments: &[Segment]) -> Result<(), Violation> {
        let sums = Sums::of(segments);
        let rules = [
            ("allocation counts the active blocks", sums.active_blocks, self.allocation()),
            ("active counts the active blocks", sums.active_blocks, self.active()),
            ("allocated_bytes sums the active blocks", sums.active_bytes, self.allocated_bytes()),
            ("active_bytes sums the active blocks", sums.active_bytes, self.active_bytes()),
            ("requested_bytes sums what was asked", sums.requested_bytes, self.requested_bytes()),
            ("segment counts the segments", sums.segments, self.segment()),
            ("reserved_bytes sums the segments", sums.segment_bytes, self.reserved_bytes()),
            ("inactive_split counts the cached pieces", sums.pieces, self.inactive_split()),
            ("inactive_split_bytes sums the cached pieces", sums.piece_bytes, self.inactive_split_bytes()),
        ];
        for (rule, expected, stats) in rules {
            equal(rule, None, expected, stats.all.current)?;
        }
        for (_, PoolStats { all, small_pool, large_pool }) in self.arrays() {
            let rule = "all is the small pool plus the large pool";
            equal(rule, None, all.current, small_pool.current + large_pool.current)?;
            equal(rule, None, all.allocated, small_pool.allocated + large_pool.allocated)?;
            equal(rule, None, all.freed, small_pool.freed + large_pool.freed)?;
            equal("a peak is never below what is current", None, true, all.peak >= all.current)?;
        }
        Ok(())
    }
}

impl Ledger {
    /// Whether the categories agree with the segments that they counted.
    ///
    /// # Errors
    /// The first rule that does not hold.
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

/// What the statistics should say, counted from a picture.
#[derive(Default)]
struct Sums {
    active_blocks: i128,
    active_bytes: i128,
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
            sums.segments += 1;
            sums.segment_bytes += i128::from(segment.bytes);
        }
        for block in active(segments) {
            sums.active_blocks += 1;
            sums.active_bytes += i128::from(block.bytes);
            sums.requested_bytes += i128::from(block.requested_bytes);
        }
        let split = segments.iter().filter(|segment| segment.blocks.len() > 1);
        for piece in
            split.flat_map(|segment| &segment.blocks).filter(|piece| piece.state == BlockState::Cached)
        {
            sums.pieces += 1;
            sums.piece_bytes += i128::from(piece.bytes);
        }
        sums
    }
}

fn active(segments: &[Segment]) -> impl Iterator<Item = &SegmentBlock> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::Active)
}

fn count(number: usize) -> i128 {
    number as i128
}
