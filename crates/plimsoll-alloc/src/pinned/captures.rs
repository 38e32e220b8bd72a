//! Pools that graph captures own: begin, end, release.
//!
//! A graph is replayed later, any number of times, at the addresses of its capture. So a capture allocates from
//! its own pool, which lives as long as a graph uses it. The caller decides which requests belong to which capture,
//! and sets [`PinnedRequest::pool`](super::PinnedRequest::pool).

use super::allocator::PinnedAllocator;
use super::error::PinnedError;
use super::pool::HostPool;
use crate::error::PoolError;
use crate::request::PoolId;

impl<D, O> PinnedAllocator<D, O> {
    /// Begins a capture into `pool` and increments its use count. From now on, requests may name the pool. In PyTorch:
    /// `begin_allocate_to_pool` (which increments the count even when it fails, so the pool is never freed).
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for the default pool's id, [`PoolError::AlreadyRecording`],
    /// [`PoolError::Unused`] if the pool is being removed.
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

    /// Ends the capture into `pool`. The graph still uses the pool. In PyTorch: `end_allocate_to_pool`.
    ///
    /// # Errors
    /// [`PoolError::NotRecording`] if no capture is under way.
    pub fn end_allocate_to_pool(&mut self, pool: PoolId) -> Result<(), PinnedError> {
        let not_recording = PinnedError::Pool(PoolError::NotRecording(pool));
        let nth = self.recording.iter().position(|&id| id == pool).ok_or(not_recording)?;
        self.recording.remove(nth);
        Ok(())
    }

    /// Decrements the use count of `pool`. At 0, `empty_cache` releases its cached blocks.
    /// In PyTorch: `release_pool`.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] (also for the default pool), [`PoolError::Unused`] if no graph uses
    /// it.
    pub fn release_pool(&mut self, pool: PoolId) -> Result<(), PinnedError> {
        let private = self.pools.get_mut(&pool).filter(|_| pool != PoolId::DEFAULT);
        let private = private.ok_or(PinnedError::Pool(PoolError::Unknown(pool)))?;
        private.users = private.users.checked_sub(1).ok_or(PinnedError::Pool(PoolError::Unused(pool)))?;
        Ok(())
    }
}
