//! The handle: [`DeviceMemory`], with alloc and free, the settings and the callbacks.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::state::Shared;
use super::unlocked::Unlocked;
use crate::allocation::Allocation;
use crate::allocator::{CacheLookup, CacheMiss, CallbackResult, resume};
use crate::category::Category;
use crate::config::Config;
use crate::driver::{Driver, MemoryInfo};
use crate::error::Error;
use crate::lock::{Guard, Lock};
use crate::out_of_memory::OutOfMemory;
use crate::request::{Addr, LabelId, Request, StreamId};
use crate::size::PoolKind;

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

impl DeviceMemory {
    /// Makes a handle to the memory of the device behind `driver`. Nothing is allocated yet.
    pub fn new(config: Config, driver: impl Driver + Send + 'static) -> Self {
        Self { shared: Arc::new(Lock::new(Shared::new(config, driver))) }
    }

    /// Allocates: [`Allocator::malloc`](crate::Allocator::malloc). If the request names no pool, it is served from the
    /// pool that this thread or the stream is redirected to, if any.
    ///
    /// # Errors
    /// The same errors as [`Allocator::malloc`](crate::Allocator::malloc).
    #[track_caller]
    pub fn alloc(&self, request: Request) -> Result<Allocation, Error> {
        let mut shared = self.lock();
        let request = shared.resolve(request, Location::caller());
        match shared.core.start(request)? {
            CacheLookup::Hit(allocation) => Ok(allocation),
            CacheLookup::Miss(miss) => self.handle_cache_miss(shared, miss),
        }
    }

    /// Like [`alloc`](Self::alloc). If no cached block fits, the limit allows no new device memory, and callbacks free nothing, calls
    /// `make_room` with the bytes of the block, and the pool that it is for, and searches the cache again. `make_room` may free memory of this allocator: the lock is not
    /// held. It is not called for the requests of private pools.
    ///
    /// # Errors
    /// The same errors as [`alloc`](Self::alloc).
    #[track_caller]
    pub fn alloc_within(
        &self,
        request: Request,
        make_room: impl FnOnce(u64, PoolKind) -> CallbackResult,
    ) -> Result<Allocation, Error> {
        let mut shared = self.lock();
        let request = shared.resolve(request, Location::caller());
        let miss = match shared.core.start(request)? {
            CacheLookup::Hit(allocation) => return Ok(allocation),
            CacheLookup::Miss(miss) => miss,
        };
        match shared.core.beyond_limit(&miss)? {
            Some((bytes, kind)) => {
                let result = match Self::call_back(shared) {
                    CallbackResult::Freed => CallbackResult::Freed,
                    CallbackResult::NothingFreed => make_room(bytes, kind),
                };
                self.resume(self.lock(), miss, result)
            }
            None => self.handle_cache_miss(shared, miss),
        }
    }

    /// Allocates at a given address, from the cache: [`Allocator::malloc_with_address`](crate::Allocator::malloc_with_address).
    ///
    /// # Errors
    /// The same errors as [`Allocator::malloc_with_address`](crate::Allocator::malloc_with_address).
    #[track_caller]
    pub fn alloc_with_address(&self, request: Request, addr: Addr) -> Result<Allocation, Error> {
        let mut shared = self.lock();
        let request = shared.resolve(request, Location::caller());
        shared.core.malloc_with_address(request, addr)
    }

    /// Gets the memory that a request needs, and leaves it in the cache: [`Allocator::reserve`](crate::Allocator::reserve). Neither
    /// callbacks nor observers are called.
    ///
    /// # Errors
    /// The errors of [`Allocator::malloc`](crate::Allocator::malloc).
    #[track_caller]
    pub fn reserve(&self, request: Request) -> Result<(), Error> {
        let mut shared = self.lock();
        let request = shared.resolve(request, Location::caller());
        shared.core.reserve(request)
    }

    /// Runs the free-memory callbacks, then continues the request.
    fn handle_cache_miss(&self, shared: Guard<'_, Shared>, miss: CacheMiss) -> Result<Allocation, Error> {
        if shared.free_memory.is_empty() {
            return self.resume(shared, miss, CallbackResult::NothingFreed);
        }
        let result = Self::call_back(shared);
        self.resume(self.lock(), miss, result)
    }

