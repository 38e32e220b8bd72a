//! Saving and restoring a private pool's layout: `checkpoint.rs` explains it.

use super::Allocator;
use crate::checkpoint::{Checkpoint, Restored};
use crate::driver::Driver;
use crate::error::{Error, PoolError};
use crate::event::Observer;
use crate::request::PoolId;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Saves a private pool's layout.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] if there is no such pool.
    pub fn checkpoint(&self, id: PoolId) -> Result<Checkpoint, Error> {
        Ok(Checkpoint::of(id, self.private_pools.halves(id)?, self.heap.pools()))
    }

    /// Restores a private pool to a saved layout. Everything is checked first:
    /// on an error, the pool does not change.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] or [`PoolError::Unused`] if the pool has no users,
    /// [`CheckpointError`](crate::CheckpointError) if a block is used on other streams or a segment no
    /// longer exists.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<Restored, Error> {
        let id = checkpoint.pool();
        let halves = self.private_pools.halves(id)?;
        if self.private_pools.use_count(id) == Some(0) {
            return Err(PoolError::Unused(id).into());
        }
        Ok(checkpoint.restore(halves, &mut self.heap, &self.config)?)
    }
}
