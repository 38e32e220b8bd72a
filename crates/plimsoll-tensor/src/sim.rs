//! The simulated device: it has addresses without memory, and operations without arithmetic.
//!
//! It runs the same code as the CPU except for the kernels, and requests the same scratch memory, so its memory figures
//! match the CPU's to the byte. It can have any capacity. Reading a value from it is an error.

use plimsoll_alloc::{Config, DeviceMemory, SimDriver, StreamId};
use plimsoll_gpu::{Gpu, UnknownGpu};

use crate::alloc_conf;
use crate::backend::{Backend, WORKSPACE_BYTES};
use crate::clock::Clocks;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::Kernel;
use crate::properties::DeviceProperties;
use crate::view::{In, Launch, Out, View};

/// The size and name of a simulated device, and the GPU that it simulates, if any.
///
/// ```
/// use plimsoll_tensor::{Device, SimConfig};
/// let h200 = Device::sim(SimConfig::like("H200")?);
/// assert_eq!((h200.name(), h200.memory_info().total_bytes), ("sim:H200", 150_109_880_320));
/// let error = SimConfig::like("H9000").unwrap_err();
/// assert!(error.to_string().contains("known are H200, H100, "));
/// let expandable = Device::sim(SimConfig::like("H200")?.alloc_conf("expandable_segments:True")?);
/// let x = plimsoll_tensor::Tensor::zeros(&[3 << 20], &expandable)?;
/// assert_eq!((expandable.memory_allocated(), expandable.memory_reserved()), (12 << 20, 20 << 20));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimConfig {
    /// Bytes of device memory.
    pub capacity_bytes: u64,
    /// The name in errors and reports.
    pub name: String,
    gpu: Option<&'static Gpu>,
    allocator: Config,
}

impl SimConfig {
    /// A device called `sim` with this many bytes.
    pub fn new(capacity_bytes: u64) -> SimConfig {
        SimConfig { capacity_bytes, name: "sim".to_owned(), gpu: None, allocator: Config::default() }
    }

    /// A device that simulates a GPU such as `H200` or `rtx 4090`, with its memory and its
    /// [`properties`](crate::Device::properties). It is called, for example, `sim:H200`. Operators request the scratch
    /// memory of [`DeviceKind::Cuda`], and its allocator has the settings that [`Device::cuda`](crate::Device::cuda) would
    /// read from `PYTORCH_ALLOC_CONF` or `PYTORCH_CUDA_ALLOC_CONF`.
    ///
    /// # Errors
    /// If the name matches no GPU in the table of `plimsoll-gpu`, or several (the message lists the names); or if
    /// PyTorch would reject the settings.
    pub fn like(gpu: &str) -> Result<SimConfig> {
        let gpu = plimsoll_gpu::named(gpu).map_err(|why| {
            let is = if matches!(why, UnknownGpu::Ambiguous { .. }) { "ambiguous: it " } else { "" };
            Error::argument("sim", format!("`{gpu}` is {is}{why}"))
        })?;
        let name = format!("sim:{}", gpu.name);
        let allocator = alloc_conf::from_env(&name)?;
        Ok(SimConfig { capacity_bytes: gpu.memory_bytes, name, gpu: Some(gpu), allocator })
    }

    /// The same device with these allocator settings, in the format of PyTorch's variable: `expandable_segments:True`.
    ///
    /// # Errors
    /// If PyTorch would reject the settings.
    pub fn alloc_conf(mut self, settings: &str) -> Result<SimConfig> {
        self.allocator = alloc_conf::parse(settings)
            .map_err(|why| Error::argument("sim", format!("allocator settings `{settings}`: {why}")))?;
        Ok(self)
    }

    /// The same device under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> SimConfig {
        self.name = name.into();
        self
    }
}

pub(crate) struct Sim {
    name: String,
    memory: DeviceMemory,
    properties: DeviceProperties,
    kind: DeviceKind,
}

impl Sim {
    pub(crate) fn new(config: SimConfig) -> Sim {
        let SimConfig { capacity_bytes, name, gpu, allocator } = config;
        let driver = SimDriver::with_capacity(capacity_bytes);
        let properties = match gpu {
            Some(gpu) => DeviceProperties { memory_bytes: capacity_bytes, ..DeviceProperties::of_gpu(gpu) },
            None => DeviceProperties::of_memory(&name, capacity_bytes),
        };
        let kind = if gpu.is_some() { DeviceKind::Cuda } else { DeviceKind::Cpu };
        Sim { name, memory: DeviceMemory::new(allocator, driver), properties, kind }
    }

    /// The clocks of a simulated GPU.
    pub(crate) fn clocks(&self) -> Option<Clocks> {
        Clocks::new(&self.properties)
    }
}

impl Backend for Sim {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    fn has_values(&self) -> bool {
        false
    }

    fn facts(&self) -> DeviceFacts {
        DeviceFacts { kind: self.kind, capability: self.properties.capability }
    }

    fn kernel_type(&self, kernel: &dyn Kernel, dtype: DType) -> DType {
        if self.kind == DeviceKind::Cpu { kernel.cpu_type(dtype) } else { dtype }
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn run(&self, _: &dyn Kernel, _: Launch<'_>) -> Result<()> {
        Ok(())
    }

    fn write(&self, _: View<'_>, _: &[u8], _: StreamId) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: View<'_>, _: &mut Vec<u8>, _: StreamId) -> Result<()> {
        // Dispatch refuses this earlier; a device without values has no bytes to append.
        Ok(())
    }

    fn copy_in(&self, _: In<'_>, _: View<'_>, _: StreamId) -> Result<()> {
        Ok(())
    }

    fn copy_out(&self, _: View<'_>, _: Out<'_>, _: StreamId) -> Result<()> {
        Ok(())
    }

    fn workspace_bytes(&self) -> u64 {
        // The workspace of one stream, which every training run with matrix products has.
        if self.kind == DeviceKind::Cuda { WORKSPACE_BYTES } else { 0 }
    }
}
