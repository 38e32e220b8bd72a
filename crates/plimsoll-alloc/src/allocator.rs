//! The allocator itself: [`Allocator`], with malloc, free, retag and the limits.
//!
//! A request is sized (`size.rs`), served from the cache if it can be (`search.rs`), and otherwise climbs the
//! ladder (`ladder.rs`) to more memory or an error. Each step is announced to the observer. Uses on several
//! streams are in `streams.rs`, private pools in `private.rs`.
//!
//! As PyTorch: `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, for one device.

use crate::Category;
use crate::block::{Block, BlockId, State};
use crate::config::{CaptureTest, Config};
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::event::{DeviceRange, Event, LiveBlock, Observer};
use crate::expandable::Ranges;
use crate::grow::fraction_of;
use crate::ladder;
use crate::pieces::Cut;
use crate::pool::{Pool, Pools};
use crate::private::Privates;
use crate::request::{Allocation, LabelId, Request, Tag};
use crate::search::{Ask, cut};
use crate::size::{ONE_EXBIBYTE, block_bytes, is_oversize, kind_of, segment_bytes};
use crate::streams::Streams;

const NOT_OURS: &str =
    "the allocation is another allocator's, or of before its pool was brought back to a checkpoint";

// Note [Laid out once]
// What a request is sized to and what it is given are each a few words. Returned through several functions,
// such a value is written to the stack and read back at once in other widths, and each time the processor
// waits for the store. So the functions between the call and the answer are always inlined.

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
    /// Captures that have begun and not ended.
    captures: u32,
    /// What the segments take of the device: the one total that the ladder reads.
    pub(crate) reserved_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
}

/// What became of a request that was started: [`Allocator::start`].
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, GivenBack, Request, SimDriver, Step};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let kept = allocator.malloc(Request::of(60 << 20))?;
/// let Step::CallbacksWanted(unserved) = allocator.start(Request::of(50 << 20))? else {
///     panic!("nothing is cached")
/// };
/// allocator.free(kept); // somebody gives memory back in between
/// let x = allocator.resume(unserved, GivenBack::Something)?;
/// assert_eq!(allocator.reserved(), 60 << 20);
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub enum Step {
    /// It was served from the cache.
    Done(Allocation),
    /// No cached block serves it. Whoever holds memory that could be given back may do so now; then the
    /// request goes on with [`Allocator::resume`].
    CallbacksWanted(Unserved),
}

/// A request that waits for [`Allocator::resume`]; see [`Step`] for an example.
#[derive(Debug)]
pub struct Unserved(pub(crate) Request);

