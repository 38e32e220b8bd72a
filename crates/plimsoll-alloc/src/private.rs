//! Private pools: separate memory for a graph, or for a part of a program. [`PrivatePools`] counts their users and keeps
//! their settings.
//!
//! A pool has a [`PoolId`] and a use count. While it is in use, it serves only requests that name it, and its cache is
//! not released. After that, the next release of the cache frees its cached memory, and the pool is removed once it is
//! empty. The callers decide which requests name it, by thread or stream: `shared/redirect.rs`.
//!
//! In PyTorch: `MemPool`, `PrivatePool`, `createOrIncrefPool`, `beginAllocateToPool`, `endAllocateToPool`,
//! `releasePool`. Unlike PyTorch, a pool is removed when it has no segment; PyTorch counts calls, which is wrong with
//! expandable segments. Also, an unused pool that has not been removed yet can be used again (PyTorch asserts).

use std::collections::{BTreeMap, BTreeSet};

use crate::block::PoolRef;
use crate::error::{Error, PoolError};
use crate::request::PoolId;
use crate::size::PoolKind;

/// One private pool.
#[derive(Debug)]
struct PrivatePool {
    use_count: u64,
    /// The number of requests that wait for a segment of this pool, with the lock released.
    waiting: u32,
    /// Its small half and its large half.
    halves: [PoolRef; 2],
}

impl PrivatePool {
    /// Whether the pool can be removed.
    fn is_unused(&self) -> bool {
        self.use_count == 0 && self.waiting == 0
    }
}

/// All private pools and their settings. Pools are searched and released in id order (PyTorch: in the order of a hash map).
#[derive(Debug, Default)]
pub(crate) struct PrivatePools {
    pools: BTreeMap<PoolId, PrivatePool>,
    lends: BTreeSet<PoolId>,
    unsplit: BTreeSet<PoolId>,
    /// The pools whose segments are never expandable.
    plain: BTreeSet<PoolId>,
    /// The pools that requests are sent to, newest last.
    recording: Vec<PoolId>,
}

/// The pools and their users.
impl PrivatePools {
    /// Increments a pool's use count. If the pool does not exist, makes it from the halves that `new` returns, with a
    /// use count of 1.
    pub(crate) fn create(&mut self, id: PoolId, new: impl FnOnce() -> [PoolRef; 2]) -> Result<(), PoolError> {
        if id == PoolId::DEFAULT {
            return Err(PoolError::Unknown(id));
        }
        let new = || PrivatePool { use_count: 0, waiting: 0, halves: new() };
        self.pools.entry(id).or_insert_with(new).use_count += 1;
        Ok(())
    }

    /// Removes a pool.
    pub(crate) fn remove(&mut self, id: PoolId) {
        self.pools.remove(&id);
    }

    /// Decrements the use count.
    pub(crate) fn release(&mut self, id: PoolId) -> Result<(), PoolError> {
        let pool = self.pools.get_mut(&id).ok_or(PoolError::Unknown(id))?;
        pool.use_count = pool.use_count.checked_sub(1).ok_or(PoolError::Unused(id))?;
        Ok(())
    }

    /// The use count; `None` if there is no such pool.
    pub(crate) fn use_count(&self, id: PoolId) -> Option<u64> {
        self.pools.get(&id).map(|pool| pool.use_count)
    }

    /// Prevents the removal of a pool while a segment is allocated for it.
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

    /// Whether a pool exists and can be removed.
    pub(crate) fn is_unused(&self, id: PoolId) -> bool {
        self.pools.get(&id).is_some_and(PrivatePool::is_unused)
    }

    /// The pools without users, in id order.
    pub(crate) fn unused(&self) -> Vec<PoolId> {
        self.pools.iter().filter(|(_, pool)| pool.is_unused()).map(|(&id, _)| id).collect()
    }
}

/// Memory.
impl PrivatePools {
    /// A pool's small half and its large half.
    pub(crate) fn halves(&self, id: PoolId) -> Result<[PoolRef; 2], PoolError> {
        self.pools.get(&id).map(|pool| pool.halves).ok_or(PoolError::Unknown(id))
    }

    /// The half of a pool that serves requests of this kind; the pool may be the default one.
    #[inline]
    pub(crate) fn half_of(&self, id: PoolId, kind: PoolKind) -> Result<PoolRef, Error> {
        if id == PoolId::DEFAULT { Ok(PoolRef::default_half(kind)) } else { self.private_half_of(id, kind) }
    }

    #[inline(never)] // most requests are for the default pool
    fn private_half_of(&self, id: PoolId, kind: PoolKind) -> Result<PoolRef, Error> {
        Ok(self.halves(id)?[kind as usize])
    }

    /// Sets whether the default pool may use a pool's cached blocks when the device is out of memory.
    pub(crate) fn set_lends(&mut self, id: PoolId, lends: bool) {
        if lends {
            self.lends.insert(id);
        } else {
            self.lends.remove(&id);
        }
    }

    /// The halves of the pools that lend, in id order.
    pub(crate) fn lenders(&self, kind: PoolKind) -> Vec<PoolRef> {
        let pools = self.lends.iter().filter_map(|id| self.pools.get(id));
        pools.map(|pool| pool.halves[kind as usize]).collect()
    }

    /// Makes a pool allocate whole segments only.
    pub(crate) fn set_unsplit(&mut self, id: PoolId) {
        self.unsplit.insert(id);
    }

    /// Makes the segments of a pool single allocations of the device.
    pub(crate) fn set_plain(&mut self, id: PoolId) {
        self.plain.insert(id);
    }

    /// Whether the segments of a pool are never expandable.
    #[inline]
    pub(crate) fn is_plain(&self, id: PoolId) -> bool {
        id != PoolId::DEFAULT && self.plain.contains(&id)
    }

    /// Whether any pool allocates whole segments only. Usually none does.
    #[inline]
    pub(crate) fn any_unsplit(&self) -> bool {
        !self.unsplit.is_empty()
    }

    #[inline(never)] // check `any_unsplit` first
    pub(crate) fn is_unsplit(&self, id: PoolId) -> bool {
        id != PoolId::DEFAULT && self.unsplit.contains(&id)
    }
}

/// The pools that requests are sent to.
impl PrivatePools {
    /// Marks a pool as the target of requests.
    pub(crate) fn begin_recording(&mut self, id: PoolId) -> Result<(), PoolError> {
        if self.recording.contains(&id) {
            return Err(PoolError::AlreadyRecording(id));
        }
        self.recording.push(id);
        Ok(())
    }

    /// Undoes [`begin_recording`](Self::begin_recording).
    pub(crate) fn end_recording(&mut self, id: PoolId) -> Result<(), PoolError> {
        let place = self.recording.iter().position(|&at| at == id).ok_or(PoolError::NotRecording(id))?;
        self.recording.remove(place);
        Ok(())
    }

    /// Whether requests are sent to any pool.
    pub(crate) fn is_recording(&self) -> bool {
        !self.recording.is_empty()
    }
}
