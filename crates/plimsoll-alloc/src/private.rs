//! Private pools: separate memory for a graph, or for a part of a program.
//!
//! A pool has a [`PoolId`] and a use count. While it is in use, only requests that name
//! it are served from it, and its cache is not released; after that, the next release of the cache
//! frees its cached memory, and the pool is removed once it is empty. The callers decide which requests name it,
//! by thread or stream: `shared.rs`.
//!
//! As PyTorch: `MemPool`, `PrivatePool`, `createOrIncrefPool`, `beginAllocateToPool`, `endAllocateToPool`,
//! `releasePool`. Unlike PyTorch, a pool is removed when it has no segment, not when a count of calls
//! is 0 (which is wrong with expandable segments), and a pool that is used again before that is
//! in use again (PyTorch asserts).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::allocator::Allocator;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::pool::{PoolKind, PoolRef};
use crate::request::PoolId;
use crate::segment_allocator::SegmentAllocators;

/// One private pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Private {
    pub(crate) use_count: u64,
    /// The number of requests that wait for a segment of this pool, with the lock released.
    waiting: u32,
    /// Its small half and its large half.
    pub(crate) halves: [PoolRef; 2],
}

impl Private {
    /// Whether the pool can be removed.
    pub(crate) fn is_unused(&self) -> bool {
        self.use_count == 0 && self.waiting == 0
    }
}

/// All private pools and their settings. Ordered by id, which is the order in which pools are
/// searched and released (PyTorch's is a hash map's).
#[derive(Debug, Default)]
pub(crate) struct Privates {
    pools: BTreeMap<PoolId, Private>,
    lends: BTreeSet<PoolId>,
    unsplit: BTreeSet<PoolId>,
    /// The pools that requests are sent to, newest last.
    recording: Vec<PoolId>,
    pub(crate) segment_allocators: SegmentAllocators,
}

impl Privates {
    pub(crate) fn get(&self, id: PoolId) -> Option<&Private> {
        self.pools.get(&id)
    }

    pub(crate) fn remove(&mut self, id: PoolId) {
        self.pools.remove(&id);
        self.segment_allocators.remove(id);
    }

    /// Keeps a pool while a segment is allocated for it.
    pub(crate) fn hold(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.waiting += 1;
        }
    }

    /// Undoes [`hold`](Self::hold).
    pub(crate) fn let_go(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.waiting -= 1;
        }
    }

    pub(crate) fn has_segment_allocator(&self, id: PoolId) -> bool {
        id != PoolId::DEFAULT && self.segment_allocators.get(id).is_some()
    }

    /// The pools without users, by id.
    pub(crate) fn unused(&self) -> Vec<PoolId> {
        self.pools.iter().filter(|(_, pool)| pool.is_unused()).map(|(&id, _)| id).collect()
    }

    /// The halves of pools with `use_on_oom`, by id.
    pub(crate) fn lenders(&self, kind: PoolKind) -> Vec<PoolRef> {
        let pools = self.lends.iter().filter_map(|id| self.pools.get(id));
        pools.map(|pool| pool.halves[kind as usize]).collect()
    }

    pub(crate) fn is_unsplit(&self, id: PoolId) -> bool {
        id != PoolId::DEFAULT && self.unsplit.contains(&id)
    }

    pub(crate) fn is_recording(&self) -> bool {
        !self.recording.is_empty()
    }
}

/// Why a call on a private pool failed.
///
/// ```
/// # use plimsoll_alloc::{PoolError, PoolId};
/// assert_eq!(PoolError::Unknown(PoolId(0, 1)).to_string(), "there is no pool (0, 1)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolError {
    /// The pool already exists.
    Exists(PoolId),
    /// There is no such private pool; the default pool is not private.
    Unknown(PoolId),
    /// Requests are already sent to this pool.
    AlreadyRecording(PoolId),
    /// Requests are not sent to this pool.
    NotRecording(PoolId),
    /// The pool has no users left.
    Unused(PoolId),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(PoolId(a, b)) => write!(f, "pool ({a}, {b}) already exists"),
            Self::Unknown(PoolId(a, b)) => write!(f, "there is no pool ({a}, {b})"),
            Self::AlreadyRecording(PoolId(a, b)) => write!(f, "requests already go to pool ({a}, {b})"),
            Self::NotRecording(PoolId(a, b)) => write!(f, "no requests are sent to pool ({a}, {b})"),
            Self::Unused(PoolId(a, b)) => write!(f, "pool ({a}, {b}) has no users left"),
        }
    }
}