/// Whether anything was given back while a request waited; see [`Step`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenBack {
    /// Nothing: the cache need not be searched again.
    Nothing,
    /// Something that may be in the cache now.
    Something,
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// An allocator that holds nothing yet, with a limit if `per_process_memory_fraction` sets one.
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

    /// Serves a request. One of 0 bytes takes nothing, changes nothing and announces nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no room after the cache was released, [`Error::TooLarge`] from
    /// one exbibyte on, [`Error::Pool`] if the request's pool does not exist, [`Error::Driver`] if the
    /// device failed. Nothing is allocated then.
    pub fn malloc(&mut self, request: Request) -> Result<Allocation, Error> {
        match self.start(request)? {
            Step::Done(allocation) => Ok(allocation),
            Step::CallbacksWanted(unserved) => self.resume(unserved, GivenBack::Nothing),
        }
    }

    /// The first half of [`malloc`](Self::malloc): what needs neither the device's memory nor a callback.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc), but for want of memory.
    #[inline(always)] // Note [Laid out once]
    pub fn start(&mut self, request: Request) -> Result<Step, Error> {
        if request.bytes == 0 {
            return Ok(Step::Done(Allocation::nothing()));
        }
        if request.bytes >= ONE_EXBIBYTE {
            return Err(Error::TooLarge { requested_bytes: request.bytes });
        }
        self.settle_frees(request.stream)?;
        let ask = self.ask(request)?;
        match self.search(&ask) {
            Some(id) => Ok(Step::Done(self.give(id, &ask))),
            None => Ok(Step::CallbacksWanted(Unserved(request))),
        }
    }

    /// The second half of [`malloc`](Self::malloc): another look, if something was given back, and the
    /// ladder. Other calls may have come between the halves.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc).
    pub fn resume(&mut self, unserved: Unserved, given_back: GivenBack) -> Result<Allocation, Error> {
        ladder::resume(self, unserved, given_back)
    }

    /// Sizes a request and finds its pool.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn ask(&self, request: Request) -> Result<Ask, Error> {
        if request.bytes >= ONE_EXBIBYTE {
            return Err(Error::TooLarge { requested_bytes: request.bytes });
        }
        let block_bytes = block_bytes(&self.config, request.bytes);
        let kind = kind_of(block_bytes);
        Ok(Ask {
            request,
            block_bytes,
            segment_bytes: segment_bytes(&self.config, block_bytes),
            kind,
            pool: self.half_of(request.pool, kind)?,
            expandable: self.config.expandable_segments()
                && !self.privates.has_segment_allocator(request.pool),
        })
    }

    /// The cached block that serves the request. Searches are counted while ages count.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn search(&mut self, ask: &Ask) -> Option<BlockId> {
        if self.collected_limit().is_some() {
            self.pools.pool_mut(ask.pool).searches += 1;
        }
        self.pools.serving(ask, &self.config)
    }

    /// Gives a found block to the request, cut if the rest is worth it.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn give(&mut self, found: BlockId, ask: &Ask) -> Allocation {
        let cut = if self.privates.is_unsplit(self.pools.pool(ask.pool).id) {
            Cut::Whole
        } else {
            cut(&self.config, ask, self.pools.blocks[found].bytes)
        };
        self.give_cut(found, ask.block_bytes, &ask.request, cut)
    }

    /// Gives a found block to the request, and announces it.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn give_cut(&mut self, found: BlockId, bytes: u64, request: &Request, cut: Cut) -> Allocation {
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

    /// Takes a block back: into the cache, merged with its cached neighbours, or, if other streams use it,
    /// into waiting for them.
    ///
    /// # Panics
    /// If the allocation is another allocator's, or of before its pool was brought back to a checkpoint.
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

    /// Puts a block that was given back, and that no stream uses any more, in the cache.
    pub(crate) fn complete_free(&mut self, id: BlockId) {
        self.put_back(id, self.live(id), false);
    }

    #[inline]
    fn put_back(&mut self, id: BlockId, block: LiveBlock, at_once: bool) {
        let inactive_split = self.pools.vacate(id);
        self.observer.on(&Event::FreeCompleted { block, inactive_split, at_once });
    }

    /// Says that a live block is now for something else. Placement never reads it.
    ///
    /// # Panics
    /// If the allocation is another allocator's, or of before its pool was brought back to a checkpoint.
    pub fn retag(&mut self, allocation: &Allocation, category: Category, label: LabelId) {
        let Some(id) = self.held(allocation) else { return };
        let from = std::mem::replace(&mut self.pools.blocks[id].tag, Tag { category, label });
        self.observer.on(&Event::Retag { block: self.live(id), from });
    }

    /// Announces a step of the program, for the history. Placement never reads it.
    pub fn mark_step(&mut self, number: u64) {
        self.observer.on(&Event::StepMark { number });
    }

    /// Announces that a picture of the state was taken, for the history. As PyTorch: a trace's `snapshot`.
    pub fn mark_snapshot(&mut self) {
        let blocks = self.pools.blocks.iter();
        let active = blocks.filter(|block| matches!(block.state, State::Active | State::Pending));
        let active_bytes = active.map(|block| block.bytes).sum();
        self.observer.on(&Event::Snapshot { active_bytes });
    }

    /// Says that work is captured rather than run from now on, until as many
    /// [`end_capture`](Self::end_capture)s. Meanwhile no event is asked about or waited for, blocks used on
    /// other streams stay pending, and the cache is not released: in calls for which
    /// [`Driver::is_capturing`] says so, which by default are all.
    /// As PyTorch: `markCaptureBegin`.
    pub fn begin_capture(&mut self) {
        self.captures += 1;
    }

    /// Says that a capture ended. As PyTorch: `markCaptureEnd`.
    ///
    /// # Panics
    /// If none had begun.
    pub fn end_capture(&mut self) {
        assert!(self.captures > 0, "a capture ends that had not begun");
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

    /// The options in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the options from now on. Two are read only when an allocator is made: `tie_order` and, as in
    /// PyTorch, the limit of `per_process_memory_fraction`.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Bounds the reserved bytes to a fraction of the device: the whole of `fraction` × total, rounded down.
    /// 1 lifts the bound. What is reserved already stays. As PyTorch: `setMemoryFraction`.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] outside 0 to 1; the bound is then as before.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        let total_bytes = self.driver.memory().total_bytes;
        self.limit_bytes = (fraction < 1.0).then(|| fraction_of(fraction, total_bytes));
        Ok(())
    }

    /// Bounds the reserved bytes, or lifts the bound. The same bound as
    /// [`set_memory_fraction`](Self::set_memory_fraction)'s: the last word counts.
    pub fn set_memory_limit(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    /// The bound on the reserved bytes, if there is one.
    pub fn memory_limit(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// What the segments take of the device, bytes.
    pub fn reserved(&self) -> u64 {
        self.reserved_bytes
    }

    /// What the device has.
    pub fn memory_info(&self) -> MemoryInfo {
        self.driver.memory()
    }

    /// Who listens.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Who listens, to reset it.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// The device.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The device, to change how it answers from now on.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The block that an allocation stands for; none for a request of 0 bytes.
    pub(crate) fn held(&self, allocation: &Allocation) -> Option<BlockId> {
        let id = allocation.block()?;
        let block = self.pools.blocks.get(id).map(|block| (block.addr, block.state, block.generation));
        let expected = (allocation.addr(), State::Active, allocation.generation());
        assert_eq!(block, Some(expected), "{NOT_OURS}");
        Some(id)
    }

    /// An active block as events show it.
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

    /// A block as memory of the device, as events show it.
    pub(crate) fn memory_of(&self, block: &Block) -> DeviceRange {
        let pool = self.pools.pool(block.pool);
        let Block { addr, bytes, stream, .. } = *block;
        DeviceRange { addr, bytes, stream, pool: pool.kind, pool_id: pool.id }
    }
}
