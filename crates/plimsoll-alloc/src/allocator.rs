//! The allocator: [`Allocator`], with malloc, free, retag and the limits.
//!
//! A request is rounded and served from the cache if a block fits (`pools/search.rs`). On a miss,
//! `allocator/cache_miss.rs` gets more memory or fails. Every change is sent to the observer as an event.
//!
//! The state is in seven parts, each with private fields and its own methods. A method that needs another part takes it
//! as an argument, so its signature says what it reads and what it changes. The allocator's methods call the methods of
//! the parts. They are in these files:
//!
//! | file | methods |
//! |---|---|
//! | `allocator.rs` | the cache lookup, free, retag, settings |
//! | `allocator/private_pools.rs` | private pools |
//! | `allocator/streams.rs` | uses on other streams, captures |
//! | `allocator/release.rs` | releasing the cache to the device |
//! | `allocator/out_of_memory.rs` | the error, with its figures |
//! | `allocator/cache_miss.rs` | malloc: the steps to get memory when no cached block fits |
//! | `allocator/address.rs` | allocation at a given address |
//! | `allocator/adopt.rs` | importing state from a recording |
//! | `allocator/checkpoint.rs` | saving and restoring a private pool's layout |
//! | `allocator/inspect.rs` | snapshots, how a request would be served, consistency checks |
//!
//! In PyTorch: `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, for one device.

mod address;
mod adopt;
mod cache_miss;
mod checkpoint;
mod inspect;
mod out_of_memory;
mod private_pools;
mod release;
mod streams;

use crate::allocation::Allocation;
use crate::block::BlockId;
use crate::capture::Captures;
use crate::category::Category;
use crate::config::Config;
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::heap::Heap;
use crate::memory_limit::MemoryLimit;
use crate::pending::PendingFrees;
use crate::pools::{Cut, SizedRequest};
use crate::private::PrivatePools;
use crate::request::{LabelId, Request, StreamId, Tag};
use crate::rounding::{block_bytes, segment_bytes};
use crate::size::{ONE_EXBIBYTE, kind_of};
use crate::source::SegmentSource;

pub(crate) use cache_miss::{GrowthContext, resume};

// Note [Laid out once]
// A sized request and an allocation are a few machine words each. If such a value is returned through several
// functions, it is written to the stack and immediately read back with loads of other widths. The processor then stalls
// on every such load (store forwarding fails). So the functions on the path of a request are always inlined.

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
    config: Config,
    limit: MemoryLimit,
    /// The device, with the address space reserved on it.
    source: SegmentSource<D>,
    /// The blocks, and the observer of their changes.
    heap: Heap<O>,
    private_pools: PrivatePools,
    captures: Captures,
    /// Freed blocks that wait for other streams.
    pending: PendingFrees,
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
pub struct CacheMiss(Request);

