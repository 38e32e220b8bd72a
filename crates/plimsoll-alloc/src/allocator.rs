//! The allocator: [`Allocator`], with malloc, free, retag and the limits.
//!
//! A request is rounded (`size.rs`) and served from the cache if a block fits (`search.rs`). On a miss,
//! `cache_miss.rs` gets more memory or fails. Every change is sent to the observer as an event. Blocks used on
//! several streams are in `streams.rs`, private pools in `private.rs`.
//!
//! As PyTorch: `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, for one device.

use crate::Category;
use crate::block::{Block, BlockId, SlotState};
use crate::cache_miss;
use crate::config::{CaptureTest, Config};
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::event::{DeviceRange, Event, LiveBlock, Observer};
use crate::expandable::Ranges;
use crate::grow::fraction_of;
use crate::pieces::Cut;
use crate::pool::{Pool, Pools};
use crate::private::Privates;
use crate::request::{Allocation, LabelId, Request, Tag};
use crate::search::{SizedRequest, cut};
use crate::size::{ONE_EXBIBYTE, block_bytes, is_oversize, kind_of, segment_bytes};
use crate::streams::Streams;

const NOT_OURS: &str =
    "the allocation belongs to another allocator, or its pool was restored to a checkpoint since";

// Note [Laid out once]
// A sized request and an allocation are a few machine words each. Returned through several functions,
// such a value is written to the stack and read back at once with other widths, and each time the processor
// stalls on the store. So the functions on the path of a request are always inlined.

/// A caching allocator for one device, as a state machine.
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, Request, SimDriver};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(3 << 20))?;
/// let y = allocator.malloc(Request::of(5 << 20))?;
/// assert_eq!(y.addr().0 - x.addr().0, 3 << 20);
/// allocator.free(x);
/// allocator.free(y);
/// assert_eq!((allocator.reserved(), allocator.empty_cache()?), (20 << 20, 20 << 20));
/// assert_eq!(allocator.reserved(), 0);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug)]
pub struct Allocator<D, O> {
    pub(crate) config: Config,
    pub(crate) driver: D,
    pub(crate) observer: O,
    pub(crate) pools: Pools,
    pub(crate) ranges: Ranges,
    pub(crate) privates: Privates,
    pub(crate) streams: Streams,
    /// Number of captures under way.
    captures: u32,
    /// Total bytes of all segments.
    pub(crate) reserved_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
}

/// The result of the cache lookup: [`Allocator::start`].
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, CallbackResult, Request, SimDriver, CacheLookup};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let kept = allocator.malloc(Request::of(60 << 20))?;
/// let CacheLookup::Miss(miss) = allocator.start(Request::of(50 << 20))? else {
///     panic!("nothing is cached")
/// };
/// allocator.free(kept); // somebody gives memory back in between
/// let x = allocator.resume(miss, CallbackResult::Freed)?;
/// assert_eq!(allocator.reserved(), 60 << 20);
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub enum CacheLookup {
    /// Served from the cache.
    Hit(Allocation),
    /// No cached block fits. The caller may free memory now (PyTorch's free-memory callbacks), then continue
    /// the request with [`Allocator::resume`].
    Miss(CacheMiss),
}

/// A request that missed the cache, for [`Allocator::resume`]; see [`CacheLookup`] for an example.
#[derive(Debug)]
pub struct CacheMiss(pub(crate) Request);

