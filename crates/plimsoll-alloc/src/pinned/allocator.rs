//! The pinned allocator: [`PinnedAllocator`], and how it serves requests.
//!
//! Freeing: `polling.rs`. Pools of graph captures: `captures.rs`.

use std::collections::BTreeMap;

use super::block::{Block, HostBlockState};
use super::driver::PinnedDriver;
use super::error::PinnedError;
use super::event::{PinnedEvent, PinnedObserver};
use super::pool::HostPool;
use super::request::{DeviceStream, PinnedAllocation, PinnedRequest};
use super::reserve::Reserve;
use super::size::block_bytes;
use crate::config::PinnedConfig;
use crate::driver::DriverError;
use crate::private::PoolError;
use crate::request::{Addr, PoolId};

/// PyTorch's caching allocator of pinned host memory.
///
/// ```
/// use plimsoll_alloc::{DeviceStream, PinnedAllocator, PinnedConfig, PinnedRequest, SimHost};
///
/// let copies = DeviceStream::default();
/// let mut host = SimHost::with_capacity(1 << 20);
/// host.hold(copies);
/// let mut pinned = PinnedAllocator::new(PinnedConfig::default(), host, ());
///
/// let batch = pinned.alloc(PinnedRequest::of(3000))?;
/// let addr = batch.addr();
/// pinned.record_event(addr, copies); // an asynchronous copy from it is on its way
/// pinned.free(batch)?;
/// let next = pinned.alloc(PinnedRequest::of(3000))?;
/// assert_ne!(next.addr(), addr);
///
/// pinned.driver_mut().finish(copies, 1);
/// let third = pinned.alloc(PinnedRequest::of(4000))?;
/// assert_eq!(third.addr(), addr);
/// # pinned.free(next)?;
/// # pinned.free(third)?;
/// # Ok::<(), plimsoll_alloc::PinnedError>(())
/// ```
#[derive(Debug)]
pub struct PinnedAllocator<D, O> {
    pub(super) config: PinnedConfig,
    pub(super) driver: D,
    pub(super) observer: O,
    pub(super) blocks: BTreeMap<Addr, Block>,
    /// Always has the default pool. Ordered by id: `empty_cache` visits them in this order (PyTorch
    /// uses that of a hash table).
    pub(super) pools: BTreeMap<PoolId, HostPool>,
    /// The pools with a capture under way.
    pub(super) recording: Vec<PoolId>,
    pub(super) reserve: Reserve,
}

impl<D, O> PinnedAllocator<D, O> {
    /// An empty allocator over `driver`.
    pub fn new(config: PinnedConfig, driver: D, observer: O) -> Self {
        Self {
            config,
            driver,
            observer,
            blocks: BTreeMap::new(),
            pools: BTreeMap::from([(PoolId::DEFAULT, HostPool::new())]),
            recording: Vec::new(),
            reserve: Reserve::Undecided,
        }
    }

    /// Sets the options. Existing blocks keep their sizes, and the reserve is made at most once.
    pub fn set_config(&mut self, config: PinnedConfig) {
        self.config = config;
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer, to reset it.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The driver, for example to let a simulated stream continue.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Records that work on a stream uses the block at `addr`, so that it is not reused before that
    /// work is done. False if no block starts there.
    ///
    /// # Panics
    /// If the block is already freed: it may be in use by another caller.
    pub fn record_event(&mut self, addr: Addr, on: DeviceStream) -> bool {
        let Some(block) = self.blocks.get_mut(&addr) else { return false };
        assert!(
            block.state == HostBlockState::Held,
            "a use of {addr} after its free: it is {:?}",
            block.state
        );
        block.used_on(on);
        true
    }

    /// The block at `addr`.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn block(&mut self, addr: Addr) -> &mut Block {
        self.blocks.get_mut(&addr).unwrap_or_else(|| panic!("no pinned block starts at {addr}"))
    }

    /// The pool `id`.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn pool(&mut self, id: PoolId) -> &mut HostPool {
        self.pools.get_mut(&id).unwrap_or_else(|| panic!("no pinned memory pool {id}"))
    }
}

impl<D: PinnedDriver, O: PinnedObserver> PinnedAllocator<D, O> {
    /// Serves a request: polls the pool's events, then takes the newest cached block of the request's bucket
    /// that is large enough, else carves a block from the reserve, else pins new memory.
    /// As PyTorch: `CachingHostAllocatorImpl::allocate`.
    ///
    /// # Errors
    /// See [`PinnedError`]. A driver error may concern another block, whose free was being completed.
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
