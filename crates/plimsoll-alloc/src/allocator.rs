//! The allocator itself: [`Allocator`], with malloc, free, retag and the limits.
//!
//! A request is sized (`size.rs`), served from the cache if it can be (`pool.rs`), and otherwise climbs the
//! ladder (`ladder.rs`) to a new segment or an error. Each step is announced to the observer.
//!
//! As PyTorch: `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`, for one device.

use crate::Category;
use crate::block::{BlockId, State};
use crate::config::Config;
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::event::{Event, LiveBlock, Observer};
use crate::pool::Pools;
use crate::request::{Allocation, LabelId, Request, Tag};
use crate::size::{Ask, ONE_EXBIBYTE};

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
    /// What the segments take of the device: the one total that the ladder reads.
    pub(crate) reserved_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// An allocator that holds nothing yet, without a limit.
    pub fn new(config: Config, driver: D, observer: O) -> Self {
        Self { config, driver, observer, pools: Pools::default(), reserved_bytes: 0, limit_bytes: None }
    }

    /// Serves a request. One of 0 bytes takes nothing, changes nothing and announces nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no room after the cache was released, [`Error::TooLarge`] from
    /// one exbibyte on, [`Error::Driver`] if the device failed. Nothing is allocated then.
    pub fn malloc(&mut self, request: Request) -> Result<Allocation, Error> {
        if request.bytes == 0 {
            return Ok(Allocation::nothing());
        }
        if request.bytes >= ONE_EXBIBYTE {
            return Err(Error::TooLarge { requested_bytes: request.bytes });
        }
        let ask = Ask::new(&self.config, request);
        let found = match self.pools.take_fit(&ask) {
            Some(found) => found,
            None => self.make_room(&ask)?,
        };
        let (id, inactive_split) = self.pools.occupy(found, &ask);
        let block = self.live(id);
        self.observer.on(&Event::Alloc { block, inactive_split });
        Ok(Allocation::of_block(id, &block))
    }

    /// Takes a block back into the cache, merged with its cached neighbours.
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    #[expect(clippy::needless_pass_by_value, reason = "consuming it is what makes a double free impossible")]
    pub fn free(&mut self, allocation: Allocation) {
        let Some(id) = self.held(&allocation) else { return };
        let block = self.live(id);
        self.observer.on(&Event::Free { block });
        let inactive_split = self.pools.vacate(id);
        self.observer.on(&Event::FreeCompleted { block, inactive_split });
    }

    /// Says that a live block is now for something else. Placement never reads it.
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn retag(&mut self, allocation: &Allocation, category: Category, label: LabelId) {
        let Some(id) = self.held(allocation) else { return };
        let from = std::mem::replace(&mut self.pools.blocks[id].tag, Tag { category, label });
        self.observer.on(&Event::Retag { block: self.live(id), from });
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
        self.limit_bytes = (fraction < 1.0).then_some((fraction * total_bytes as f64) as u64);
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
    fn held(&self, allocation: &Allocation) -> Option<BlockId> {
        let id = allocation.block()?;
        let block = self.pools.blocks.get(id).map(|block| (block.addr, block.state));
        assert_eq!(block, Some((allocation.addr(), State::Active)), "the allocation is another allocator's");
        Some(id)
    }

    /// An active block as events show it.
    fn live(&self, id: BlockId) -> LiveBlock {
        let block = &self.pools.blocks[id];
        LiveBlock {
            addr: block.addr,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
            stream: block.stream,
            pool: block.pool,
            tag: block.tag,
        }
    }
}
