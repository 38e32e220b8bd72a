//! The host as a device, with memory from the caching allocator and kernels on all cores.
//!
//! `host.rs` obtains segments from the operating system; the arithmetic on plain slices, which operators (`ops/`) call, is
//! in the crate `plimsoll-kernels`. The only unsafe code of this crate is here and in `view.rs`.

mod fallback;
mod host;

use plimsoll_alloc::{Config, DeviceMemory, Driver, Limit, StreamId};
pub(crate) use plimsoll_kernels as kernels;

pub(crate) use self::host::HostDriver;
use self::host::Segments;
use crate::backend::Backend;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::properties::DeviceProperties;
use crate::view::{In, Launch, Out, View};

/// The memory that a host device may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuConfig {
    /// Bytes of memory; by default the smaller of physical memory and the control group's limit.
    pub capacity_bytes: Option<u64>,
}

pub(crate) struct Cpu {
    memory: DeviceMemory,
    properties: DeviceProperties,
    segments: Segments,
}

impl Cpu {
    pub(crate) fn new(config: CpuConfig) -> Cpu {
        Cpu::with_driver(config, |driver| driver)
    }

    /// A host whose allocator uses another driver, which wraps the host's driver.
    pub(crate) fn with_driver<D: Driver + Send + 'static>(
        config: CpuConfig,
        wrap: impl FnOnce(Limit<HostDriver>) -> D,
    ) -> Cpu {
        let capacity = config.capacity_bytes.unwrap_or_else(host::capacity_bytes);
        let driver = HostDriver::new();
        let segments = driver.segments();
        let memory = DeviceMemory::new(Config::default(), wrap(Limit::new(driver, capacity)));
        Cpu { memory, properties: DeviceProperties::of_memory("cpu", capacity), segments }
    }
}

/// Turns a view of host memory that was made for reading into an `In`.
pub(crate) fn readable<'a>(view: &View<'a>) -> In<'a> {
    // SAFETY: callers have addresses of host memory (this back end's, or pinned), and hold the lock of the view's storage; with the
    // queues of `testing/late.rs`, one kernel runs at a time, while the memory is mapped.
    unsafe { In::new(*view) }
}

/// Turns a view of host memory that was made for writing into an `Out`; called once for each view.
pub(crate) fn writable<'a>(view: &View<'a>) -> Out<'a> {
    // SAFETY: as in `readable`; dispatch holds the lock exclusively, only this call uses the scratch memory, no input
    // shares a storage with an output, and the spans of outputs in one storage do not overlap (dispatch/in_place.rs).
    unsafe { Out::new(*view) }
}

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    fn has_values(&self) -> bool {
        true
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()> {
        kernel.cpu(CpuCall {
            ins: launch.ins.iter().map(readable).collect(),
            outs: launch.outs.iter().map(writable).collect(),
            scratch: launch.scratch.as_ref().map(writable),
        })
    }

    fn write(&self, to: View<'_>, bytes: &[u8], _: StreamId) -> Result<()> {
        writable(&to).bytes().copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, _: StreamId) -> Result<()> {
        bytes.extend_from_slice(readable(&from).bytes());
        Ok(())
    }

    fn is_host(&self) -> bool {
        true
    }

    fn copy_in(&self, from: In<'_>, to: View<'_>, _: StreamId) -> Result<()> {
        writable(&to).bytes().copy_from_slice(from.bytes());
        Ok(())
    }

    fn copy_out(&self, from: View<'_>, to: Out<'_>, _: StreamId) -> Result<()> {
        to.bytes().copy_from_slice(readable(&from).bytes());
        Ok(())
    }

    fn resident_bytes(&self) -> Option<u64> {
        host::resident_bytes(&self.segments)
    }
}
