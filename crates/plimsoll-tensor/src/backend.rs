//! The seam to devices: all that the runtime asks of one.
//!
//! A back end computes and copies; it never allocates. Outputs and scratch come to it ready-made through
//! `dispatch.rs`, so that every device, the simulated one too, sees the same requests in the same order.
//! To add a device, implement [`Backend`] and hand it to `Device::new` in `device.rs`.

use plimsoll_alloc::{DeviceMemory, StreamId};

use crate::error::Result;
use crate::op::Op;
use crate::view::View;

/// What a device must do.
pub(crate) trait Backend: Send + Sync {
    /// The device's name, as in `torch.device`: `cpu`, `sim`.
    fn name(&self) -> &str;

    /// The allocator that every byte on this device comes from.
    fn memory(&self) -> &DeviceMemory;

    /// Whether tensors here have values that can be read.
    fn has_values(&self) -> bool;

    /// Bytes of scratch that `run` will need for this operation. Asked before, so that kernels never
    /// allocate; depends on sizes alone, so that a simulation can answer the same.
    fn scratch_bytes(&self, op: &Op) -> u64;

    /// Computes. Outputs never share memory with inputs, except that an in-place operation's output is
    /// also what it reads.
    fn run(
        &self,
        op: &Op,
        ins: &[View<'_>],
        outs: &[View<'_>],
        scratch: Option<View<'_>>,
        on: StreamId,
    ) -> Result<()>;

    /// Copies from host memory into a contiguous tensor; the byte counts are equal.
    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()>;

    /// Appends a contiguous tensor's bytes to host memory. Asked only where `has_values`.
    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()>;

    /// Host bytes of this device's segments that are resident now, where the device is host memory.
    fn resident_bytes(&self) -> Option<u64>;
}
