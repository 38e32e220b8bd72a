//! Malloc, and its cache misses: the steps to get memory when no cached block fits a request.
//!
//! 1. Collect garbage, if there is a limit and a threshold (`source/collect.rs`).
//! 2. Allocate on the device, if the limit allows: a segment, or pages of an expandable one (`source/expandable.rs`).
//! 3. For the default pool: use a cached block of a private pool with `use_on_oom`.
//! 4. With `max_split_size`, release oversize segments and retry (`source/release.rs`).
//! 5. Outside a capture, release the whole cache and retry (`release.rs`).
//! 6. Fail with [`Error::OutOfMemory`] (`out_of_memory.rs`).
//!
//! In PyTorch: `malloc`, starting at `get_free_block`, and `alloc_block`.

use std::sync::Arc;

use super::{Allocator, CacheLookup, CacheMiss, CallbackResult};
use crate::allocation::Allocation;
use crate::block::BlockId;
use crate::driver::{Driver, DriverError};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::memory_limit::fraction_of;
use crate::pools::{NewSegment, SizedRequest};
use crate::request::{Addr, PoolId, Request};
use crate::segment_allocator::SegmentAllocator;
use crate::size::PoolKind;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Allocates. A request of 0 bytes allocates nothing, changes nothing and sends no event.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no memory is left after releasing the cache, [`Error::TooLarge`] for one exbibyte or
    /// more, [`Error::Pool`] if the request's pool does not exist, [`Error::Driver`] if the device failed. In all
    /// these cases, nothing is allocated.
    pub fn malloc(&mut self, request: Request) -> Result<Allocation, Error> {
        match self.start(request)? {
            CacheLookup::Hit(allocation) => Ok(allocation),
            CacheLookup::Miss(miss) => self.resume(miss, CallbackResult::NothingFreed),
        }
    }

    /// Gets the memory that a request needs, as [`malloc`](Self::malloc) would, and leaves it in the cache. Does nothing if a cached
    /// block fits.
    ///
    /// # Errors
    /// The errors of [`malloc`](Self::malloc).
    pub fn reserve(&mut self, request: Request) -> Result<(), Error> {
        if request.bytes == 0 {
            return Ok(());
        }
        self.settle_frees(request.stream)?;
        let mut sized = self.size_request(request)?;
        match self.search(&sized) {
            Some(_) => Ok(()),
            None => make_room(self, &mut sized).map(drop),
        }
    }

    /// The bytes of the block that a request needs, and its pool, if the limit does not allow the device memory for it. `None` for requests of
    /// private pools.
    ///
    /// # Errors
    /// The errors of [`malloc`](Self::malloc), except out of memory.
    pub(crate) fn beyond_limit(&self, miss: &CacheMiss) -> Result<Option<(u64, PoolKind)>, Error> {
        let sized = self.size_request(miss.0)?;
        let fits = self.limit.allows(self.reserved_after(&sized)) || sized.request.pool != PoolId::DEFAULT;
        Ok((!fits).then_some((sized.block_bytes, sized.kind)))
    }

    /// The second half of [`malloc`](Self::malloc): searches the cache again if callbacks freed memory, then gets
    /// memory. The caller may make other calls between the two halves.
    ///
    /// # Errors
    /// The same errors as [`malloc`](Self::malloc).
    pub fn resume(&mut self, miss: CacheMiss, result: CallbackResult) -> Result<Allocation, Error> {
        resume(self, miss, result)
    }
}

/// Access to the allocator and the device for the steps above: direct, or through a handle that releases its lock while
/// a segment is allocated (`shared/unlocked.rs`). While the lock is released, the allocator's state may change, but the
/// request's pool is not removed.
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
        self.source.segment_alloc(sized)
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
    if let Some(limit_bytes) = allocator.limit.collected(&allocator.config) {
        allocator.source.collect_garbage(&mut allocator.heap, &allocator.config, limit_bytes)?;
    }
    if let Some(id) = try_device(context, sized)? {
        return Ok(id);
    }
    if let Some(id) = context.allocator().borrow(sized) {
        return Ok(id);
    }
    let allocator = context.allocator();
    // Other processes may have opened the segments of a plain pool.
    if !allocator.private_pools.is_plain(sized.request.pool)
        && allocator.source.release_oversize(&mut allocator.heap, &allocator.config, sized)?
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

