//! The device that a test's program runs on.

use plimsoll::{CpuConfig, Device, allow_tf32_in_convolutions};

/// The CPU or, if `PLIMSOLL_TEST_DEVICE=cuda:N` is set, that GPU, which then computes convolutions in 32 bits, as PyTorch's
/// results were.
pub(crate) fn device() -> Device {
    match gpu() {
        Some(gpu) => gpu,
        None => Device::cpu(),
    }
}

/// A new CPU device, so that concurrent tests draw independent random numbers; or the GPU, with its generator seeded with 0.
pub(crate) fn seeded() -> Device {
    let device = gpu().unwrap_or_else(|| Device::cpu_with(CpuConfig::default()));
    device.manual_seed(0);
    device
}

/// The factor by which tolerances are larger than on the host, because sums on a GPU have a different order.
pub(crate) fn allowance() -> f64 {
    if gpu().is_some() { 4.0 } else { 1.0 }
}

fn gpu() -> Option<Device> {
    let name = std::env::var("PLIMSOLL_TEST_DEVICE").ok()?;
    let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    let number = number.unwrap_or_else(|| panic!("PLIMSOLL_TEST_DEVICE={name}: needs cuda:N"));
    allow_tf32_in_convolutions(false);
    Some(Device::cuda(number).unwrap())
}