impl std::error::Error for PoolError {}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Makes a private pool with a use count of 1, or increments its use count. As PyTorch: `createOrIncrefPool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for the default pool's id.
    pub fn create_pool(&mut self, id: PoolId) -> Result<(), Error> {
        if id == PoolId::DEFAULT {
            return Err(PoolError::Unknown(id).into());
        }
        let pools = &mut self.pools;
        let new = || Private { use_count: 0, waiting: 0, halves: pools.add_pool(id) };
        self.privates.pools.entry(id).or_insert_with(new).use_count += 1;
        Ok(())
    }

    /// Makes a pool or increments its use count, and marks it as the target of requests. The caller decides
    /// which requests, by naming the pool in them. As PyTorch: `beginAllocateToPool`.
    ///
    /// # Errors
    /// [`PoolError::AlreadyRecording`] if it already is; the use count is incremented even then, as in
    /// PyTorch.
    pub fn begin_allocate_to_pool(&mut self, id: PoolId) -> Result<(), Error> {
        self.create_pool(id)?;
        if self.privates.recording.contains(&id) {
            return Err(PoolError::AlreadyRecording(id).into());
        }
        self.privates.recording.push(id);
        Ok(())
    }

    /// Ends [`begin_allocate_to_pool`](Self::begin_allocate_to_pool); the use count does not change. With
    /// `graph_capture_record_stream_reuse`, blocks of it that a capture used and freed become cached.
    /// As PyTorch: `endAllocateToPool`.
    ///
    /// # Errors
    /// [`PoolError::NotRecording`] if requests are not sent to it.
    pub fn end_allocate_to_pool(&mut self, id: PoolId) -> Result<(), Error> {
        let recording = &mut self.privates.recording;
        let place = recording.iter().position(|&at| at == id).ok_or(PoolError::NotRecording(id))?;
        recording.remove(place);
        self.settle_frees_in_pool(id);
        Ok(())
    }

    /// Decrements the use count. At 0, the pool's cache is freed at the next
    /// release of the cache, or by [`empty_pool`](Self::empty_pool). As PyTorch: `releasePool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] or [`PoolError::Unused`] if there is no such pool, or its use count is 0.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), Error> {
        let pool = self.privates.pools.get_mut(&id).ok_or(PoolError::Unknown(id))?;
        pool.use_count = pool.use_count.checked_sub(1).ok_or(PoolError::Unused(id))?;
        Ok(())
    }

    /// The use count of a pool; `None` if there is no such pool.
    pub fn pool_use_count(&self, id: PoolId) -> Option<u64> {
        self.privates.get(id).map(|pool| pool.use_count)
    }

    /// Sets whether the default pool may use a pool's cached blocks when the device is out of memory.
    /// Stored by id, even before the pool exists. As PyTorch: `setUseOnOOM`.
    pub fn set_use_on_oom(&mut self, id: PoolId, lends: bool) {
        if lends {
            self.privates.lends.insert(id);
        } else {
            self.privates.lends.remove(&id);
        }
    }

    /// Makes a pool allocate whole segments only. Stored by id, even before the pool
    /// exists. As PyTorch: `setNoSplit`.
    pub fn set_no_split(&mut self, id: PoolId) {
        self.privates.unsplit.insert(id);
    }

    /// The half of a pool that serves requests of a kind.
    #[inline]
    pub(crate) fn half_of(&self, id: PoolId, kind: PoolKind) -> Result<PoolRef, Error> {
        if id == PoolId::DEFAULT { Ok(PoolRef::default_half(kind)) } else { self.private_half_of(id, kind) }
    }

    #[inline(never)] // most requests are for the default pool
    fn private_half_of(&self, id: PoolId, kind: PoolKind) -> Result<PoolRef, Error> {
        let pool = self.privates.get(id).ok_or(PoolError::Unknown(id))?;
        Ok(pool.halves[kind as usize])
    }
}
