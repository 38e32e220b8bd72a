//! The device interface: everything that the runtime requires of a device.
//!
//! A back end computes and copies; it never allocates. `dispatch/` passes it outputs and scratch memory that are
//! already allocated, so the allocator of every device, including the simulated one, gets the same requests in the
//! same order. To add a device, implement [`Backend`] and hand it to `Device::new` in `device/`. An asynchronous
//! device also implements [`Queues`]; `testing/late.rs` is an example.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_alloc::{DeviceMemory, EventId, LabelId, StreamId};
use plimsoll_cuda::Gpu;

use crate::clock::Clocks;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{Kernel, Varies};
use crate::properties::DeviceProperties;
use crate::view::{Launch, View};

/// A device.
pub(crate) trait Backend: Send + Sync {
    /// The device's name, as in `torch.device`: `cpu`, `sim`.
    fn name(&self) -> &str;

    /// The allocator that every byte on this device comes from.
    fn memory(&self) -> &DeviceMemory;

    /// Whether tensors on this device have values that can be read.
    fn has_values(&self) -> bool;

    /// The properties that operators may depend on.
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { kind: DeviceKind::Cpu, capability: None }
    }

    /// The device's properties, as reported to users.
    fn properties(&self) -> &DeviceProperties;

    /// The streams of an asynchronous device; `None` if all work is done when its call returns.
    fn queues(&self) -> Option<&dyn Queues> {
        None
    }

    /// Runs a kernel and returns when it is done. Not called on devices with queues.
    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()>;

    /// Copies from host memory into a contiguous tensor; the byte counts are equal. The caller may change the bytes once
    /// this returns: an asynchronous device keeps a copy of them.
    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()>;

    /// Appends a contiguous tensor's bytes to host memory, after the work that is now on the stream. Called only if
    /// `has_values`.
    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()>;

    /// Whether its memory is host memory, so that its tensors may be in pinned memory.
    fn is_host(&self) -> bool {
        false
    }

    /// Copies between this device and host memory. One of the views is in host memory; both are contiguous and have the
    /// same number of bytes. If the device is asynchronous, the host memory is pinned and stays allocated until the work
    /// is done. Called only if `has_values`.
    fn copy(&self, from: View<'_>, to: View<'_>, on: StreamId) -> Result<()>;

    /// The GPU whose collectives NCCL runs; `None` if collectives run on the host.
    fn gpu(&self) -> Option<&Arc<Gpu>> {
        None
    }

    /// From now on, while the host waits for the device, it calls `gives_up` with the time that it has waited, and returns its
    /// error. Collectives need this, because their work never ends if a rank is lost.
    fn wait_unless(&self, gives_up: GivesUp) {
        drop(gives_up);
    }

    /// The clocks of a simulated GPU.
    fn clocks(&self) -> Option<&Clocks> {
        None
    }

    /// Resets everything that this process has on the device, and returns the device's number; `None` for a device that
    /// cannot fault.
    fn reset(&self) -> Option<Result<u32>> {
        None
    }

    /// A library that was searched for but not found, so that slower kernels replace it.
    fn missing_library(&self) -> Option<String> {
        None
    }

    /// Bytes of device memory that its libraries use as workspace, outside the allocator.
    fn workspace_bytes(&self) -> u64 {
        0
    }

    /// Bytes of this device's segments that are resident in host memory now, if its memory is host memory.
    fn resident_bytes(&self) -> Option<u64>;
}

/// Why the host should not wait any longer for a device, if it has waited this long.
pub(crate) type GivesUp = Box<dyn Fn(Duration) -> Option<Error> + Send + Sync>;

/// The workspace of cuBLASLt and cuDNN on each stream of a GPU: the size that PyTorch uses on Hopper and newer GPUs.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;

/// Captured work of a device. Drop waits until no replay is running.
pub(crate) trait Replays: Send + Sync {
    /// The kernels that vary between replays, in the order in which they were queued.
    fn varying(&self) -> &[Varies];

    /// The current version of a varying kernel.
    fn kernel(&self, at: usize) -> &Arc<dyn Kernel>;

    /// Replaces a varying kernel in all later replays.
    ///
    /// # Errors
    /// [`Error::Captured`] if the new kernel needs different launches: the step must then be captured again.
    fn change(&mut self, at: usize, kernel: Arc<dyn Kernel>) -> Result<()>;

    /// Queues all of the work on the captured stream.
    fn replay(&self) -> Result<()>;
}

/// The interface of an asynchronous device. Work waits on streams; each stream runs it in the order in which it was queued.
///
/// Addresses stay valid until the work is done. The allocator reuses a freed block on its own stream at once, which
/// the order of the stream makes safe. It reuses the block on another stream only after the events of all streams
/// that use it (`plimsoll_alloc::Driver::record`, which the device's driver implements with the same streams). If
/// two streams work on one storage, the program orders them with events.
pub(crate) trait Queues: Send + Sync {
    /// Queues a kernel. `owner` is the layer that calls it; an error that is found later names it.
    fn launch(&self, kernel: Arc<dyn Kernel>, launch: Launch<'_>, on: StreamId, owner: LabelId)
    -> Result<()>;

    /// Whether operations record the streams on which they use their tensors' memory, so that freed memory waits for those
    /// streams. False only in tests that show the consequences of not recording them.
    fn records_uses(&self) -> bool {
        true
    }

    /// Records an event after the work that is now on a stream.
    fn record(&self, on: StreamId) -> Result<EventId>;

    /// Whether the work before an event is done. Does not wait.
    fn is_done(&self, event: EventId) -> Result<bool>;

    /// Waits on the host until the work before an event is done.
    fn wait(&self, event: EventId) -> Result<()>;

    /// Makes later work on a stream wait for an event. Does not wait on the host.
    fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Waits on the host until all work of all streams is done.
    fn wait_all(&self) -> Result<()>;

    /// Releases an event that is no longer needed.
    fn release(&self, event: EventId) {
        let _ = event;
    }

    /// Locks the pages of host memory, so that copies to and from it run while the host continues. They stay mapped until
    /// [`Queues::unregister`]. Does nothing on a device that reads host memory directly.
    fn register(&self, address: u64, bytes: u64) -> Result<()> {
        let _ = (address, bytes);
        Ok(())
    }

    /// Undoes [`Queues::register`]. No copy may be in progress.
    fn unregister(&self, address: u64) -> Result<()> {
        let _ = address;
        Ok(())
    }

    /// Starts to capture the work that this thread queues on a stream; none of it runs. Called only if the thread captures
    /// nothing yet.
    fn begin_capture(&self, on: StreamId) -> Result<()>;

    /// Ends this thread's capture. The capture is over even if this fails.
    fn end_capture(&self) -> Result<Box<dyn Replays>>;

    /// Ends this thread's capture, if any, and drops the captured work.
    fn abandon_capture(&self);

    /// The first unreported error of earlier work. A device that cannot continue reports its error again.
    fn take_error(&self) -> Option<Error>;
}