/// Allocates device memory for the request; `None` if the limit or the device's memory does not
/// suffice. The limit is compared with the size of a whole segment, even if an expandable segment
/// would need less, as in PyTorch.
///
/// # Errors
/// [`Error::Rejected`] with `throw_on_cudamalloc_oom`, [`Error::Driver`] if the device failed.
fn try_device<C: GrowthContext>(context: &mut C, sized: &SizedRequest) -> Result<Option<BlockId>, Error> {
    let allocator = context.allocator();
    let after_bytes = allocator.reserved_after(sized);
    if !allocator.limit.allows(after_bytes) {
        return Ok(None);
    }
    if allocator.config.throw_on_cudamalloc_oom() {
        allocator.reject_beyond_fraction(sized, after_bytes)?;
    }
    if sized.expandable {
        return allocator.source.grow_range(&mut allocator.heap, &allocator.config, sized);
    }
    match context.segment_alloc(sized) {
        Ok(addr) => Ok(Some(context.allocator().add_segment(sized, addr))),
        Err(DriverError::OutOfMemory) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// Note [No search after the release]: waiting for events can free a block that fits the request, but belongs to a
/// segment that cannot be released. PyTorch does not search the cache again, and fails, although a second attempt at
/// the same request would succeed. With `search_again_after_release`, we search before we fail. Otherwise we do as
/// PyTorch does.
fn release_all_and_retry<C: GrowthContext>(
    context: &mut C,
    sized: &SizedRequest,
) -> Result<Option<BlockId>, Error> {
    let allocator = context.allocator();
    allocator.release_all(Some(sized.request.pool))?;
    allocator.heap.send(&Event::Retry { segment_bytes: sized.segment_bytes });
    if let Some(id) = try_device(context, sized)? {
        return Ok(Some(id));
    }
    let allocator = context.allocator();
    let again = allocator.config.search_again_after_release();
    Ok(if again { allocator.search(sized) } else { None })
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// The reserved bytes once the request has a segment of its own.
    fn reserved_after(&self, sized: &SizedRequest) -> u64 {
        self.heap.reserved_bytes().saturating_add(sized.segment_bytes)
    }

    /// Searches the private pools with `use_on_oom`. Blocks of expandable segments are not used.
    fn borrow(&mut self, sized: &mut SizedRequest) -> Option<BlockId> {
        if sized.request.pool != PoolId::DEFAULT {
            return None;
        }
        for pool in self.private_pools.lenders(sized.kind) {
            let theirs = SizedRequest { pool, expandable: false, ..*sized };
            if let Some(id) = self.search(&theirs) {
                *sized = theirs;
                return Some(id);
            }
        }
        None
    }

    /// Returns an error if the request would exceed `per_process_memory_fraction`. As in PyTorch, the cache is not
    /// released, and this does not count as out of memory.
    fn reject_beyond_fraction(&mut self, sized: &SizedRequest, after_bytes: u64) -> Result<(), Error> {
        let fraction = self.config.per_process_memory_fraction();
        let allowed_bytes = fraction_of(fraction, self.source.memory().total_bytes);
        if after_bytes <= allowed_bytes {
            return Ok(());
        }
        let segment_bytes = sized.segment_bytes;
        self.heap.send(&Event::Rejected { segment_bytes });
        let reserved_bytes = self.heap.reserved_bytes();
        Err(Error::Rejected { segment_bytes, reserved_bytes, allowed_bytes })
    }

    /// Adds the segment that was allocated for a request. Its one block is cached.
    fn add_segment(&mut self, sized: &SizedRequest, addr: Addr) -> BlockId {
        let (bytes, stream, pool) = (sized.segment_bytes, sized.request.stream, sized.pool);
        let segment = NewSegment { addr, bytes, stream, pool, range: None };
        self.heap.add_segment(segment, sized.request.stack, &self.config)
    }

    /// Prevents the removal of the request's pool while the caller allocates a segment for it, until
    /// [`end_segment_alloc`](Self::end_segment_alloc). Returns the pool's own segment allocator, if it has one.
    pub(crate) fn begin_segment_alloc(&mut self, pool: PoolId) -> Option<Arc<dyn SegmentAllocator>> {
        self.private_pools.hold(pool);
        self.source.allocator_of(pool).cloned()
    }

    /// Allows the removal of the pool again: undoes [`begin_segment_alloc`](Self::begin_segment_alloc).
    pub(crate) fn end_segment_alloc(&mut self, pool: PoolId) {
        self.private_pools.let_go(pool);
    }
}
