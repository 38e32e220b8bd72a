//! The backing of a storage: where its bytes are and what owns them.

use std::sync::Arc;

use plimsoll_alloc::{Allocation, StreamId, Tag};

use crate::device::Device;
use crate::pinned::Block;
use crate::planned::Lease;
use crate::stream::{Event, Stream};

/// Where the bytes of a tensor are. Operations bring them back automatically.
///
/// ```
/// use plimsoll_tensor::{Device, State, Tensor};
/// let x = Tensor::ones(&[1000], &Device::cpu())?;
/// x.offload()?;
/// assert_eq!(x.state(), State::Offloaded);
/// assert_eq!(x.sum()?.item::<f32>()?, 1000.0);
/// assert_eq!(x.state(), State::Resident);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The bytes are on their device.
    Resident,
    /// The bytes are in pinned host memory, or are being copied back: [`Tensor::offload`](crate::Tensor::offload).
    Offloaded,
    /// The bytes are nowhere; they will be computed again: [`Tensor::evict_with`](crate::Tensor::evict_with).
    Evicted,
    /// The bytes are nowhere; they will be gathered from several ranks: [`Tensor::lent`](crate::Tensor::lent).
    Lent,
}

/// The owner of the bytes. `R` computes evicted bytes again, and `G` keeps another storage on its device.
pub(super) enum Backing<R, G> {
    /// The device's allocator. The lease, if any, records when the memory is freed.
    Device(Allocation, Option<Lease>),
    /// The arena of a plan.
    Planned(Lease),
    /// Pinned memory that holds a host tensor, with device copies to or from it that may be in progress.
    Pinned { block: Block, copies: Vec<Arc<Event>> },
    /// Pinned memory that holds offloaded bytes; the event follows the copy to it.
    Offloaded { block: Arc<Block>, copied: Arc<Event> },
    /// Memory that offloaded bytes are being copied to, the stream for which it was requested, and an event after the copy.
    Returning { allocation: Allocation, stream: StreamId, arrived: Arc<Event> },
    /// The recipe for evicted bytes.
    Evicted(R),
    /// Nothing. The storage owns no memory, and borrows none at present.
    Lent,
    /// The memory of another storage, which cannot leave its device while it is borrowed.
    Borrowed(G),
    /// Nothing: the storage is being dropped.
    Gone,
}

impl<R, G> Backing<R, G> {
    pub(super) fn pinned(block: Block) -> Self {
        Backing::Pinned { block, copies: Vec::new() }
    }

    pub(super) fn state(&self) -> State {
        match self {
            Backing::Device(..)
            | Backing::Planned(_)
            | Backing::Pinned { .. }
            | Backing::Borrowed(_)
            | Backing::Gone => State::Resident,
            Backing::Offloaded { .. } | Backing::Returning { .. } => State::Offloaded,
            Backing::Evicted(_) => State::Evicted,
            Backing::Lent => State::Lent,
        }
    }

    /// Frees the memory; memory of a plan is free when its lease is dropped. Called with no lock held, since a recipe
    /// may own tensors.
    pub(super) fn free(self, device: &Device, tag: Tag) {
        match self {
            Backing::Device(allocation, lease) => {
                device.free(allocation, tag);
                drop(lease);
            }
            Backing::Returning { allocation, stream, arrived } => {
                // The memory is used again only after the copy. An error of other work is returned by its next call.
                let _ = Stream::numbered(device, stream).wait_event(&arrived);
                device.free(allocation, tag);
            }
            _ => {}
        }
    }
}