/// Whether the callbacks freed memory after a cache miss; see [`CacheLookup`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallbackResult {
    /// They freed nothing: the cache need not be searched again.
    NothingFreed,
    /// They freed memory: the cache is searched again.
    Freed,
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// An empty allocator. Its limit is that of `per_process_memory_fraction`, if set.
    pub fn new(config: Config, driver: D, observer: O) -> Self {
        let fraction = config.per_process_memory_fraction();
        let limit_bytes = (fraction < 1.0).then(|| fraction_of(fraction, driver.memory().total_bytes));
        Self {
            pools: Pools::new(config.tie_order()),
            config,
            driver,
            observer,
            ranges: Ranges::default(),
            privates: Privates::default(),
            streams: Streams::default(),
            captures: 0,
            reserved_bytes: 0,
            limit_bytes,
        }
    }

    /// Allocates. A request of 0 bytes allocates nothing, changes nothing and sends no event.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no memory is left after releasing the cache, [`Error::TooLarge`] from
    /// one exbibyte on, [`Error::Pool`] if the request's pool does not exist, [`Error::Driver`] if the
    /// device failed. Nothing is allocated then.
    pub fn malloc(&mut self, request: Request) -> Result<Allocation, Error> {
        match self.start(request)? {
            CacheLookup::Hit(allocation) => Ok(allocation),
            CacheLookup::Miss(miss) => self.resume(miss, CallbackResult::NothingFreed),
        }
    }

    /// The first half of [`malloc`](Self::malloc): the cache lookup, without device calls for memory or callbacks.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc), except out of memory.
    #[inline(always)] // Note [Laid out once]
    pub fn start(&mut self, request: Request) -> Result<CacheLookup, Error> {
        if request.bytes == 0 {
            return Ok(CacheLookup::Hit(Allocation::nothing()));
        }
        if request.bytes >= ONE_EXBIBYTE {
            return Err(Error::TooLarge { requested_bytes: request.bytes });
        }
        self.settle_frees(request.stream)?;
        let sized = self.size_request(request)?;
        match self.search(&sized) {
            Some(id) => Ok(CacheLookup::Hit(self.allocate(id, &sized))),
            None => Ok(CacheLookup::Miss(CacheMiss(request))),
        }
    }

    /// The second half of [`malloc`](Self::malloc): searches the cache again if callbacks freed memory, then
    /// follows `cache_miss.rs`. Other calls may come between the halves.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc).
    pub fn resume(&mut self, miss: CacheMiss, result: CallbackResult) -> Result<Allocation, Error> {
        cache_miss::resume(self, miss, result)
    }

    /// Rounds a request and finds its pool.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn size_request(&self, request: Request) -> Result<SizedRequest, Error> {
        if request.bytes >= ONE_EXBIBYTE {
            return Err(Error::TooLarge { requested_bytes: request.bytes });
        }
        let block_bytes = block_bytes(&self.config, request.bytes);
        let kind = kind_of(block_bytes);
        Ok(SizedRequest {
            request,
            block_bytes,
            segment_bytes: segment_bytes(&self.config, block_bytes),
            kind,
            pool: self.half_of(request.pool, kind)?,
            expandable: self.config.expandable_segments()
                && !self.privates.has_segment_allocator(request.pool),
        })
    }

    /// The best-fitting cached block. Searches are counted while garbage collection is on: they measure age.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn search(&mut self, sized: &SizedRequest) -> Option<BlockId> {
        if self.collected_limit().is_some() {
            self.pools.pool_mut(sized.pool).searches += 1;
        }
        self.pools.serving(sized, &self.config)
    }

    /// Allocates a cached block, split if the remainder is worth keeping.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn allocate(&mut self, found: BlockId, sized: &SizedRequest) -> Allocation {
        let cut = if self.privates.is_unsplit(self.pools.pool(sized.pool).id) {
            Cut::Whole
        } else {
            cut(&self.config, sized, self.pools.blocks[found].bytes)
        };
        self.allocate_cut(found, sized.block_bytes, &sized.request, cut)
    }

    /// Allocates a cached block, and sends the event.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn allocate_cut(
        &mut self,
        found: BlockId,
        bytes: u64,
        request: &Request,
        cut: Cut,
    ) -> Allocation {
        let (id, inactive_split) = self.pools.occupy(found, bytes, request, cut);
        let Block { addr, bytes, pool, generation, .. } = self.pools.blocks[id];
        let Pool { kind, id: pool_id, .. } = *self.pools.pool(pool);
        let Request { bytes: requested_bytes, stream, stack, .. } = *request;
        let tag = request.tag();
        let block = LiveBlock { addr, bytes, requested_bytes, stream, pool: kind, pool_id, tag, stack };
        let oversize = is_oversize(&self.config, block.bytes);
        self.observer.on(&Event::Alloc { block, inactive_split, oversize });
        Allocation::of_block(id, generation, &block)
    }

    /// Frees a block. It becomes cached, merged with its cached neighbours; if other streams use it, it is
    /// pending until they are done.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator, or its pool was restored to a checkpoint since.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes a double free impossible")]
    pub fn free(&mut self, allocation: Allocation) {
        if let Some(id) = self.held(&allocation) {
            self.free_block(id);
        }
    }

    #[inline(always)] // Note [Laid out once]
    pub(crate) fn free_block(&mut self, id: BlockId) {
        let block = self.live(id);
        let oversize = is_oversize(&self.config, block.bytes);
        self.observer.on(&Event::Free { block, oversize });
        if self.pools.blocks[id].uses.is_some() {
            self.wait_for_uses(id);
        } else {
            self.put_back(id, block, true);
        }
    }

    /// Caches a freed block that no stream uses any more.
    pub(crate) fn complete_free(&mut self, id: BlockId) {
        self.put_back(id, self.live(id), false);
    }

    #[inline]
    fn put_back(&mut self, id: BlockId, block: LiveBlock, at_once: bool) {
        let inactive_split = self.pools.vacate(id);
        self.observer.on(&Event::FreeCompleted { block, inactive_split, at_once });
    }

    /// Changes the tag of a live block. Placement never reads tags.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator, or its pool was restored to a checkpoint since.
    pub fn retag(&mut self, allocation: &Allocation, category: Category, label: LabelId) {
        let Some(id) = self.held(allocation) else { return };
        let from = std::mem::replace(&mut self.pools.blocks[id].tag, Tag { category, label });
        self.observer.on(&Event::Retag { block: self.live(id), from });
    }

    /// Sends an event for a step of the program, for the history.
    pub fn mark_step(&mut self, number: u64) {
        self.observer.on(&Event::StepMark { number });
    }

    /// Sends an event for a snapshot of the state, for the history. As PyTorch: a trace's `snapshot`.
    pub fn mark_snapshot(&mut self) {
        let blocks = self.pools.blocks.iter();
        let active = blocks.filter(|block| matches!(block.state, SlotState::Active | SlotState::Pending));
        let active_bytes = active.map(|block| block.bytes).sum();
        self.observer.on(&Event::Snapshot { active_bytes });
    }

    /// Begins a capture: work is captured rather than run, until as many
    /// [`end_capture`](Self::end_capture) calls. Meanwhile no event is queried or waited for, blocks used on
    /// other streams stay pending, and the cache is not released. This applies to calls for which
    /// [`Driver::is_capturing`] is true; by default, all calls.
    /// As PyTorch: `markCaptureBegin`.
    pub fn begin_capture(&mut self) {
        self.captures += 1;
    }

    /// Ends a capture. As PyTorch: `markCaptureEnd`.
    ///
    /// # Panics
    /// If no capture is under way.
    pub fn end_capture(&mut self) {
        assert!(self.captures > 0, "end_capture without begin_capture");
        self.captures -= 1;
        if self.captures == 0 {
            self.streams.nodes_before.clear();
        }
    }

    pub(crate) fn in_capture(&self) -> bool {
        let redirected = match self.config.capture_test() {
            CaptureTest::Capture => false,
            CaptureTest::AnyRedirection => self.privates.is_recording(),
        };
        (self.captures > 0 && self.driver.is_capturing()) || redirected
    }

    /// The options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the options. Two are read only when an allocator is made: `tie_order` and, as in
    /// PyTorch, the limit of `per_process_memory_fraction`.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Limits the reserved bytes to a fraction of the device's memory: `fraction` × total, rounded down.
    /// 1 removes the limit. Memory that is already reserved stays. As PyTorch: `setMemoryFraction`.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] outside 0 to 1; the limit does not change.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        let total_bytes = self.driver.memory().total_bytes;
        self.limit_bytes = (fraction < 1.0).then(|| fraction_of(fraction, total_bytes));
        Ok(())
    }

    /// Sets or removes the limit on the reserved bytes. It is the same limit as
    /// [`set_memory_fraction`](Self::set_memory_fraction)'s: the last call counts.
    pub fn set_memory_limit(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    /// The limit on the reserved bytes, if any.
    pub fn memory_limit(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Reserved memory: the total size of all segments, bytes.
    pub fn reserved(&self) -> u64 {
        self.reserved_bytes
    }

    /// The device's free and total memory.
    pub fn memory_info(&self) -> MemoryInfo {
        self.driver.memory()
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

    /// The driver, to change it.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The block of an allocation; none for a request of 0 bytes.
    pub(crate) fn held(&self, allocation: &Allocation) -> Option<BlockId> {
        let id = allocation.block()?;
        let block = self.pools.blocks.get(id).map(|block| (block.addr, block.state, block.generation));
        let expected = (allocation.addr(), SlotState::Active, allocation.generation());
        assert_eq!(block, Some(expected), "{NOT_OURS}");
        Some(id)
    }

    /// An active block as it appears in events.
    #[inline]
    pub(crate) fn live(&self, id: BlockId) -> LiveBlock {
        let block = &self.pools.blocks[id];
        let pool = self.pools.pool(block.pool);
        LiveBlock {
            addr: block.addr,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
            stream: block.stream,
            pool: pool.kind,
            pool_id: pool.id,
            tag: block.tag,
            stack: block.stack,
        }
    }

    /// A block's memory as it appears in events.
    pub(crate) fn memory_of(&self, block: &Block) -> DeviceRange {
        let pool = self.pools.pool(block.pool);
        let Block { addr, bytes, stream, .. } = *block;
        DeviceRange { addr, bytes, stream, pool: pool.kind, pool_id: pool.id }
    }
}
