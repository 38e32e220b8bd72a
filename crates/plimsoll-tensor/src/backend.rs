//! The seam to devices: all that the runtime asks of one.
//!
//! A back end computes and copies; it never allocates. Outputs and scratch come to it ready-made through
//! `road.rs`, so that every device, the simulated one too, sees the same requests in the same order.
//! To add a device, implement [`Backend`] and hand it to `Device::new` in `device.rs`.

use plimsoll_alloc::{DeviceMemory, StreamId};

use crate::error::Result;
use crate::kernel::Kernel;
use crate::view::View;

/// What kind of kernels a device runs or, if it is simulated, stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Those of the host.
    Cpu,
}

/// What an operator may know of a device before it runs there: the same on a simulated device as on the one
/// that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Which kernels run.
    pub kind: DeviceKind,
}

/// One run of a kernel. Outputs share no memory with inputs or each other.
pub(crate) struct Launch<'a> {
    pub(crate) ins: &'a [View<'a>],
    pub(crate) outs: &'a [View<'a>],
    pub(crate) scratch: Option<View<'a>>,
}

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
        DeviceFacts { kind: DeviceKind::Cpu }
    }

    /// Computes.
    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()>;

    /// Copies from host memory into a contiguous tensor; the byte counts are equal.
    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()>;

    /// Appends a contiguous tensor's bytes to host memory. Asked only where `has_values`.
    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()>;

    /// Host bytes of this device's segments that are resident now, where the device is host memory.
    fn resident_bytes(&self) -> Option<u64>;
}
