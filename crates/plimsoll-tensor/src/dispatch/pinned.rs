//! Copies to and from pinned memory.

use std::panic::Location;

use super::launch::{copy, lock, use_on_current_stream};
use crate::caller;
use crate::capturing;
use crate::cpu;
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::pinned;
use crate::storage::Storage;
use crate::stream::Event;

/// Copies between pinned host memory and a device, on that device's current stream. Both are contiguous. If the device computes
/// later, the copy is queued too, and the host waits for it before it uses the pinned memory.
pub(crate) fn copy_pinned(from: &Data, to: &Data, device: &Device, op: &'static str) -> Result<()> {
    let why = "the host cannot know when a replay has copied: copy before the step, or after it";
    capturing::refuse(device.number(), op, why)?;
    device.late_error()?;
    pinned::is_used_by(device);
    let on = device.current_stream();
    // Both are locked as if written: nothing else on the host may use the pinned memory until the copy is recorded.
    let locks = lock(&[], &[from, to], op)?;
    let enters = to.storage.device() == device;
    let (there, pinned) = if enters { (to, from) } else { (from, to) };
    use_on_current_stream(device, [there]);
    if device.has_values() && !from.layout.is_empty() {
        let (from, to) = (from.view(&locks), to.view(&locks));
        match enters {
            true => device.backend().copy_in(cpu::readable(&from), to, on.id())?,
            false => device.backend().copy_out(from, cpu::writable(&to), on.id())?,
        }
    }
    if device.queues().is_some() {
        let copied = Event::new();
        if let Err(error) = copied.record_now(&on) {
            // Without an event, the host cannot know when it may use the pinned memory, so it waits for all work.
            device.synchronize()?;
            return Err(error);
        }
        pinned.storage.is_copied_until(copied, &on);
    }
    Ok(())
}

/// A row-major copy in pinned memory, on the host.
#[track_caller]
pub(crate) fn copy_to_pinned(from: &Data, op: &'static str) -> Result<Data> {
    let pinned = empty_pinned(from, from.storage.device(), op)?;
    copy(from.storage.device(), from, &pinned)?;
    Ok(pinned)
}

/// Pinned memory for a row-major copy of `like`.
#[track_caller]
pub(crate) fn empty_pinned(like: &Data, host: &Device, op: &'static str) -> Result<Data> {
    empty_in_pinned(like.layout.shape(), like.dtype, host, op)
}

/// Pinned memory for a row-major tensor.
#[track_caller]
pub(crate) fn empty_in_pinned(
    shape: &[usize],
    dtype: DType,
    host: &Device,
    op: &'static str,
) -> Result<Data> {
    caller::called(Location::caller());
    let layout = Layout::contiguous(shape);
    let storage = Storage::alloc_pinned(host, (layout.len() * dtype.size()) as u64, op)?;
    Ok(Data { storage, layout, dtype })
}
