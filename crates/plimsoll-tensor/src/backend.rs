//! The device interface: everything that the runtime requires of a device. A back end outside of this crate implements
//! [`Backend`], and [`Device::with_backend`](crate::Device::with_backend) makes a device of it.
//!
//! A back end computes and copies; it never allocates. The runtime passes it outputs and scratch memory that are already
//! allocated, so the allocator of every device, including the simulated one, gets the same requests in the same order.
//! An asynchronous device also implements [`Queues`].
//!
//! A new device grows in these steps. It works after each of them:
//!
//! 1. A [`Driver`] gives segments of memory to the allocator: `DeviceMemory::new(Config::default(), driver)`. The functions of
//!    `plimsoll_alloc::driver_suite` check it.
//! 2. `write`, `read`, `copy_in` and `copy_out` move bytes, and `run` calls [`Launch::run_on_host`] for every operator: all models train, slowly.
//!    [`check_backend`](crate::check_backend) passes.
//! 3. `run` gets kernels of its own, one operator after another, by [`Kernel::name`].
//! 4. [`Queues`] make it asynchronous.
//!
//! `examples/own_device.rs` of the crate `plimsoll` is a device with memory of its own that the host cannot address.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_alloc::StreamId;
pub use plimsoll_alloc::{Addr, Config, DeviceMemory, Driver, DriverError, EventId, LabelId, Limit};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{Kernel, Varies};
use crate::properties::DeviceProperties;
use crate::view::{In, Out};
pub use crate::view::{Launch, QueuedView, View};

/// A device.
pub trait Backend: Send + Sync {
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

    /// The type in which this device's kernel of an operator reads and writes tensors of a type. If it differs, the runtime
    /// converts inputs and outputs. By default it is that of the host's kernel; a device with kernels of its own for 16-bit floats
    /// returns `dtype`. Not called for `float32`, which is never converted.
    fn kernel_type(&self, kernel: &dyn Kernel, dtype: DType) -> DType {
        kernel.cpu_type(dtype)
    }

    /// The device's properties, as reported to users.
    fn properties(&self) -> &DeviceProperties;

    /// The streams of an asynchronous device; `None` if all work is done when its call returns.
    fn queues(&self) -> Option<&dyn Queues> {
        None
    }

    /// Runs a kernel and returns when it is done. Not called on devices with queues. Tensors
    /// may have no elements; their addresses are then not addresses of the device.
    ///
    /// # Errors
    /// [`Error::NoKernel`] for an operator that this device does not support; the device's own errors.
    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()>;

    /// Copies from host memory into a contiguous tensor; the byte counts are equal. The caller may change the bytes
    /// once this returns, because an asynchronous device keeps a copy of them. Neither this nor another copy is called for zero bytes.
    ///
    /// # Errors
    /// The device's errors.
    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()>;

    /// Appends a contiguous tensor's bytes to host memory, after the work that is now on the stream. Called only if
    /// `has_values`.
    ///
    /// # Errors
    /// The device's errors; for an asynchronous device, those of earlier work.
    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()>;

    /// Whether its memory is host memory, so that its tensors may be in pinned memory.
    fn is_host(&self) -> bool {
        false
    }

    /// Copies pinned memory of the host to the device. Both are contiguous and have the same number of bytes. If the device is
    /// asynchronous, the pinned memory stays allocated and unchanged until the work is done. Called only if `has_values`.
    ///
    /// # Errors
    /// The device's errors.
    fn copy_in(&self, from: In<'_>, to: View<'_>, on: StreamId) -> Result<()>;

    /// Copies from the device to pinned memory of the host; otherwise like [`Backend::copy_in`].
    ///
    /// # Errors
    /// The device's errors.
    fn copy_out(&self, from: View<'_>, to: Out<'_>, on: StreamId) -> Result<()>;

    /// From now on, while the host waits for the device, it calls `gives_up` with the time that it has waited, and
    /// returns its error, if any. Collectives need this, because their work never ends if a rank is lost.
    fn wait_unless(&self, gives_up: GivesUp) {
        drop(gives_up);
    }

    /// Resets everything that this process has on the device, and returns the device's number; `None` for a device that
    /// cannot fault.
    fn reset(&self) -> Option<Result<u32>> {
        None
    }

    /// A library that was not found, so that slower kernels are used instead.
    fn missing_library(&self) -> Option<String> {
        None
    }

    /// Bytes of device memory that the device's libraries use as workspace, outside the allocator.
    fn workspace_bytes(&self) -> u64 {
        0
    }

    /// Bytes of this device's segments that are resident in host memory now, if its memory is host memory.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }
}

/// Why the host should stop waiting for a device, given how long it has waited.
pub type GivesUp = Box<dyn Fn(Duration) -> Option<Error> + Send + Sync>;

/// The workspace of cuBLASLt and cuDNN on each stream of a GPU: the size that PyTorch uses on Hopper and newer GPUs.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;

/// Captured work of a device. Drop waits until no replay is running.
pub trait Replays: Send + Sync {
    /// The kernels that vary between replays, in the order in which they were queued.
    fn varying(&self) -> &[Varies];

    /// The current version of a varying kernel.
    fn kernel(&self, at: usize) -> &Arc<dyn Kernel>;

    /// Replaces a varying kernel in all later replays.
    ///
    /// # Errors
    /// [`Error::Captured`] if the new kernel needs different launches: the step must then be captured again.
    fn change(&mut self, at: usize, kernel: Arc<dyn Kernel>) -> Result<()>;

    /// Queues all the work on the captured stream.
    fn replay(&self) -> Result<()>;
}

/// The interface of an asynchronous device. Work is queued on streams; each stream runs its work in the order in which
/// it was queued.
///
/// Addresses stay valid until the work is done. The allocator reuses a freed block on its own stream at once, which is
/// safe because a stream runs its work in order. It reuses the block on another stream only after the events of all
/// streams that use it (`plimsoll_alloc::Driver::record`, which the device's driver implements with the same streams).
/// If two streams work on one storage, the program orders them with events.
pub trait Queues: Send + Sync {
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

    /// Waits on the host until all work on all streams is done.
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
