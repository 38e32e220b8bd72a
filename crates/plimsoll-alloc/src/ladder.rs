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

use crate::allocator::{Allocator, GivenBack, Unserved};
use crate::block::BlockId;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::grow::try_device;
use crate::request::{Addr, Allocation, PoolId};
use crate::search::Ask;

/// Who climbs the ladder. The allocator itself does, or a handle that lets go of its lock while a segment is
/// made (`shared/unlocked.rs`): whatever is known of the allocator is old news then, but for the request's pool.
pub(crate) trait Climber {
    type Driver: Driver;
    type Observer: Observer;

    fn allocator(&mut self) -> &mut Allocator<Self::Driver, Self::Observer>;

    /// Asks for the segment that a request needs: of the device, or of the pool's own allocator.
    fn segment_alloc(&mut self, ask: &Ask) -> Result<Addr, DriverError>;
}

impl<D: Driver, O: Observer> Climber for Allocator<D, O> {
    type Driver = D;
    type Observer = O;

    fn allocator(&mut self) -> &mut Self {
        self
    }

    fn segment_alloc(&mut self, ask: &Ask) -> Result<Addr, DriverError> {
        match self.privates.segment_allocators.get(ask.request.pool) {
            Some(theirs) => theirs.segment_alloc(ask.segment_bytes, ask.request.stream),
            None => self.driver.segment_alloc(ask.segment_bytes),
        }
    }
}

/// Another look, if something was given back, and the ladder.
#[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes it go on only once")]
pub(crate) fn resume<C: Climber>(
    climber: &mut C,
    unserved: Unserved,
    given_back: GivenBack,
) -> Result<Allocation, Error> {
    let mut ask = climber.allocator().ask(unserved.0)?;
    let found = match given_back {
        GivenBack::Something => climber.allocator().search(&ask),
        GivenBack::Nothing => None,
    };
    let id = match found {
        Some(id) => id,
        None => make_room(climber, &mut ask)?,
    };
    Ok(climber.allocator().give(id, &ask))
}

/// Climbs the ladder until there is a cached block for the request. Where it comes from is noted in `ask`:
/// a lending pool's rules go with its block.
fn make_room<C: Climber>(climber: &mut C, ask: &mut Ask) -> Result<BlockId, Error> {
    let allocator = climber.allocator();
    if let Some(limit_bytes) = allocator.collected_limit() {
        allocator.collect_garbage(limit_bytes)?;
    }
    if let Some(id) = try_device(climber, ask)? {
        return Ok(id);
    }
    if let Some(id) = climber.allocator().borrow(ask) {
        return Ok(id);
    }
    if climber.allocator().release_oversize(ask)?
        && let Some(id) = try_device(climber, ask)?
    {
        return Ok(id);
    }
    if !climber.allocator().in_capture()
        && let Some(id) = release_all_and_retry(climber, ask)?
    {
        return Ok(id);
    }
    Err(climber.allocator().give_up(ask))
}

/// Note [No search after the release]: waiting for events can leave a block that holds the request, as a
/// piece of a segment that stays. PyTorch does not look, and fails; the same request then succeeds.
/// With `search_again_after_release` we look before we fail. Otherwise the two are the same.
fn release_all_and_retry<C: Climber>(climber: &mut C, ask: &Ask) -> Result<Option<BlockId>, Error> {
    let allocator = climber.allocator();
    allocator.release_all(Some(ask.request.pool))?;
    allocator.observer.on(&Event::Retry { segment_bytes: ask.segment_bytes });
    if let Some(id) = try_device(climber, ask)? {
        return Ok(Some(id));
    }
    let allocator = climber.allocator();
    let again = allocator.config.search_again_after_release();
    Ok(if again { allocator.search(ask) } else { None })
}

impl<D: Driver, O: Observer> Allocator<D, O> {
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
}
