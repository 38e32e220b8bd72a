//! [`save_on_cpu`] keeps the tensors saved for the backward pass in host memory, with a pair of saved-tensor hooks.

use std::any::Any;
use std::sync::Arc;

use plimsoll_alloc::Tag;

use crate::autograd::{Hooks, with_hooks};
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::label::{Category, Span};
use crate::layout::Dims;
use crate::tensor::Tensor;

/// The kind of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// Ordinary memory of [`Device::cpu`].
    Pageable,
    /// Pinned memory, which devices copy to and from asynchronously. Like `pin_memory=True`.
    Pinned,
}

/// Runs `f`. The tensors that its operations save for the backward pass are copied to host memory and freed on the device,
/// and copied back when a derivative needs them. Like `torch.autograd.graph.save_on_cpu`. Parameters stay where they are: they
/// are on the device anyway, so a copy would save nothing.
///
/// ```
/// use plimsoll_tensor::save_on_cpu::{HostMemory, save_on_cpu};
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let x = Tensor::ones(&[1 << 20], &device)?.requires_grad_(true)?;
/// let y = save_on_cpu(HostMemory::Pinned, || x.exp()?.tanh()?.exp()?.tanh())?;
/// assert_eq!(device.memory_allocated(), 2 * 4 << 20); // the leaf and the last output, whose saved copy is on the host
/// y.sum()?.backward()?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// A simulated device has no values to copy, so no host memory is used; only the device's memory is accounted for.
pub fn save_on_cpu<T>(memory: HostMemory, f: impl FnOnce() -> T) -> T {
    with_hooks(Arc::new(OnCpu(memory)), f)
}

/// The hooks.
struct OnCpu(HostMemory);

impl Hooks for OnCpu {
    fn pack(&self, tensor: &Tensor) -> Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(pack(tensor, self.0)?))
    }

    fn unpack(&self, value: &(dyn Any + Send + Sync)) -> Result<Tensor> {
        let Some(packed) = value.downcast_ref() else { unreachable!("what `pack` made") };
        unpack(packed)
    }

    fn kept(&self, value: &(dyn Any + Send + Sync), visit: &mut dyn FnMut(&Data)) {
        match value.downcast_ref() {
            Some(Packed::Kept { tensor, .. } | Packed::OnHost { tensor, .. }) => visit(tensor.data()),
            Some(Packed::Simulated { .. }) | None => {}
        }
    }
}

/// A saved tensor.
enum Packed {
    /// The tensor is on its device, as it was saved, with the version of its storage at that time.
    Kept { tensor: Tensor, version: u32 },
    /// The tensor is on the host.
    OnHost { tensor: Tensor, device: Device },
    /// The tensor is from a device without values, and stored nowhere.
    Simulated { shape: Dims, dtype: DType, device: Device, tag: Tag },
}

fn pack(tensor: &Tensor, memory: HostMemory) -> Result<Packed> {
    let (host, device) = (Device::cpu(), tensor.device());
    let on_host = *device == host && (memory == HostMemory::Pageable || tensor.is_pinned());
    if on_host || tensor.category() == Category::Parameter {
        return Ok(Packed::Kept { tensor: tensor.clone(), version: tensor.data().storage.version() });
    }
    let device = device.clone();
    if !device.has_values() {
        let tag = tensor.data().storage.tag();
        return Ok(Packed::Simulated { shape: tensor.shape().into(), dtype: tensor.dtype(), device, tag });
    }
    let tensor = match memory {
        HostMemory::Pageable => tensor.to_device(&host)?,
        HostMemory::Pinned => {
            let there = tensor.to_device_non_blocking(&host)?;
            let pinned = there.pin_memory()?;
            pinned.set_owner(there.category(), there.label_id());
            pinned
        }
    };
    Ok(Packed::OnHost { tensor, device })
}

fn unpack(packed: &Packed) -> Result<Tensor> {
    match packed {
        Packed::Kept { tensor, version } => {
            let storage = &tensor.data().storage;
            let (saved, found) = (*version, storage.version());
            if saved != found {
                let changed_by = storage.changed_by();
                return Err(Error::SavedModified { node: "save_on_cpu", changed_by, saved, found });
            }
            Ok(tensor.clone())
        }
        Packed::OnHost { tensor, device } => tensor.to_device_non_blocking(device),
        Packed::Simulated { shape, dtype, device, tag } => {
            let _owner = Span::of_copy(*tag);
            Tensor::empty(shape, *dtype, device)
        }
    }
}
