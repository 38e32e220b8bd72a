//! Cache misses: the steps to get memory when no cached block fits a request.
//!
//! 1. Collect garbage, if there is a limit and a threshold (`collect.rs`).
//! 2. Allocate on the device, if the limit allows (`grow.rs`).
//! 3. For the default pool: use a cached block of a private pool with `use_on_oom`.
//! 4. With `max_split_size`, release oversize segments and retry (`release.rs`).
//! 5. Outside a capture, release the whole cache and retry.
//! 6. Fail with [`Error::OutOfMemory`] (`out_of_memory.rs`).
//!
//! As PyTorch: `malloc` from `get_free_block` on.

use crate::allocator::{Allocator, CacheMiss, CallbackResult};
use crate::block::BlockId;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::grow::try_device;
use crate::request::{Addr, Allocation, PoolId};
use crate::search::SizedRequest;

/// How these steps reach the allocator and the device: directly, or through a handle that releases its lock
/// while a segment is allocated (`shared/unlocked.rs`). The allocator's state may change then, except that the
pub(crate) trait GrowthContext {
    type Driver: Driver;
    type Observer: Observer;

    fn allocator(&mut self) -> &mut Allocator<Self::Driver, Self::Observer>;

    /// Allocates the segment that a request needs, on the device or from the pool's own allocator.
    fn segment_alloc(&mut self, sized: &SizedRequest) -> Result<Addr, DriverError>;
}

impl<D: Driver, O: Observer> GrowthContext for Allocator<D, O> {
    type Driver = D;
    type Observer = O;

    fn allocator(&mut self) -> &mut Self {
        self
    }

    fn segment_alloc(&mut self, sized: &SizedRequest) -> Result<Addr, DriverError> {
        match self.privates.segment_allocators.get(sized.request.pool) {
            Some(theirs) => theirs.segment_alloc(sized.segment_bytes, sized.request.stream),
            None => self.driver.segment_alloc(sized.segment_bytes),
        }
    }
}

/// Continues a request after a cache miss: searches the cache again if callbacks freed memory, then gets memory.
#[expect(clippy::needless_pass_by_value, reason = "consuming it allows only one resume")]
pub(crate) fn resume<C: GrowthContext>(
    context: &mut C,
    miss: CacheMiss,
    result: CallbackResult,
) -> Result<Allocation, Error> {
    let mut sized = context.allocator().size_request(miss.0)?;
    let found = match result {
        CallbackResult::Freed => context.allocator().search(&sized),
        CallbackResult::NothingFreed => None,
    };
    let id = match found {
        Some(id) => id,
        None => make_room(context, &mut sized)?,
    };
    Ok(context.allocator().allocate(id, &sized))
}

/// Runs the steps until a cached block fits the request. `sized.pool` becomes the pool of that block:
/// a block of another pool is split by that pool's rules.
fn make_room<C: GrowthContext>(context: &mut C, sized: &mut SizedRequest) -> Result<BlockId, Error> {
    let allocator = context.allocator();
    if let Some(limit_bytes) = allocator.collected_limit() {
        allocator.collect_garbage(limit_bytes)?;
    }
    if let Some(id) = try_device(context, sized)? {
        return Ok(id);
    }
    if let Some(id) = context.allocator().borrow(sized) {
        return Ok(id);
    }
    if context.allocator().release_oversize(sized)?
        && let Some(id) = try_device(context, sized)?
    {
        return Ok(id);
    }
    if !context.allocator().in_capture()
        && let Some(id) = release_all_and_retry(context, sized)?
    {
        return Ok(id);
    }
    Err(context.allocator().out_of_memory_error(sized))
}

/// Note [No search after the release]: waiting for events can free a block that fits the request, as a
/// piece of a segment that stays. PyTorch does not search again, and fails; the same request then succeeds.
/// With `search_again_after_release`, we search before we fail. Otherwise we do as PyTorch does.
fn release_all_and_retry<C: GrowthContext>(
    context: &mut C,
    sized: &SizedRequest,
) -> Result<Option<BlockId>, Error> {
    let allocator = context.allocator();
    allocator.release_all(Some(sized.request.pool))?;
    allocator.observer.on(&Event::Retry { segment_bytes: sized.segment_bytes });
    if let Some(id) = try_device(context, sized)? {
        return Ok(Some(id));
    }
    let allocator = context.allocator();
    let again = allocator.config.search_again_after_release();
    Ok(if again { allocator.search(sized) } else { None })
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Searches the private pools with `use_on_oom`. Blocks of expandable segments are not used.
    fn borrow(&mut self, sized: &mut SizedRequest) -> Option<BlockId> {
        if sized.request.pool != PoolId::DEFAULT {
            return None;
        }
        for pool in self.privates.lenders(sized.kind) {
            let theirs = SizedRequest { pool, expandable: false, ..*sized };
            if let Some(id) = self.search(&theirs) {
                *sized = theirs;
                return Some(id);
            }
        }
        None
    }
}
