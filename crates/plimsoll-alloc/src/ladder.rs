//! The ladder: what is tried, in which order, when no cached block holds a request.
//!
//! 1. Collect garbage, if there is a limit and a threshold (`collect.rs`).
//! 2. Ask the device, if the limit allows (`grow.rs`).
//! 3. For the default pool: borrow a cached block of a private pool that lends.
//! 4. Release oversize segments, if something is oversize, and ask the device again (`release.rs`).
//! 5. Outside a capture: release all that can go, and ask the device a last time.
//! 6. Give up, with the numbers (`out_of_memory.rs`).
//!
//! As PyTorch: `malloc` from `get_free_block` on.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::request::PoolId;
use crate::search::Ask;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Climbs the ladder until there is an uncached block for the request. Where it comes from is noted in
    /// `ask`: a lending pool's rules go with its block.
    pub(crate) fn make_room(&mut self, ask: &mut Ask) -> Result<BlockId, Error> {
        if let Some(limit_bytes) = self.collected_limit() {
            self.collect_garbage(limit_bytes)?;
        }
        if let Some(id) = self.try_device(ask)? {
            return Ok(id);
        }
        if let Some(id) = self.borrow(ask) {
            return Ok(id);
        }
        if self.release_oversize(ask)?
            && let Some(id) = self.try_device(ask)?
        {
            return Ok(id);
        }
        if !self.in_capture()
            && let Some(id) = self.release_all_and_retry(ask)?
        {
            return Ok(id);
        }
        Err(self.give_up(ask))
    }

    /// Looks for a cached block in the pools that lend. Expandable segments are not lent.
    fn borrow(&mut self, ask: &mut Ask) -> Option<BlockId> {
        if ask.request.pool != PoolId::DEFAULT {
            return None;
        }
        for pool in self.privates.lenders(ask.kind) {
            let theirs = Ask { pool, expandable: false, ..*ask };
            if let Some(id) = self.search(&theirs) {
                *ask = theirs;
                return Some(id);
            }
        }
        None
    }

    /// Note [No search after the release]: waiting for events can leave a block that holds the request, as a
    /// piece of a segment that stays. PyTorch does not look, and fails; the same request then succeeds.
    /// With `search_again_after_release` we look before we fail. Otherwise the two are the same.
    fn release_all_and_retry(&mut self, ask: &Ask) -> Result<Option<BlockId>, Error> {
        self.release_all(Some(ask.request.pool))?;
        self.observer.on(&Event::Retry { segment_bytes: ask.segment_bytes });
        match self.try_device(ask)? {
            None if self.config.search_again_after_release() => Ok(self.search(ask)),
            answer => Ok(answer),
        }
    }
}
