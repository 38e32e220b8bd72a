//! A GPU as one of several ranks: joining a communicator, and events with which the host can wait without blocking in the driver.

use std::path::Path;

use plimsoll_alloc::EventId;

use crate::error::Result;
use crate::gpu::Gpu;
use crate::nccl::{NcclCommunicator, NcclId};
use crate::peers::PeerCopies;

impl Gpu {
    /// A new id for a communicator. One rank makes it and sends it to the others, for [`Gpu::join`].
    ///
    /// # Errors
    /// If NCCL is missing or too old; also NCCL's own errors.
    pub fn nccl_id(&self) -> Result<NcclId> {
        self.bind()?;
        self.nccl()?.unique_id()
    }

    /// Joins the other ranks of a communicator, and waits until all have joined. Each rank must use a different GPU.
    ///
    /// # Errors
    /// The same errors as [`Gpu::nccl_id`].
    pub fn join(&self, id: NcclId, rank: usize, size: usize) -> Result<NcclCommunicator> {
        self.bind()?;
        NcclCommunicator::join(self.nccl()?, id, rank, size)
    }

    /// Joins the other GPUs of this host that read each other's memory. `flags` is the file that
    /// [`PeerCopies::make_flags`] made for the group; it can be removed when all ranks have returned from this call.
    ///
    /// # Errors
    /// If the file cannot be opened; also the driver's errors.
    pub fn join_peers(&self, flags: &Path, rank: usize, size: usize) -> Result<PeerCopies> {
        self.bind()?;
        PeerCopies::open(self.driver(), self.context(), flags, (rank, size))
    }

    /// Records an event on each stream. When all of these events are done, the work that is now queued on the device
    /// is also done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn record_all(&self) -> Result<Vec<EventId>> {
        self.bind()?;
        self.streams().record_all(self.driver())
    }
}
