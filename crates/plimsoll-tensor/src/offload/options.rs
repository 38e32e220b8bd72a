//! What leaves a device, and what a copy costs.

use crate::clock;
use crate::device::Device;

/// The most bytes of copies in progress, in each direction, in multiples of the largest tensor.
pub(crate) const IN_FLIGHT: u64 = 2;

/// What [`OffloadActivations`](super::OffloadActivations) copies to the host.
///
/// ```
/// use plimsoll_tensor::offload::OffloadOptions;
/// let options = OffloadOptions::from(8 << 30); // at most 8 GiB
/// assert_eq!((options.min_tensor_bytes, options.wait), (1 << 20, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadOptions {
    /// The most bytes of one forward pass that wait on the host. Default: no limit.
    pub max_bytes: u64,
    /// Smaller tensors stay on the device. Default: 1 MiB.
    pub min_tensor_bytes: u64,
    /// Whether tensors leave even if their copies take longer than the operations with which they overlap, so that the
    /// device waits. By default, a tensor leaves only if its copy is estimated to be hidden: by the datasheet's rates,
    /// or by nominal ones for a device without them.
    pub wait: bool,
}

impl Default for OffloadOptions {
    fn default() -> OffloadOptions {
        OffloadOptions { max_bytes: u64::MAX, min_tensor_bytes: 1 << 20, wait: false }
    }
}

impl From<u64> for OffloadOptions {
    /// Offloads at most this many bytes, with the other options at their defaults.
    fn from(max_bytes: u64) -> OffloadOptions {
        OffloadOptions { max_bytes, ..OffloadOptions::default() }
    }
}

/// The estimated seconds of a copy of these bytes to the host. `None` if the device's tensors do not leave it.
pub(crate) fn copy_seconds(device: &Device, bytes: u64) -> Option<f64> {
    let is_moved = device.queues().is_some() || !device.has_values();
    is_moved.then(|| {
        let known = clock::copy_seconds(device.properties(), bytes);
        known.unwrap_or(bytes as f64 / NOMINAL_BYTES_PER_S)
    })
}

/// A copy's rate to the host on a device whose rates are unknown, in bytes a second.
const NOMINAL_BYTES_PER_S: f64 = 1e10;
