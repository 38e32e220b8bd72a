//! Memory that the other ranks of a group can read: [`SharedMemory`], and how they read it: [`Peers`].
//!
//! It has its own pool, in which each segment is one allocation of the device, because other processes can open only
//! such allocations. Every device requests the same memory, so that a simulated one has the same peaks.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::Pool;
use plimsoll_cuda::PeerCopies;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A rank's shared memory.
#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    /// The pool of each device.
    pools: Mutex<Vec<(usize, Pool)>>,
    /// The memory that the ranks of a group can read, by the group's number.
    regions: Mutex<Vec<(u64, Range<u64>)>>,
}

impl SharedMemory {
    /// Runs `f`, which allocates from the shared memory of a device.
    pub(super) fn within<T>(&self, device: &Device, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = |source| Error::Allocator { device: device.name().to_owned(), source };
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match pools.iter().position(|(number, _)| *number == device.number()) {
            Some(at) => at,
            None => {
                let pool = device.memory().new_pool().map_err(failed)?;
                device.memory().set_plain(pool.id());
                pools.push((device.number(), pool));
                pools.len() - 1
            }
        };
        let _served = pools[at].1.use_here().map_err(failed)?;
        f()
    }

    fn regions(&self) -> MutexGuard<'_, Vec<(u64, Range<u64>)>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds memory of a group, and forgets older regions that overlap it, because they were freed.
    pub(super) fn add(&self, group: u64, new: Range<u64>) {
        let mut regions = self.regions();
        regions.retain(|(_, region)| region.end <= new.start || new.end <= region.start);
        regions.push((group, new));
    }

    /// Whether all of a tensor is memory that the ranks of this group can read.
    pub(super) fn has(&self, group: u64, tensor: &Tensor) -> bool {
        let regions = self.regions();
        if regions.is_empty() || !tensor.is_contiguous() {
            return false;
        }
        let (begin, bytes) = (tensor.data_ptr(), (tensor.numel() * tensor.dtype().size()) as u64);
        let holds = |region: &Range<u64>| region.start <= begin && begin + bytes <= region.end;
        regions.iter().any(|(of, region)| *of == group && holds(region))
    }
}

/// How the ranks of one group read each other's memory.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) copies: Copies,
    /// The copies that were used until some memory could not be shared. Queued work may still need them.
    before: Option<Arc<PeerCopies>>,
}

/// The copy engines of a group.
#[derive(Debug, Default)]
pub(super) enum Copies {
    #[default]
    Unknown,
    /// Not all ranks can read each other's memory.
    Impossible,
    Ready(Arc<PeerCopies>),
}

impl Peers {
    pub(super) fn copies(&self) -> Option<Arc<PeerCopies>> {
        match &self.copies {
            Copies::Ready(copies) => Some(Arc::clone(copies)),
            Copies::Unknown | Copies::Impossible => None,
        }
    }

    pub(super) fn stop(&mut self) {
        self.before = self.copies();
        self.copies = Copies::Impossible;
    }
}
