//! [`PinnedAllocator`]: the state of the pinned allocator.
//!
//! Serving a request: `serving.rs`. Freeing: `polling.rs`. Pools of graph captures: `captures.rs`.

use std::collections::BTreeMap;

use super::block::{Block, HostBlockState};
use super::pool::HostPool;
use super::request::DeviceStream;
use super::reserve::Reserve;
use super::segment::PinnedSegment;
use crate::config::PinnedConfig;
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
/// pinned.record_event(addr, copies); // an asynchronous copy from it is running
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
    /// Always includes the default pool. `empty_cache` visits the pools in id order (PyTorch: in the order of a hash
    /// table).
    pub(super) pools: BTreeMap<PoolId, HostPool>,
    /// The pools with a capture under way.
    pub(super) recording: Vec<PoolId>,
    pub(super) reserve: Reserve,
}

impl<D, O> PinnedAllocator<D, O> {
    /// Makes an empty allocator over `driver`.
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

    /// Records that work on a stream uses the block at `addr`, so that it is not reused before that work is done.
    /// Returns false if no block starts there.
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

    /// All blocks, in address order.
    pub fn segments(&self) -> Vec<PinnedSegment> {
        self.blocks.iter().map(|(&addr, block)| block.seen(addr)).collect()
    }

    /// Active bytes (allocated, or in use by streams) and cached bytes.
    pub(super) fn active_and_cached_bytes(&self) -> (u64, u64) {
        let sum = |cached: bool| {
            let blocks =
                self.blocks.values().filter(|block| (block.state == HostBlockState::Cached) == cached);
            blocks.map(|block| block.bytes).sum()
        };
        (sum(false), sum(true))
    }
}