/// Whether the callbacks freed memory after a cache miss; see [`CacheLookup`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallbackResult {
    /// They freed nothing: the cache need not be searched again.
    NothingFreed,
    /// They freed memory: the cache is searched again.
    Freed,
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Makes an empty allocator. If `per_process_memory_fraction` is set, it limits the allocator.
    pub fn new(config: Config, driver: D, observer: O) -> Self {
        Self {
            limit: MemoryLimit::of_config(&config, driver.memory().total_bytes),
            source: SegmentSource::new(driver),
            heap: Heap::new(config.tie_order(), observer),
            config,
            private_pools: PrivatePools::default(),
            captures: Captures::default(),
            pending: PendingFrees::default(),
        }
    }

    /// The first half of [`malloc`](Self::malloc): the cache lookup, without device calls for memory or callbacks.
    ///
    /// # Errors
    /// The errors of [`malloc`](Self::malloc), except out of memory.
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

    /// Rounds a request and finds its pool.
    #[inline(always)] // Note [Laid out once]
    fn size_request(&self, request: Request) -> Result<SizedRequest, Error> {
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
            pool: self.private_pools.half_of(request.pool, kind)?,
            expandable: self.config.expandable_segments()
                && !self.source.has_allocator(request.pool)
                && !self.private_pools.is_plain(request.pool),
        })
    }

    /// Completes the frees of blocks that other streams no longer use. Runs at the start of each request.
    #[inline(always)] // Note [Laid out once]
    fn settle_frees(&mut self, stream: StreamId) -> Result<(), Error> {
        if self.pending.is_idle() { Ok(()) } else { self.settle_pending(stream) }
    }

    #[inline(never)] // usually no block is pending
    fn settle_pending(&mut self, stream: StreamId) -> Result<(), Error> {
        if self.in_capture() {
            self.settle_frees_in_capture(stream)
        } else {
            self.pending.poll(&mut self.heap, self.source.driver_mut())
        }
    }

    /// Frees the blocks of `stream` whose last uses all precede the stream's next work.
    fn settle_frees_in_capture(&mut self, stream: StreamId) -> Result<(), Error> {
        if self.config.graph_capture_record_stream_reuse()
            && self.pending.has_deferred()
            && let Some(before) = self.captures.before(self.source.driver(), stream)?
        {
            self.pending.settle_past(&mut self.heap, stream, before);
        }
        Ok(())
    }

    /// The best-fitting cached block. While garbage collection is on, it counts the search: the age of cached blocks is
    /// measured in searches.
    #[inline(always)] // Note [Laid out once]
    fn search(&mut self, sized: &SizedRequest) -> Option<BlockId> {
        if self.limit.collected(&self.config).is_some() {
            self.heap.count_search(sized);
        }
        self.heap.pools().serving(sized, &self.config)
    }

    /// Allocates a cached block, split if the remainder is worth keeping.
    #[inline(always)] // Note [Laid out once]
    fn allocate(&mut self, found: BlockId, sized: &SizedRequest) -> Allocation {
        let private_pools = &self.private_pools;
        let cut =
            if private_pools.any_unsplit() && private_pools.is_unsplit(self.heap.pools().id_of(sized.pool)) {
                Cut::Whole
            } else {
                sized.cut(&self.config, self.heap.pools().block(found).bytes)
            };
        self.heap.allocate(found, sized.block_bytes, &sized.request, cut, &self.config)
    }

    /// Frees a block. It becomes cached, merged with its cached neighbours; if other streams use it, it is
    /// pending until they are done.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator, or its pool was restored to a checkpoint since.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes a double free impossible")]
    pub fn free(&mut self, allocation: Allocation) {
        if let Some(id) = self.heap.held(&allocation) {
            self.free_block(id);
        }
    }

    #[inline(always)] // Note [Laid out once]
    fn free_block(&mut self, id: BlockId) {
        let has_uses = self.heap.pools().block(id).waits.has_uses();
        let block = self.heap.request_free(id, &self.config);
        if has_uses {
            self.wait_for_uses(id);
        } else {
            self.heap.complete_free_at_once(id, block);
        }
    }

    /// Keeps a freed block pending until its uses on other streams are done.
    #[inline(never)] // most blocks are used on one stream
    fn wait_for_uses(&mut self, id: BlockId) {
        if self.in_capture() {
            let reuse = self.config.graph_capture_record_stream_reuse();
            let last_uses =
                if reuse { self.pending.last_uses(&self.heap, self.source.driver(), id) } else { None };
            self.pending.wait_for_capture(&mut self.heap, id, last_uses);
        } else {
            self.pending.wait_for_uses(&mut self.heap, self.source.driver_mut(), id);
        }
    }

    fn in_capture(&self) -> bool {
        self.captures.is_capturing(&self.config, self.source.driver(), &self.private_pools)
    }

    /// Changes the tag of a live block. Placement never reads tags.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator, or its pool was restored to a checkpoint since.
    pub fn retag(&mut self, allocation: &Allocation, category: Category, label: LabelId) {
        if let Some(id) = self.heap.held(allocation) {
            self.heap.retag(id, Tag { category, label });
        }
    }

    /// Sends an event for a step of the program, for the history.
    pub fn mark_step(&mut self, number: u64) {
        self.heap.send(&Event::StepMark { number });
    }

    /// Sends an event for a snapshot of the state, for the history. In PyTorch: a trace's `snapshot`.
    pub fn mark_snapshot(&mut self) {
        let active_bytes = self.heap.pools().active_bytes();
        self.heap.send(&Event::Snapshot { active_bytes });
    }

    /// The options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the options. Two are read only when an allocator is made: `tie_order`, and `per_process_memory_fraction`
    /// (as in PyTorch).
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Limits the reserved bytes to a fraction of the device's memory: `fraction` × total, rounded down.
    /// 1 removes the limit. Memory that is already reserved stays. In PyTorch: `setMemoryFraction`.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] outside 0 to 1; the limit does not change.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), Error> {
        self.limit.set_fraction(fraction, self.source.memory().total_bytes)
    }

    /// Sets or removes the limit on the reserved bytes. [`set_memory_fraction`](Self::set_memory_fraction) sets the
    /// same limit; the last call counts.
    pub fn set_memory_limit(&mut self, limit_bytes: Option<u64>) {
        self.limit.set(limit_bytes);
    }

    /// The limit on the reserved bytes, if any.
    pub fn memory_limit(&self) -> Option<u64> {
        self.limit.bytes()
    }

    /// Reserved memory: the total size of all segments, bytes.
    pub fn reserved(&self) -> u64 {
        self.heap.reserved_bytes()
    }

    /// The device's free and total memory.
    pub fn memory_info(&self) -> MemoryInfo {
        self.source.memory()
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        self.heap.observer()
    }

    /// The observer, to reset it.
    pub fn observer_mut(&mut self) -> &mut O {
        self.heap.observer_mut()
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        self.source.driver()
    }

    /// The driver, to change it.
    pub fn driver_mut(&mut self) -> &mut D {
        self.source.driver_mut()
    }
}
