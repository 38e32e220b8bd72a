//! The properties of a device: its memory, bandwidths, rates and workspaces.
//!
//! A simulated GPU has the figures from the table in `plimsoll-gpu` ([`crate::SimConfig::like`]). For the
//! host, only the memory is known.

use plimsoll_gpu::Gpu;
pub use plimsoll_gpu::{Bandwidth, FlopRates};

use crate::dtype::DType;

/// The properties of a device. Like `torch.cuda.get_device_properties`, with the rates from its datasheet.
///
/// ```
/// use plimsoll_tensor::{DType, Device, SimConfig};
/// let device = Device::sim(SimConfig::like("H200")?);
/// let h200 = device.properties();
/// assert_eq!((h200.name.as_str(), h200.capability), ("NVIDIA H200", Some((9, 0))));
/// let bandwidth = h200.bandwidth.unwrap().memory_bytes_per_s as f64;
/// // One pass over the weights of a 7-billion-parameter model in 32 bits.
/// let seconds = 7e9 * 4.0 / bandwidth;
/// assert!(seconds > 5e-3 && seconds < 6e-3);
/// assert_eq!(h200.flops_per_s(DType::F32), Some(66_900_000_000_000));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// The product name of a real or simulated GPU, otherwise the device's own name.
    pub name: String,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// The compute capability (major, minor) of a GPU.
    pub capability: Option<(i32, i32)>,
    /// The number of streaming multiprocessors of a GPU.
    pub multiprocessors: Option<u32>,
    /// Memory, PCIe and NVLink bandwidth, if known.
    pub bandwidth: Option<Bandwidth>,
    /// Matrix-multiply rates, if known.
    pub flops: Option<FlopRates>,
    /// Bytes that PyTorch allocates for cuBLAS on a stream at its first matrix product; 0 without cuBLAS.
    pub blas_workspace_bytes: u64,
}

impl DeviceProperties {
    /// The properties of a device for which only the memory is known.
    pub fn of_memory(name: &str, memory_bytes: u64) -> DeviceProperties {
        DeviceProperties {
            name: name.to_owned(),
            memory_bytes,
            capability: None,
            multiprocessors: None,
            bandwidth: None,
            flops: None,
            blas_workspace_bytes: 0,
        }
    }

    /// The properties of a GPU in the table.
    pub(crate) fn of_gpu(gpu: &Gpu) -> DeviceProperties {
        DeviceProperties {
            name: gpu.card.to_owned(),
            memory_bytes: gpu.memory_bytes,
            capability: Some(gpu.capability),
            multiprocessors: u32::try_from(gpu.multiprocessors).ok(),
            bandwidth: Some(gpu.bandwidth),
            flops: Some(gpu.flops),
            blas_workspace_bytes: blas_workspace_bytes(gpu.capability),
        }
    }

    /// Matrix-multiply operations per second on elements of a type, if known; a multiply-add counts as two.
    pub fn flops_per_s(&self, dtype: DType) -> Option<u64> {
        let rates = self.flops?;
        match dtype.name() {
            "float64" => Some(rates.f64),
            "float32" => Some(rates.f32),
            "float16" => Some(rates.f16),
            "bfloat16" => rates.bf16,
            "int8" => rates.i8,
            _ => None,
        }
    }
}

/// PyTorch's `parseChosenWorkspaceSize` without `CUBLAS_WORKSPACE_CONFIG`.
fn blas_workspace_bytes((major, _): (i32, i32)) -> u64 {
    const KIB: u64 = 1 << 10;
    if matches!(major, 9 | 10 | 12) { 8 * 4096 * KIB } else { 2 * 4096 * KIB + 8 * 16 * KIB }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cublas_gets_more_room_from_hopper_on() {
        let workspace = |name| plimsoll_gpu::named(name).map(|gpu| blas_workspace_bytes(gpu.capability));
        for (name, bytes) in
            [("T4", 8_519_680), ("A100-80GB", 8_519_680), ("H100", 32 << 20), ("B200", 32 << 20)]
        {
            assert_eq!(workspace(name), Ok(bytes), "{name}");
        }
    }
}
