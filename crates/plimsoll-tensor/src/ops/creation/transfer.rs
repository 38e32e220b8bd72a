//! Copies between host and device that the host does not wait for, and the pinned memory that they need.

use std::sync::Arc;

use smallvec::smallvec;

use crate::device::Device;
use crate::dispatch;
use crate::error::{Error, Result};
use crate::tensor::{Derivative, Grads, Node, Tensor};

impl Tensor {
    /// A copy in pinned host memory, outside the graph. Returns the tensor itself if it is already pinned. Like
    /// `Tensor.pin_memory`.
    ///
    /// ```
    /// use plimsoll_tensor::testing::LateConfig;
    /// use plimsoll_tensor::{Device, Stream, Tensor, with_stream};
    /// let (host, gpu) = (Device::cpu(), Device::late(LateConfig::default()));
    /// let batch = Tensor::ones(&[64, 784], &host)?.pin_memory()?;
    /// let copies = Stream::new(&gpu);
    /// let there = with_stream(&copies, || batch.to_device_non_blocking(&gpu))?; // returns at once
    /// gpu.current_stream().wait_stream(&copies)?;
    /// assert_eq!(there.sum()?.item::<f32>()?, 50_176.0);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is not on the host; [`Error::PinnedMemory`] if no pinned memory is available.
    #[track_caller]
    pub fn pin_memory(&self) -> Result<Tensor> {
        const NAME: &str = "pin_memory";
        if !self.device().is_host() {
            let device = self.device();
            let message =
                format!("a tensor on {device}: only the host has pinned memory; use `to_device` first");
            return Err(Error::argument(NAME, message));
        }
        if self.is_pinned() && self.is_contiguous() {
            return Ok(self.clone());
        }
        dispatch::copy_to_pinned(self.data(), NAME).map(Tensor::from_data)
    }

    /// A copy in pinned host memory, outside the graph, of a tensor on any device; also if it is pinned already. An asynchronous
    /// device copies on its current stream, while the host continues; code that then reads the copy waits for it. Later
    /// changes of this tensor do not change the copy. Like `Tensor.to("cpu", non_blocking=True, copy=True)`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::ones(&[2], &Device::cpu())?;
    /// let copy = x.copy_to_pinned()?;
    /// x.zero_()?;
    /// assert_eq!(copy.to_vec::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device computes no values; [`Error::PinnedMemory`] if no pinned memory is available.
    #[track_caller]
    pub fn copy_to_pinned(&self) -> Result<Tensor> {
        const NAME: &str = "copy_to_pinned";
        let here = self.device();
        if here.queues().is_some() {
            let from = self.detach().contiguous()?;
            let to = dispatch::empty_pinned(from.data(), &Device::cpu(), NAME)?;
            dispatch::copy_pinned(from.data(), &to, here, NAME)?;
            return Ok(Tensor::from_data(to));
        }
        if here.is_host() {
            return dispatch::copy_to_pinned(self.data(), NAME).map(Tensor::from_data);
        }
        Tensor::from_bytes_pinned(&self.to_bytes()?, self.dtype(), self.shape())
    }

    /// Whether the values are in pinned host memory. Like `Tensor.is_pinned`.
    pub fn is_pinned(&self) -> bool {
        self.data().storage.is_pinned()
    }

    /// [`Tensor::to_device`] without waiting. The copy runs on the current stream of the device: from pinned host memory to the
    /// device, or from the device to pinned host memory. When the host then uses the pinned memory, it waits for the copy.
    /// Values in unpinned memory are first copied to pinned memory, before this returns. Like `Tensor.to(device,
    /// non_blocking=True)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::to_device`], or if no pinned memory is available.
    #[track_caller]
    pub fn to_device_non_blocking(&self, device: &Device) -> Result<Tensor> {
        const NAME: &str = "to_device";
        let here = self.device();
        let moved = if self.is_pinned() && here != device {
            let from = self.detach().contiguous()?;
            // A pinned view that had to be gathered is no longer pinned.
            let from = from.pin_memory()?;
            let to = dispatch::empty(self.shape(), self.dtype(), device, "tensor")?;
            dispatch::copy_pinned(from.data(), &to, device, NAME)?;
            to
        } else if device.is_host() && here.queues().is_some() {
            let from = self.detach().contiguous()?;
            let to = dispatch::empty_pinned(from.data(), device, NAME)?;
            dispatch::copy_pinned(from.data(), &to, here, NAME)?;
            to
        } else {
            return self.to_device(device);
        };
        let back = || Back { device: here.clone() };
        Ok(dispatch::link_by(Tensor::from_data(moved), &[self], NAME, back))
    }
}

/// The derivative: copies the gradient to the tensor's original device.
struct Back {
    device: Device,
}

impl Derivative for Back {
    fn backward(&self, _: &Arc<Node>, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        Ok(smallvec![grads[0].as_ref().map(|grad| grad.to_device(&self.device)).transpose()?])
    }
}
