//! The allocator behind a lock: [`DeviceMemory`].
//!
//! Everything is decided in the core; here a call takes the lock, asks, and lets go. Two kinds of guests are
//! called with the lock released, so that they may call back: those that can give memory back before the
//! device is asked, and those that want to see an [`OutOfMemory`]. With `release_lock_on_cudamalloc`, so is the
//! device when it makes a segment: `shared/unlocked.rs`, `shared/device.rs`. PyTorch's names are used where
//! PyTorch has one.
//!
//! Which pool serves whom: `shared/pools.rs`. Numbers and pictures: `shared/report.rs`; those of a live
//! view: `shared/gauges.rs`.

mod device;
mod gauges;
mod pools;
mod report;
mod unlocked;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::allocator::{Allocator, GivenBack, Step, Unserved};
use crate::category::Category;
use crate::config::Config;
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::history::History;
use crate::ladder;
use crate::ledger::Ledger;
use crate::lock::{Guard, Lock};
use crate::out_of_memory::OutOfMemory;
use crate::request::{Addr, Allocation, LabelId, Request, StackId, StreamId};
use crate::stats::Stats;

pub use gauges::Gauges;
pub use pools::{Pool, PoolGuard, Redirect};
pub use report::{Callers, Recording};

/// Gives memory back, if it can: [`DeviceMemory::on_memory_wanted`].
type FreeMemory = Arc<dyn Fn() -> GivenBack + Send + Sync>;
/// Sees a request that failed: [`DeviceMemory::on_out_of_memory`].
type SeeOutOfMemory = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// One device's memory, for many threads. Clones are handles to the same memory.
///
/// ```
/// use plimsoll_alloc::{Config, DeviceMemory, Request, SimDriver};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// let x = memory.alloc(Request::of(3 << 20))?;
/// assert_eq!((memory.memory_allocated(), memory.memory_reserved()), (3 << 20, 20 << 20));
/// memory.free(x);
/// assert_eq!((memory.memory_allocated(), memory.max_memory_allocated()), (0, 3 << 20));
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceMemory {
    shared: Arc<Lock<Shared>>,
}

type Core = Allocator<device::Device, (Stats, Ledger, History)>;

/// What the lock guards.
struct Shared {
    core: Core,
    pools: pools::Pools,
    locations: Option<Locations>,
    levels: gauges::StepLevels,
    free_memory: Vec<FreeMemory>,
    see_out_of_memory: Vec<SeeOutOfMemory>,
}

/// The places in the program that requests came from, numbered as they were first seen.
#[derive(Default)]
struct Locations {
    ids: BTreeMap<&'static Location<'static>, StackId>,
    places: Vec<&'static Location<'static>>,
}

impl Locations {
    #[inline(never)] // requests are seldom told apart by place
    fn id(&mut self, place: &'static Location<'static>) -> StackId {
        let next = StackId(self.places.len() as u32);
        let id = *self.ids.entry(place).or_insert(next);
        if id == next {
            self.places.push(place);
        }
        id
    }
}

impl DeviceMemory {
    /// The memory of the device behind `driver`; nothing is held yet.
    pub fn new(config: Config, driver: impl Driver + Send + 'static) -> Self {
        let driver = device::Device::new(driver);
        let observer = (Stats::new(&config), Ledger::default(), History::default());
        let shared = Shared {
            core: Allocator::new(config, driver, observer),
            pools: pools::Pools::default(),
            locations: None,
            levels: gauges::StepLevels::default(),
            free_memory: Vec::new(),
            see_out_of_memory: Vec::new(),
        };
        Self { shared: Arc::new(Lock::new(shared)) }
    }

    /// Serves a request: [`Allocator::malloc`]. One that names no pool is served from the pool that this
    /// thread or the request's stream is sent to, if any.
    ///
    /// # Errors
    /// As [`Allocator::malloc`].
    #[track_caller]
    pub fn alloc(&self, request: Request) -> Result<Allocation, Error> {
        let mut shared = self.lock();
        let request = shared.resolve(request, Location::caller());
        match shared.core.start(request)? {
            Step::Done(allocation) => Ok(allocation),
            Step::CallbacksWanted(unserved) if shared.free_memory.is_empty() => {
                self.resume(shared, unserved, GivenBack::Nothing)
            }
            Step::CallbacksWanted(unserved) => self.ask_for_memory(shared, unserved),
        }
    }

    /// Serves a request at a given address, from the cache: [`Allocator::malloc_with_address`].
    ///
    /// # Errors
    /// As [`Allocator::malloc_with_address`].
    #[track_caller]
    pub fn alloc_with_address(&self, request: Request, addr: Addr) -> Result<Allocation, Error> {
        let mut shared = self.lock();
        let request = shared.resolve(request, Location::caller());
        shared.core.malloc_with_address(request, addr)
    }

