//! The seam to devices: all that the runtime asks of one.
//!
//! A back end computes and copies; it never allocates. Outputs and scratch come to it ready-made through
//! `dispatch/`, so that every device, the simulated one too, sees the same requests in the same order.
//! To add a device, implement [`Backend`] and hand it to `Device::new` in `device.rs`. A device that computes later
//! implements [`Queues`] too; `testing/late.rs` is one.

use std::sync::Arc;

use plimsoll_alloc::{DeviceMemory, EventId, LabelId, StreamId};

use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{Kernel, Varies};
use crate::properties::DeviceProperties;
use crate::view::{Launch, View};

/// What a device must do.
pub(crate) trait Backend: Send + Sync {
    /// The device's name, as in `torch.device`: `cpu`, `sim`.
    fn name(&self) -> &str;

    /// The allocator that every byte on this device comes from.
    fn memory(&self) -> &DeviceMemory;

    /// Whether tensors here have values that can be read.
    fn has_values(&self) -> bool;

    /// What operators may know of it.
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { kind: DeviceKind::Cpu, capability: None }
    }

    /// What it says of itself.
    fn properties(&self) -> &DeviceProperties;

    /// The streams of a device that computes later; none where all work is done when its call returns.
    fn queues(&self) -> Option<&dyn Queues> {
        None
    }

    /// Computes, and returns when that is done. Not called where there are queues.
    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()>;

    /// Copies from host memory into a contiguous tensor; the byte counts are equal. The bytes may change when this
    /// returns: a device that computes later keeps a copy of them.
    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()>;

    /// Appends a contiguous tensor's bytes to host memory, after the work that is now on the stream. Asked only where
    /// `has_values`.
    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()>;

    /// Whether its memory is the host's, so that tensors here may be in pinned memory.
    fn is_host(&self) -> bool {
        false
    }

    /// Copies between this device and host memory, of which one view is; both are contiguous and of as many bytes. Where
    /// this device computes later the host's memory is pinned, and stays until the work is done. Asked only where
    /// `has_values`.
    fn copy(&self, from: View<'_>, to: View<'_>, on: StreamId) -> Result<()>;

    /// Takes everything back that this process has on the device, and gives its number; `None` where there is nothing that a
    /// fault could take away.
    fn reset(&self) -> Option<Result<u32>> {
        None
    }

    /// What was looked for and is not there, so that slower kernels take its place.
    fn missing_library(&self) -> Option<String> {
        None
    }

    /// Bytes of the device that its libraries work in, outside of the allocator.
    fn workspace_bytes(&self) -> u64 {
        0
    }

    /// Host bytes of this device's segments that are resident now, where the device is host memory.
    fn resident_bytes(&self) -> Option<u64>;
}

/// The workspace of cuBLASLt and cuDNN on each stream of a GPU: as large as PyTorch's on GPUs from Hopper on.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;

/// Work of a device that was captured. Dropped only when nothing of it runs any more, or it waits.
pub(crate) trait Replays: Send + Sync {
    /// What varies from replay to replay, in the order in which it was queued.
    fn varying(&self) -> &[Varies];

    /// A varying kernel as it is now.
    fn kernel(&self, at: usize) -> &Arc<dyn Kernel>;

    /// Puts another kernel in the place of a varying one, for the replays from now on.
    ///
    /// # Errors
    /// [`Error::Captured`] where it needs other work than before: the step must be captured again.
    fn change(&mut self, at: usize, kernel: Arc<dyn Kernel>) -> Result<()>;

    /// Queues all of it on the stream that was captured.
    fn replay(&self) -> Result<()>;
}

/// What a device must do that computes later: work waits on streams, each in the order in which it was queued.
///
/// Addresses stay valid until the work is done: a block that is freed serves its own stream at once, where order
/// makes that safe, and another stream only after the events of those that use it (`plimsoll_alloc::Driver::record`,
/// which the device's driver answers from the same streams). Work of two streams on one storage is ordered by the
/// program, with events.
pub(crate) trait Queues: Send + Sync {
    /// Queues a kernel. `owner` is the layer that calls it, for an error that is found later.
    fn launch(&self, kernel: Arc<dyn Kernel>, launch: Launch<'_>, on: StreamId, owner: LabelId)
    -> Result<()>;

    /// Whether operations note on which streams they use the memory of their tensors: freed memory then waits for those.
    /// False only in tests of what that prevents.
    fn records_uses(&self) -> bool {
        true
    }

    /// Records an event after the work that is now on a stream.
    fn record(&self, on: StreamId) -> Result<EventId>;

    /// Whether the work before an event is done. Does not wait.
    fn is_done(&self, event: EventId) -> Result<bool>;

    /// Waits on the host until the work before an event is done.
    fn wait(&self, event: EventId) -> Result<()>;

    /// Lets a stream wait for an event before its next work. Does not wait on the host.
    fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Waits on the host until all work of all streams is done.
    fn wait_all(&self) -> Result<()>;

    /// Nobody asks about this event again.
    fn release(&self, event: EventId) {
        let _ = event;
    }

    /// Locks the pages of host memory, so that copies to and from it run beside the host; they stay mapped until
    /// [`Queues::unregister`]. Nothing where the device reads host memory as it is.
    fn register(&self, address: u64, bytes: u64) -> Result<()> {
        let _ = (address, bytes);
        Ok(())
    }

    /// Undoes [`Queues::register`]. No copy is under way.
    fn unregister(&self, address: u64) -> Result<()> {
        let _ = address;
        Ok(())
    }

    /// Captures what this thread queues on a stream from now on; none of it runs. Called where this thread captures nothing.
    fn begin_capture(&self, on: StreamId) -> Result<()>;

    /// Ends this thread's capture. Where that fails there is none under way, either.
    fn end_capture(&self) -> Result<Box<dyn Replays>>;

    /// Ends this thread's capture and drops what was captured; nothing where there is none.
    fn abandon_capture(&self);

    /// The first error of earlier work that was not reported yet; a device that cannot go on reports it again.
    fn take_error(&self) -> Option<Error>;
}
