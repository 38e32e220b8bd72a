//! Consistency checks of the state and the statistics: [`PinnedAllocator::check`],
//! [`PinnedStats::check`]. They visit every block, so they are for tests and debugging.

use super::allocator::PinnedAllocator;
use super::block::{Block, HostBlockState};
use super::reserve::{PIECE_GRAIN_BYTES, Reserve};
use super::segment::PinnedSegment;
use super::size::bucket;
use super::stats::PinnedStats;
use crate::request::{Addr, PoolId};
use crate::violation::{Violation, count, equal};

impl<D, O> PinnedAllocator<D, O> {
    /// Checks that blocks, buckets, pending events and the reserve agree.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Violation> {
        for pair in self.segments().windows(2) {
            let overlap_bytes = (pair[0].addr.0 + pair[0].bytes).saturating_sub(pair[1].addr.0);
            equal("blocks do not overlap", Some(pair[1].addr), 0, overlap_bytes)?;
        }
        for (&addr, block) in &self.blocks {
            self.check_block(addr, block)?;
        }
        let in_buckets: usize = self.pools.values().flat_map(|pool| &pool.buckets).map(Vec::len).sum();
        let cached = self.blocks.values().filter(|block| block.state == HostBlockState::Cached).count();
        equal("the buckets hold the cached blocks, each once", None, count(cached), count(in_buckets))?;
        self.check_pools()?;
        self.check_reserve()
    }

    fn check_block(&self, addr: Addr, block: &Block) -> Result<(), Violation> {
        let at = Some(addr);
        equal("a block holds its request", at, true, block.requested_bytes <= block.bytes)?;
        equal("a block's pool exists", at, true, self.pools.contains_key(&block.pool))?;
        let pool = &self.pools[&block.pool];
        let in_bucket = pool.buckets[bucket(block.bytes)].iter();
        let in_bucket = in_bucket.filter(|cached| cached.addr == addr && cached.bytes == block.bytes);
        let is_cached = block.state == HostBlockState::Cached;
        equal(
            "a block is in its bucket if it is cached",
            at,
            i128::from(is_cached),
            count(in_bucket.count()),
        )?;
        let used = !block.streams.is_empty();
        equal("only an allocated block has uses", at, false, used && block.state != HostBlockState::Held)?;
        let events = pool.waiting.iter().filter(|&&(_, waits)| waits == addr).count();
        match block.state {
            HostBlockState::Waiting { events: expected } => {
                equal("a waiting block has its events", at, count(expected), count(events))?;
                equal("a waiting block waits for at least one event", at, true, expected > 0)
            }
            HostBlockState::Retired => Ok(()),
            HostBlockState::Held | HostBlockState::Cached => {
                equal("no other block has events", at, 0, count(events))
            }
        }
    }

    fn check_pools(&self) -> Result<(), Violation> {
        let users = |id: &PoolId| self.pools.get(id).map_or(0, |pool| pool.users);
        equal("the default pool has one user", None, 1, users(&PoolId::DEFAULT))?;
        for (nth, id) in self.recording.iter().enumerate() {
            let once = !self.recording[..nth].contains(id) && *id != PoolId::DEFAULT;
            equal("a pool is recorded into once", None, true, once)?;
        }
        for (_, addr) in self.pools.values().flat_map(|pool| &pool.waiting) {
            equal("an event belongs to a block", Some(*addr), true, self.blocks.contains_key(addr))?;
        }
        Ok(())
    }

    fn check_reserve(&self) -> Result<(), Violation> {
        let Reserve::Segment { addr, bytes, used_bytes } = self.reserve else { return Ok(()) };
        equal("the reserve is not overdrawn", Some(addr), true, used_bytes <= bytes)?;
        for (&at, block) in self.blocks.iter().filter(|&(&at, _)| self.reserve.owns(at)) {
            equal("pieces start at multiples of 4 KiB", Some(at), 0, (at.0 - addr.0) % PIECE_GRAIN_BYTES)?;
            let inside = at.0 + block.bytes <= addr.0 + used_bytes;
            equal("pieces lie in the carved part", Some(at), true, inside)?;
        }
        Ok(())
    }
}

impl PinnedStats {
    /// Checks the statistics against the blocks.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self, segments: &[PinnedSegment]) -> Result<(), Violation> {
        let active = || segments.iter().filter(|block| block.state.is_active());
        let sum = |blocks: &mut dyn Iterator<Item = &PinnedSegment>| -> i128 {
            blocks.map(|block| i128::from(block.bytes)).sum()
        };
        let rules = [
            ("allocations counts the blocks", count(segments.len()), self.allocations),
            ("allocated_bytes sums the blocks", sum(&mut segments.iter()), self.allocated_bytes),
            ("active_requests counts the active blocks", count(active().count()), self.active_requests()),
            ("active_bytes sums the active blocks", sum(&mut active()), self.active_bytes()),
        ];
        for (rule, expected, stat) in rules {
            equal(rule, None, expected, stat.current)?;
            equal("a peak is never below the current value", None, true, stat.peak >= stat.current)?;
        }
        Ok(())
    }
}