    /// Lets every callback give memory back, with the lock released, then goes on with the request.
    fn ask_for_memory(&self, shared: Guard<'_, Shared>, unserved: Unserved) -> Result<Allocation, Error> {
        let callbacks = shared.free_memory.clone();
        drop(shared);
        let mut given_back = GivenBack::Nothing;
        for callback in callbacks {
            if callback() == GivenBack::Something {
                given_back = GivenBack::Something;
            }
        }
        self.resume(self.lock(), unserved, given_back)
    }

    /// Climbs the ladder, and shows a failure to those who want to see it with the lock released.
    fn resume<'a>(
        &'a self,
        mut shared: Guard<'a, Shared>,
        unserved: Unserved,
        given_back: GivenBack,
    ) -> Result<Allocation, Error> {
        let answer = if shared.core.config().release_lock_on_cudamalloc() {
            let mut climber = unlocked::Unlocked::new(self, shared);
            let answer = ladder::resume(&mut climber, unserved, given_back);
            shared = climber.into_guard();
            answer
        } else {
            shared.core.resume(unserved, given_back)
        };
        if let Err(Error::OutOfMemory(why)) = &answer {
            let observers = shared.see_out_of_memory.clone();
            drop(shared);
            observers.iter().for_each(|observer| observer(why));
        }
        answer
    }

    /// Takes a block back: [`Allocator::free`].
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn free(&self, allocation: Allocation) {
        self.lock().core.free(allocation);
    }

    /// Says that a live block is now for something else: [`Allocator::retag`].
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn retag(&self, allocation: &Allocation, category: Category, label: LabelId) {
        self.lock().core.retag(allocation, category, label);
    }

    /// Says that work on `stream` uses a block, too: [`Allocator::record_stream`].
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn record_stream(&self, allocation: &Allocation, stream: StreamId) {
        self.lock().core.record_stream(allocation, stream);
    }

    /// Calls `callback` from now on when no cached block serves a request, before the device is asked. It may
    /// free memory of this very allocator: the lock is not held. As PyTorch: `FreeMemoryCallback`.
    pub fn on_memory_wanted(&self, callback: impl Fn() -> GivenBack + Send + Sync + 'static) {
        self.lock().free_memory.push(Arc::new(callback));
    }

    /// Calls `observer` from now on when a request failed for want of memory, before its error is returned.
    /// The lock is not held. As PyTorch: `attachOutOfMemoryObserver`.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.lock().see_out_of_memory.push(Arc::new(observer));
    }

    /// Returns cached segments to the device; bytes released: [`Allocator::empty_cache`].
    ///
    /// # Errors
    /// As [`Allocator::empty_cache`].
    pub fn empty_cache(&self) -> Result<u64, Error> {
        self.lock().core.empty_cache()
    }

    /// The options in force.
    pub fn config(&self) -> Config {
        self.lock().core.config().clone()
    }

    /// Changes the options from now on: [`Allocator::set_config`].
    pub fn set_config(&self, config: Config) {
        self.lock().core.set_config(config);
    }

    /// Bounds the reserved bytes to a fraction of the device: [`Allocator::set_memory_fraction`].
    ///
    /// # Errors
    /// As [`Allocator::set_memory_fraction`].
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        self.lock().core.set_memory_fraction(fraction)
    }

    /// Bounds the reserved bytes, or lifts the bound: [`Allocator::set_memory_limit`].
    pub fn set_memory_limit(&self, limit_bytes: Option<u64>) {
        self.lock().core.set_memory_limit(limit_bytes);
    }

    /// The bound on the reserved bytes, if there is one.
    pub fn memory_limit(&self) -> Option<u64> {
        self.lock().core.memory_limit()
    }

    /// What the device has.
    pub fn memory_info(&self) -> MemoryInfo {
        self.lock().core.memory_info()
    }

    #[inline]
    fn lock(&self) -> Guard<'_, Shared> {
        self.shared.lock()
    }
}

impl Shared {
    /// Fills in what only the handle knows: the pool that this request is sent to, and who asks.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    fn resolve(&mut self, request: Request, caller: &'static Location<'static>) -> Request {
        let stack = match &mut self.locations {
            Some(locations) if self.core.observer().2.is_recording() => Some(locations.id(caller)),
            _ => request.stack,
        };
        Request { pool: self.pools.serving(&request), stack, ..request }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("reserved_bytes", &self.memory_reserved())
            .finish_non_exhaustive()
    }
}
