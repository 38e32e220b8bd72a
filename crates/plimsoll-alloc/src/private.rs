//! Private pools: memory kept apart for a graph, or for a part of a program.
//!
//! A pool is named by a [`PoolId`] and counted by its users. While someone uses it, only requests that name
//! it are served from it, and its cache is not released; when nobody does, the next release of the cache
//! takes what is not held, and the pool is forgotten once it is empty. Which requests name it is decided
//! outside, by thread or stream: `shared.rs`.
//!
//! As PyTorch: `MemPool`, `PrivatePool`, `createOrIncrefPool`, `beginAllocateToPool`, `endAllocateToPool`,
//! `releasePool`. Unlike PyTorch, a pool is forgotten when it holds no segment, not when a count of calls
//! happens to be 0 (which goes wrong with expandable segments), and one that is used again before that is
//! simply in use again (PyTorch asserts).

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
    /// Requests that wait for a segment for it, with the lock released.
    waiting: u32,
    /// Its small half and its large half.
    pub(crate) halves: [PoolRef; 2],
}

impl Private {
    /// Whether it may go.
    pub(crate) fn is_unused(&self) -> bool {
        self.use_count == 0 && self.waiting == 0
    }
}

/// All private pools, and what was said about them. Ordered by id, which is the order in which pools are
/// borrowed from and released (PyTorch's is a hash map's).
#[derive(Debug, Default)]
pub(crate) struct Privates {
    pools: BTreeMap<PoolId, Private>,
    lends: BTreeSet<PoolId>,
    unsplit: BTreeSet<PoolId>,
    /// Those that requests are sent to now, the newest last.
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

    /// Lets a pool last while a segment is made for it.
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

    /// Those that nobody uses any more, by id.
    pub(crate) fn unused(&self) -> Vec<PoolId> {
        self.pools.iter().filter(|(_, pool)| pool.is_unused()).map(|(&id, _)| id).collect()
    }

    /// The halves that may serve the default pool's requests when the device has no more, by id.
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

/// What is wrong with a call about a private pool.
///
/// ```
/// # use plimsoll_alloc::{PoolError, PoolId};
/// assert_eq!(PoolError::Unknown(PoolId(0, 1)).to_string(), "there is no pool (0, 1)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolError {
    /// There is such a pool already.
    Exists(PoolId),
    /// There is no such pool; the default pool is not a private one.
    Unknown(PoolId),
    /// Requests are sent to this pool already.
    AlreadyRecording(PoolId),
    /// Requests are not sent to this pool.
    NotRecording(PoolId),
    /// The pool has no users left.
    Unused(PoolId),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(PoolId(a, b)) => write!(f, "there is a pool ({a}, {b}) already"),
            Self::Unknown(PoolId(a, b)) => write!(f, "there is no pool ({a}, {b})"),
            Self::AlreadyRecording(PoolId(a, b)) => write!(f, "requests go to pool ({a}, {b}) already"),
            Self::NotRecording(PoolId(a, b)) => write!(f, "no requests are sent to pool ({a}, {b})"),
            Self::Unused(PoolId(a, b)) => write!(f, "pool ({a}, {b}) has no users left"),
        }
    }
}

impl std::error::Error for PoolError {}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Makes a private pool with one user, or adds a user. As PyTorch: `createOrIncrefPool`.
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

    /// Makes a pool or adds a user, and notes that requests are sent to it from now on. Which ones is for
    /// the caller to decide: they name the pool. As PyTorch: `beginAllocateToPool`.
    ///
    /// # Errors
    /// [`PoolError::AlreadyRecording`] if they are already; there is one user more then all the same, as in
    /// PyTorch.
    pub fn begin_allocate_to_pool(&mut self, id: PoolId) -> Result<(), Error> {
        self.create_pool(id)?;
        if self.privates.recording.contains(&id) {
            return Err(PoolError::AlreadyRecording(id).into());
        }
        self.privates.recording.push(id);
        Ok(())
    }

    /// Notes that requests are no longer sent to a pool; its users stay. With
    /// `graph_capture_record_stream_reuse`, what a capture used of it and freed is cached from now on.
    /// As PyTorch: `endAllocateToPool`.
    ///
    /// # Errors
    /// [`PoolError::NotRecording`] if they were not.
    pub fn end_allocate_to_pool(&mut self, id: PoolId) -> Result<(), Error> {
        let recording = &mut self.privates.recording;
        let place = recording.iter().position(|&at| at == id).ok_or(PoolError::NotRecording(id))?;
        recording.remove(place);
        self.settle_frees_in_pool(id);
        Ok(())
    }

    /// Takes a user away. With the last one gone, the pool's cache goes back to the device at the next
    /// release of the cache, or by [`empty_pool`](Self::empty_pool). As PyTorch: `releasePool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] or [`PoolError::Unused`] if there is nothing to take away.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), Error> {
        let pool = self.privates.pools.get_mut(&id).ok_or(PoolError::Unknown(id))?;
        pool.use_count = pool.use_count.checked_sub(1).ok_or(PoolError::Unused(id))?;
        Ok(())
    }

    /// How many users a pool has; `None` if there is no such pool (any more).
    pub fn pool_use_count(&self, id: PoolId) -> Option<u64> {
        self.privates.get(id).map(|pool| pool.use_count)
    }

    /// Says whether the default pool may use a pool's cached blocks when the device has no more memory.
    /// Remembered for the id, also before there is such a pool. As PyTorch: `setUseOnOOM`.
    pub fn set_use_on_oom(&mut self, id: PoolId, lends: bool) {
        if lends {
            self.privates.lends.insert(id);
        } else {
            self.privates.lends.remove(&id);
        }
    }

    /// Says that a pool gives out whole segments only, from now on. Remembered for the id, also before there
    /// is such a pool. As PyTorch: `setNoSplit`.
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
