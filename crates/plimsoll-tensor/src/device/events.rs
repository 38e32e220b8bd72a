//! Reports of allocations and frees: [`Device::on_event`].
//!
//! Callbacks run after a request and before a free, with no lock held, on the thread that made the request or dropped the last handle.

use std::sync::Arc;

use plimsoll_alloc::{Allocation, Tag};

use super::Device;
use super::callbacks::{EventHandle, MemoryAction, MemoryEvent};
use crate::caller;
use crate::label;

impl Device {
    /// Calls `callback` after each allocation and before each free of this device's memory. It may use tensors and call anything: no lock
    /// is held. What it allocates and frees itself, on any device, is not reported. A panic in it is ignored. Memory
    /// that is freed inside a [`Traced`](crate::Traced) arena is not reported, because the arena was allocated once.
    ///
    /// Like the events of PyTorch's memory history, as they happen. [`MemoryEvent`] has an example.
    pub fn on_event(&self, callback: impl Fn(&MemoryEvent) + Send + Sync + 'static) -> EventHandle {
        self.0.callbacks.add(Arc::new(callback))
    }

    /// Reports a request that was served.
    #[inline]
    pub(crate) fn allocated(&self, allocation: &Allocation, tag: Tag, op: &'static str) {
        if self.0.callbacks.any() {
            self.report(MemoryAction::Alloc, allocation, tag, op);
        }
    }

    /// Frees memory, and reports it.
    pub(crate) fn free(&self, allocation: Allocation, tag: Tag) {
        // Reports it before the block is free, because another thread could otherwise get the block and report that
        // first.
        if self.0.callbacks.any() {
            self.report(MemoryAction::Free, &allocation, tag, "");
        }
        self.memory().free(allocation);
    }

    #[cold]
    fn report(&self, action: MemoryAction, allocation: &Allocation, tag: Tag, op: &'static str) {
        if allocation.bytes() == 0 {
            return; // a request of 0 bytes has no block
        }
        self.0.callbacks.call(|| MemoryEvent {
            action,
            bytes: allocation.bytes(),
            requested_bytes: allocation.requested_bytes(),
            address: allocation.addr().0,
            category: tag.category,
            label: label::text(tag.label),
            op,
            at: if action == MemoryAction::Alloc { caller::line() } else { None },
        });
    }
}