    /// Runs the free-memory callbacks with the lock released.
    fn call_back(shared: Guard<'_, Shared>) -> CallbackResult {
        let callbacks = shared.free_memory.clone();
        drop(shared);
        let mut result = CallbackResult::NothingFreed;
        for callback in callbacks {
            if callback() == CallbackResult::Freed {
                result = CallbackResult::Freed;
            }
        }
        result
    }

    /// Handles the cache miss, and calls the out-of-memory observers with the lock released.
    fn resume<'a>(
        &'a self,
        mut shared: Guard<'a, Shared>,
        miss: CacheMiss,
        result: CallbackResult,
    ) -> Result<Allocation, Error> {
        let answer = if shared.core.config().release_lock_on_cudamalloc() {
            let mut context = Unlocked::new(&self.shared, shared);
            let answer = resume(&mut context, miss, result);
            shared = context.into_guard();
            answer
        } else {
            shared.core.resume(miss, result)
        };
        if let Err(Error::OutOfMemory(why)) = &answer {
            let observers = shared.see_out_of_memory.clone();
            drop(shared);
            observers.iter().for_each(|observer| observer(why));
        }
        answer
    }

    /// Frees a block: [`Allocator::free`](crate::Allocator::free).
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn free(&self, allocation: Allocation) {
        self.lock().core.free(allocation);
    }

    /// Changes the tag of a live block: [`Allocator::retag`](crate::Allocator::retag).
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn retag(&self, allocation: &Allocation, category: Category, label: LabelId) {
        self.lock().core.retag(allocation, category, label);
    }

    /// Records that work on `stream` also uses a block: [`Allocator::record_stream`](crate::Allocator::record_stream).
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn record_stream(&self, allocation: &Allocation, stream: StreamId) {
        self.lock().core.record_stream(allocation, stream);
    }

    /// Calls `callback` when no cached block fits a request, before new device memory is allocated. It may free memory
    /// of this allocator: the lock is not held. In PyTorch: `FreeMemoryCallback`.
    pub fn on_memory_wanted(&self, callback: impl Fn() -> CallbackResult + Send + Sync + 'static) {
        self.lock().free_memory.push(Arc::new(callback));
    }

    /// Calls `observer` when a request runs out of memory, before its error is returned.
    /// The lock is not held. In PyTorch: `attachOutOfMemoryObserver`.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.lock().see_out_of_memory.push(Arc::new(observer));
    }

    /// Frees cached segments on the device and returns their bytes: [`Allocator::empty_cache`](crate::Allocator::empty_cache).
    ///
    /// # Errors
    /// The same errors as [`Allocator::empty_cache`](crate::Allocator::empty_cache).
    pub fn empty_cache(&self) -> Result<u64, Error> {
        self.lock().core.empty_cache()
    }

    /// The options.
    pub fn config(&self) -> Config {
        self.lock().core.config().clone()
    }

    /// Changes the options: [`Allocator::set_config`](crate::Allocator::set_config).
    pub fn set_config(&self, config: Config) {
        self.lock().core.set_config(config);
    }

    /// Limits the reserved bytes to a fraction of the device: [`Allocator::set_memory_fraction`](crate::Allocator::set_memory_fraction).
    ///
    /// # Errors
    /// The same errors as [`Allocator::set_memory_fraction`](crate::Allocator::set_memory_fraction).
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        self.lock().core.set_memory_fraction(fraction)
    }

    /// Sets or removes the limit on the reserved bytes: [`Allocator::set_memory_limit`](crate::Allocator::set_memory_limit).
    pub fn set_memory_limit(&self, limit_bytes: Option<u64>) {
        self.lock().core.set_memory_limit(limit_bytes);
    }

    /// The limit on the reserved bytes, if any.
    pub fn memory_limit(&self) -> Option<u64> {
        self.lock().core.memory_limit()
    }

    /// The device's free and total memory.
    pub fn memory_info(&self) -> MemoryInfo {
        self.lock().core.memory_info()
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, Shared> {
        self.shared.lock()
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("reserved_bytes", &self.lock().core.reserved())
            .finish_non_exhaustive()
    }
}
