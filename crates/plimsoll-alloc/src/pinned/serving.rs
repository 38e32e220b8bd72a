//! Serving a request: from the cache, from the reserve, or with newly pinned memory.

use super::allocator::PinnedAllocator;
use super::block::{Block, HostBlockState};
use super::driver::PinnedDriver;
use super::error::PinnedError;
use super::event::{PinnedEvent, PinnedObserver};
use super::request::{PinnedAllocation, PinnedRequest};
use super::reserve::Reserve;
use super::size::block_bytes;
use crate::driver::DriverError;
use crate::error::PoolError;
use crate::request::{Addr, PoolId};

impl<D: PinnedDriver, O: PinnedObserver> PinnedAllocator<D, O> {
    /// Serves a request. Polls the pool's events, then takes the newest cached block of the request's bucket that is
    /// large enough, or else carves a block from the reserve, or else pins new memory. In PyTorch:
    /// `CachingHostAllocatorImpl::allocate`.
    ///
    /// # Errors
    /// See [`PinnedError`]. A driver error may concern another block: polling can complete the free of any block in the
    /// pool.
    pub fn alloc(&mut self, request: PinnedRequest) -> Result<PinnedAllocation, PinnedError> {
        if request.bytes == 0 {
            return Ok(PinnedAllocation::nothing());
        }
        let too_large = PinnedError::TooLarge { requested_bytes: request.bytes };
        let bytes = block_bytes(request.bytes, &self.config).ok_or(too_large)?;
        self.check_open(request.pool)?;
        self.poll(request.pool)?;
        let addr = match self.pool(request.pool).take(bytes) {
            Some(cached) => cached.addr,
            None => self.make_block(request, bytes)?,
        };
        Ok(self.allocation_of(addr, request))
    }

    fn check_open(&self, pool: PoolId) -> Result<(), PinnedError> {
        if pool == PoolId::DEFAULT || self.recording.contains(&pool) {
            return Ok(());
        }
        let known = self.pools.contains_key(&pool);
        Err(PinnedError::Pool(if known { PoolError::NotRecording(pool) } else { PoolError::Unknown(pool) }))
    }

    fn allocation_of(&mut self, addr: Addr, request: PinnedRequest) -> PinnedAllocation {
        let block = self.block(addr);
        block.state = HostBlockState::Held;
        block.requested_bytes = request.bytes;
        block.during = request.during;
        let block = block.seen(addr);
        self.observer.on(&PinnedEvent::Alloc { block });
        PinnedAllocation { addr, bytes: block.bytes, requested_bytes: block.requested_bytes }
    }

    /// Makes a new block. It is not in a bucket: it is about to be allocated.
    fn make_block(&mut self, request: PinnedRequest, bytes: u64) -> Result<Addr, PinnedError> {
        let (addr, elapsed_us) = self.find_memory(bytes)?;
        let PinnedRequest { bytes: requested_bytes, pool, during } = request;
        let block =
            Block { bytes, requested_bytes, pool, during, state: HostBlockState::Held, streams: Vec::new() };
        let there = self.blocks.insert(addr, block);
        assert!(there.is_none(), "the driver returned {addr} twice: {there:?} is there");
        self.observer.on(&PinnedEvent::SegmentAlloc { addr, bytes, pool, elapsed_us });
        Ok(addr)
    }

    /// Memory for a new block, and the duration of the driver call if there was one.
    fn find_memory(&mut self, bytes: u64) -> Result<(Addr, Option<u64>), PinnedError> {
        if matches!(self.reserve, Reserve::Undecided) {
            self.reserve = self.make_reserve()?;
        }
        if let Some(piece) = self.reserve.carve(bytes) {
            return Ok((piece, None));
        }
        let pinned = self.driver.pin(bytes).map_err(|why| self.cannot_pin(bytes, why))?;
        Ok((pinned.value, Some(pinned.elapsed_us)))
    }

    fn make_reserve(&mut self) -> Result<Reserve, PinnedError> {
        let bytes = self.config.reserve_segment_bytes();
        if bytes == 0 {
            return Ok(Reserve::None);
        }
        let pinned = self.driver.pin(bytes).map_err(|why| self.cannot_pin(bytes, why))?;
        let (addr, elapsed_us) = (pinned.value, pinned.elapsed_us);
        self.observer.on(&PinnedEvent::ReserveAlloc { addr, bytes, elapsed_us });
        Ok(Reserve::Segment { addr, bytes, used_bytes: 0 })
    }

    fn cannot_pin(&self, asked_bytes: u64, why: DriverError) -> PinnedError {
        let DriverError::OutOfMemory = why else { return PinnedError::Driver(why) };
        let (active_bytes, cached_bytes) = self.active_and_cached_bytes();
        PinnedError::OutOfMemory { asked_bytes, active_bytes, cached_bytes }
    }
}
