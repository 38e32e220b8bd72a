//! Blocks used on several streams, and captures.

use super::Allocator;
use crate::allocation::Allocation;
use crate::driver::Driver;
use crate::event::Observer;
use crate::request::StreamId;
use crate::stream_uses::Recorded;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Records that work on `stream` also uses a block: after it is freed, it is not reused until that
    /// work is done. Costs an event per stream when the block is freed.
    /// Does nothing for the block's own stream, or for a request of 0 bytes.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn record_stream(&mut self, allocation: &Allocation, stream: StreamId) {
        let Some(id) = self.heap.held(allocation) else { return };
        if self.heap.pools().block(id).stream != stream {
            let recorded = if self.in_capture() { Recorded::InCapture } else { Recorded::Eagerly };
            self.pending.record_use(&mut self.heap, id, stream, recorded);
        }
    }

    /// Begins a capture. Work is captured rather than run until [`end_capture`](Self::end_capture) has been called once
    /// for each call of this function. Until then, no event is queried or waited for, blocks used on other streams stay
    /// pending, and the cache is not released. This applies to calls for which [`Driver::is_capturing`] is true; by
    /// default, all calls.
    /// In PyTorch: `markCaptureBegin`.
    pub fn begin_capture(&mut self) {
        self.captures.begin();
    }

    /// Ends a capture. In PyTorch: `markCaptureEnd`.
    ///
    /// # Panics
    /// If no capture is under way.
    pub fn end_capture(&mut self) {
        self.captures.end();
    }
}
