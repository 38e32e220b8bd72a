//! The host as a device: memory through the caching allocator, kernels on all cores.
//!
//! `host.rs` obtains segments from the operating system, `run.rs` turns an [`Op`] into a kernel call,
//! `kernels/` hold the arithmetic on plain slices. Unsafe code of this crate lives here and in `view.rs`.

mod host;
pub(crate) mod kernels;
mod random;
mod run;

pub(crate) use run::scratch_bytes;

use plimsoll_alloc::{Config, DeviceMemory, Limit, StreamId};

use self::host::{HostDriver, Segments};
use crate::backend::Backend;
use crate::error::Result;
use crate::op::Op;
use crate::view::View;

/// How much memory a host device may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuConfig {
    /// Bytes of memory; by default the smaller of physical memory and the control group's limit.
    pub capacity_bytes: Option<u64>,
}

pub(crate) struct Cpu {
    memory: DeviceMemory,
    segments: Segments,
}

impl Cpu {
    pub(crate) fn new(config: CpuConfig) -> Cpu {
        let capacity = config.capacity_bytes.unwrap_or_else(host::capacity_bytes);
        let driver = HostDriver::new();
        let segments = driver.segments();
        let memory = DeviceMemory::new(Config::default(), Limit::new(driver, capacity));
        Cpu { memory, segments }
    }
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

    fn scratch_bytes(&self, op: &Op) -> u64 {
        scratch_bytes(op)
    }

    fn run(
        &self,
        op: &Op,
        ins: &[View<'_>],
        outs: &[View<'_>],
        scratch: Option<View<'_>>,
        _: StreamId,
    ) -> Result<()> {
        run::run(op, ins, outs, scratch)
    }

    fn write(&self, to: View<'_>, bytes: &[u8], _: StreamId) -> Result<()> {
        run::write(to, bytes);
        Ok(())
    }

    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, _: StreamId) -> Result<()> {
        run::read_bytes(from, bytes);
        Ok(())
    }

    fn resident_bytes(&self) -> Option<u64> {
        host::resident_bytes(&self.segments)
    }
}
