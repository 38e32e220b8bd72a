//! `--device`: where a job runs.

use std::str::FromStr;

use clap::Args;
use plimsoll::{Bytes, Device, SimConfig};

use crate::bytes;
use crate::exit::{Exit, Failure};

/// The device to train on, and the limit on its memory.
#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// Reserve at most this many bytes, such as 64MiB [default: the whole device]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    memory_limit: Option<u64>,
    /// Where to run: `cpu`; `cuda` or `cuda:N`, an NVIDIA GPU; `sim`, which computes nothing but accounts for every byte (it reads only the
    /// headers of images); or `sim:GPU`, such as sim:H200, the same with that GPU's memory
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: On,
    /// Memory of the simulated device, such as 80GiB [default: this machine's]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    capacity: Option<u64>,
}

/// Where to run: the value of `--device`.
#[derive(Clone, Debug)]
enum On {
    /// This machine's processors and memory.
    Cpu,
    /// A device that computes nothing and accounts for every byte.
    Sim,
    /// A device like `Sim`, with the memory of a GPU.
    Like(Box<SimConfig>),
    /// An NVIDIA GPU: the one with this number, or else the first. With several ranks, each rank has its own GPU.
    Cuda(Option<u32>),
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> Result<On, String> {
        match (text, text.strip_prefix("sim:")) {
            ("cpu", _) => Ok(On::Cpu),
            ("sim", _) => Ok(On::Sim),
            ("cuda", _) => Ok(On::Cuda(None)),
            _ if text.starts_with("cuda:") => crate::cuda::ordinal(text).map(|number| On::Cuda(Some(number))),
            (_, Some(gpu)) => {
                SimConfig::like(gpu).map(|gpu| On::Like(Box::new(gpu))).map_err(|error| error.to_string())
            }
            _ => {
                Err("a device is `cpu`, `cuda`, `cuda:N`, `sim` or a simulated GPU such as `sim:H200`"
                    .to_owned())
            }
        }
    }
}

impl DeviceArgs {
    /// The bytes that may be reserved, if that is limited.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    /// Whether values are computed.
    pub(super) fn has_values(&self) -> bool {
        matches!(self.device, On::Cpu | On::Cuda(_))
    }

    /// Whether the device is the CPU.
    pub(super) fn is_cpu(&self) -> bool {
        matches!(self.device, On::Cpu)
    }

    /// Whether the device is a real GPU.
    pub(super) fn is_cuda(&self) -> bool {
        matches!(self.device, On::Cuda(_))
    }

    /// Whether the device is a GPU that the user chose by number.
    pub(super) fn is_numbered_gpu(&self) -> bool {
        matches!(self.device, On::Cuda(Some(_)))
    }

    /// The device, within its limit. `rank_gpu` is the number of this rank's GPU.
    pub(super) fn open(&self, rank_gpu: u32) -> Result<Device, Failure> {
        let device = match (&self.device, self.capacity) {
            (On::Cpu, None) => Device::cpu(),
            (On::Cuda(ordinal), None) => Device::cuda(ordinal.unwrap_or(rank_gpu))?,
            (On::Cpu | On::Cuda(_), Some(_)) => {
                let message = "--capacity sets the size of a simulated device: add `--device sim`, or limit this \
                               device with `--memory-limit`";
                return Err(Failure::new(Exit::Usage, message));
            }
            (On::Like(gpu), Some(_)) => {
                let message = format!(
                    "--capacity sets the size of `--device sim`, but {} already has {}: leave out --capacity, or limit the GPU \
                     with `--memory-limit`",
                    gpu.name,
                    Bytes(gpu.capacity_bytes)
                );
                return Err(Failure::new(Exit::Usage, message));
            }
            (On::Like(gpu), None) => Device::sim(gpu.as_ref().clone()),
            (On::Sim, Some(capacity)) => Device::sim(SimConfig::new(capacity)),
            (On::Sim, None) => Device::sim(SimConfig::new(Device::cpu().memory_info().total_bytes)),
        };
        device.set_memory_limit(self.memory_limit);
        Ok(device)
    }

    /// A simulated device like `device`, which these options opened. Limits are tried on it. For a GPU that is not listed, it is the
    /// nearest listed one.
    pub(super) fn simulated(&self, device: &Device) -> SimConfig {
        let gpu = device.properties();
        let nearest = || plimsoll_gpu::nearest_of(gpu.memory_bytes, gpu.capability?);
        match &self.device {
            On::Like(gpu) => gpu.as_ref().clone(),
            On::Cuda(_) => SimConfig::like(&gpu.name)
                .ok()
                .or_else(|| SimConfig::like(nearest()?.name).ok())
                .unwrap_or_else(|| SimConfig::new(0)),
            On::Cpu | On::Sim => SimConfig::new(0),
        }
    }
}
