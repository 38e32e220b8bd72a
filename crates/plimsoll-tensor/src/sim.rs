//! The simulated device: addresses without memory, operations without arithmetic.
//!
//! It runs the same code as the CPU up to the kernels, and asks for the same scratch, so its memory
//! figures are the CPU's to the byte. It can have any capacity. Reading a value from it is an error.

use plimsoll_alloc::{Config, DeviceMemory, SimDriver, StreamId};

use crate::backend::{Backend, Launch};
use crate::error::Result;
use crate::kernel::Kernel;
use crate::view::View;

/// How large a simulated device is and what it is called.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Bytes of device memory.
    pub capacity_bytes: u64,
    /// The name in errors and reports.
    pub name: String,
}

impl SimConfig {
    /// A device called `sim` with this many bytes.
    pub fn new(capacity_bytes: u64) -> SimConfig {
        SimConfig { capacity_bytes, name: "sim".to_owned() }
    }
}

pub(crate) struct Sim {
    name: String,
    memory: DeviceMemory,
}

impl Sim {
    pub(crate) fn new(config: SimConfig) -> Sim {
        let driver = SimDriver::with_capacity(config.capacity_bytes);
        Sim { name: config.name, memory: DeviceMemory::new(Config::default(), driver) }
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

    fn run(&self, _: &dyn Kernel, _: Launch<'_>) -> Result<()> {
        Ok(())
    }

    fn write(&self, _: View<'_>, _: &[u8], _: StreamId) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: View<'_>, _: &mut Vec<u8>, _: StreamId) -> Result<()> {
        // the road refuses before it comes here; a device without values has no bytes to append.
        Ok(())
    }

    fn resident_bytes(&self) -> Option<u64> {
        None
    }
}
