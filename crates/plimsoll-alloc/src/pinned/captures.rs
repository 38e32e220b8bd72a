//! Pools that graph captures own: begin, end, release.
//!
//! A graph runs later, and again, at the addresses that its capture saw. So what a capture asks for comes from
//! a pool of its own, which lives as long as a graph holds it. Who asks during which capture is resolved by
//! the caller, into [`PinnedRequest::pool`](super::PinnedRequest::pool).

use super::allocator::PinnedAllocator;
use super::error::PinnedError;
use super::pool::HostPool;
use crate::private::PoolError;
use crate::request::PoolId;

impl<D, O> PinnedAllocator<D, O> {
    /// A capture into `pool` begins, and holds it; requests may name it. As PyTorch: `begin_allocate_to_pool`
    /// (which counts the holder even when it refuses, so that the pool never dies).
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for the default pool's id, [`PoolError::AlreadyRecording`],
    /// [`PoolError::Unused`] if the pool is dying.
    pub fn begin_allocate_to_pool(&mut self, pool: PoolId) -> Result<(), PinnedError> {
        if pool == PoolId::DEFAULT {
            return Err(PinnedError::Pool(PoolError::Unknown(pool)));
        }
        if self.recording.contains(&pool) {
            return Err(PinnedError::Pool(PoolError::AlreadyRecording(pool)));
        }
        match self.pools.get_mut(&pool) {
            Some(known) if known.users == 0 => return Err(PinnedError::Pool(PoolError::Unused(pool))),
            Some(known) => known.users += 1,
            None => drop(self.pools.insert(pool, HostPool::new())),
        }
        self.recording.push(pool);
        Ok(())
    }

    /// The capture into `pool` ends. The graph still holds it. As PyTorch: `end_allocate_to_pool`.
    ///
    /// # Errors
    /// [`PoolError::NotRecording`] if none is under way.
    pub fn end_allocate_to_pool(&mut self, pool: PoolId) -> Result<(), PinnedError> {
        let not_recording = PinnedError::Pool(PoolError::NotRecording(pool));
        let nth = self.recording.iter().position(|&id| id == pool).ok_or(not_recording)?;
        self.recording.remove(nth);
        Ok(())
    }

    /// One graph holds `pool` no more. After the last, `empty_cache` releases what it has cached.
    /// As PyTorch: `release_pool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] (the default pool has no graphs either), [`PoolError::Unused`] if no graph holds
    /// it.
    pub fn release_pool(&mut self, pool: PoolId) -> Result<(), PinnedError> {
        let private = self.pools.get_mut(&pool).filter(|_| pool != PoolId::DEFAULT);
        let private = private.ok_or(PinnedError::Pool(PoolError::Unknown(pool)))?;
        private.users = private.users.checked_sub(1).ok_or(PinnedError::Pool(PoolError::Unused(pool)))?;
        Ok(())
    }
}
