//! The streams that use a storage's memory: the one for which it was requested, and others.
//!
//! Note [Copies on other streams]. A program orders its own work, and knows nothing of the copies of `offload/`. So each stream that
//! reads bytes that came back waits for the copy, whichever stream reads them first: `arrive` makes the memory's own stream wait, and
//! [`Storage::record_stream`] any other stream before its first use.

use std::sync::atomic::Ordering;

use plimsoll_alloc::StreamId;

use super::backing::Backing;
use super::{Inner, Storage};
use crate::stream::Stream;

impl Storage {
    /// The stream for which the memory was requested.
    pub(crate) fn stream(&self) -> StreamId {
        self.0.stream_id()
    }

    /// Records that work on a stream uses these bytes: once freed, they are not reused before that work is done. Work that is queued
    /// there from now on comes after the copy that brought them back.
    pub(crate) fn record_stream(&self, on: StreamId) {
        // The allocator keeps the list; this only avoids calling it again for the same stream.
        if on == self.stream() || self.0.used_by.load(Ordering::Relaxed) == on.0 {
            return;
        }
        let account = self.account();
        if let Some(arrived) = &account.arrived {
            // An error of other work is returned by its next call.
            let _ = Stream::numbered(&self.0.device, on).wait_event(arrived);
        }
        match &account.backing {
            Backing::Device(allocation, lease) => {
                if let Some(lease) = lease {
                    lease.share(on);
                }
                self.0.device.memory().record_stream(allocation, on);
            }
            Backing::Returning { allocation, .. } => self.0.device.memory().record_stream(allocation, on),
            Backing::Planned(lease) => lease.share(on),
            Backing::Borrowed(guard) => guard.0.record_stream(on),
            _ => {}
        }
        // Last, because another thread that queues work on this stream may now skip all of that.
        self.0.used_by.store(on.0, Ordering::Relaxed);
    }
}

impl Inner {
    fn stream_id(&self) -> StreamId {
        StreamId(self.stream.load(Ordering::Relaxed))
    }

    /// The stream for which the memory was requested.
    pub(super) fn own_stream(&self) -> Stream {
        Stream::numbered(&self.device, self.stream_id())
    }
}
