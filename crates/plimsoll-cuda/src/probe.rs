//! Measures how much GPU memory a process uses outside its requests: [`Probe`].
//!
//! It uses only the driver and NVML, so that nothing else uses memory at the same time.

use std::ffi::{CStr, c_int, c_void};
use std::thread;
use std::time::Duration;

use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::nvml::{Memory, Nvml};
use crate::search::Search;

/// What a GPU reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedFacts {
    /// The product's name.
    pub name: String,
    /// The compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// The maximum number of resident threads per multiprocessor.
    pub threads_per_multiprocessor: i32,
    /// The maximum number of resident blocks per multiprocessor.
    pub blocks_per_multiprocessor: i32,
    /// The size of the L2 cache.
    pub l2_bytes: i32,
    /// The shared memory of a multiprocessor.
    pub shared_bytes_per_multiprocessor: i32,
    /// The maximum shared memory of a block that opts in.
    pub shared_bytes_per_block: i32,
    /// The width of the memory bus.
    pub bus_bits: i32,
    /// The maximum clock of the multiprocessors.
    pub clock_khz: i32,
    /// The maximum clock of the memory.
    pub memory_clock_khz: i32,
    /// Whether it shares the host's memory.
    pub is_integrated: bool,
    /// Whether it can access the host's pageable memory.
    pub reaches_host: bool,
    /// The total memory that CUDA reports.
    pub total_bytes: u64,
    /// The memory that the driver reserves; `None` if NVML does not count this GPU's memory separately.
    pub reserve_bytes: Option<u64>,
    /// The memory that other programs use, as far as NVML counts it.
    pub others_bytes: Option<u64>,
    /// The driver's version, such as `580.159.04`; empty without NVML.
    pub driver: String,
    /// The newest version of CUDA that the driver supports, major and minor.
    pub cuda: (i32, i32),
    /// The number of GPUs that CUDA sees.
    pub devices: u32,
}

/// The GPU that is measured.
pub struct Probe {
    driver: Driver,
    device: c_int,
    /// NVML, with its number for this GPU, unless it counts memory other than this GPU's.
    nvml: Option<(Nvml, u32)>,
    facts: ProbedFacts,
    init_bytes: Option<u64>,
    context: Option<Handle>,
}

/// A kernel in PTX with `room` bytes of local memory per thread, to which it writes at an index that the compiler does
/// not know.
fn kernel(capability: (i32, i32), room: u32) -> Vec<u8> {
    // The oldest text that the driver of each generation accepts.
    let (version, target) = match capability {
        (9.., _) => ("7.8", "sm_90"),
        (8, _) => ("7.0", "sm_80"),
        (7, 5) => ("6.3", "sm_75"),
        (7, _) => ("6.3", "sm_70"),
        _ => ("6.3", "sm_60"),
    };
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n\
         .visible .entry probe(.param .u64 out, .param .u32 at)\n{{\n\
         .local .align 4 .b8 room[{room}];\n.reg .b64 %a<4>;\n.reg .b32 %i<3>;\n\
         ld.param.u64 %a0, [out];\nld.param.u32 %i0, [at];\ncvta.to.global.u64 %a1, %a0;\nmov.u64 %a2, room;\n\
         mul.wide.u32 %a3, %i0, 4;\nadd.s64 %a3, %a2, %a3;\nst.local.u32 [%a3], %i0;\nld.local.u32 %i1, [%a2+64];\n\
         st.global.u32 [%a1], %i1;\nret;\n}}\n\0"
    )
    .into_bytes()
}

const KERNEL: &CStr = c"probe";

/// How often and how long to wait for the driver to free memory.
const SETTLE: (u32, Duration) = (20, Duration::from_millis(50));

impl Probe {
    /// Opens a GPU by CUDA's number. No context is created.
    ///
    /// # Errors
    /// If the driver is missing or too old, or there is no such GPU.
    pub fn open(ordinal: u32, search: &Search) -> Result<Probe> {
        let nvml = Nvml::open(search).ok();
        let before: Vec<Option<Memory>> = nvml.as_ref().and_then(|it| it.all().ok()).unwrap_or_default();
        let driver = Driver::open(search)?;
        let device = driver.device(ordinal)?;
        let attribute = |number| driver.attribute(number, device);
        let version = driver.version()?;
        let total_bytes = driver.total_bytes(device)?;
        let pci_bus_id = driver.pci_bus_id(device)?;
        let text = nvml.as_ref().and_then(|it| it.driver().ok()).unwrap_or_default();
        // On a MIG slice, NVML counts the whole GPU.
        let counts = |memory: &Memory| {
            memory.total.saturating_sub(memory.reserved).abs_diff(total_bytes) < total_bytes / 100
        };
        let counted = nvml.and_then(|nvml| {
            let number = nvml.number(&pci_bus_id).ok()?;
            let memory = nvml.memory(number).ok().filter(counts)?;
            Some((nvml, number, memory))
        });
        let earlier =
            counted.as_ref().and_then(|(_, number, _)| before.get(*number as usize).copied().flatten());
        let init_bytes =
            counted.as_ref().zip(earlier).map(|((.., now), was)| now.used.saturating_sub(was.used));
        let facts = ProbedFacts {
            name: driver.name(device)?,
            capability: (attribute(75)?, attribute(76)?),
            multiprocessors: attribute(16)?,
            threads_per_multiprocessor: attribute(39)?,
            blocks_per_multiprocessor: attribute(106)?,
            l2_bytes: attribute(38)?,
            shared_bytes_per_multiprocessor: attribute(81)?,
            shared_bytes_per_block: attribute(97)?,
            bus_bits: attribute(37)?,
            clock_khz: attribute(13)?,
            memory_clock_khz: attribute(36)?,
            is_integrated: attribute(18)? != 0,
            reaches_host: attribute(88)? != 0,
            total_bytes,
            reserve_bytes: counted.as_ref().map(|(.., memory)| memory.total.saturating_sub(total_bytes)),
            others_bytes: earlier.map(|memory| memory.used),
            driver: text,
            cuda: (version / 1000, version % 1000 / 10),
            devices: driver.device_count()?,
        };
        let nvml = counted.map(|(nvml, number, _)| (nvml, number));
        Ok(Probe { driver, device, nvml, facts, init_bytes, context: None })
    }

    /// What the GPU reports about itself.
    pub fn facts(&self) -> &ProbedFacts {
        &self.facts
    }

    /// The bytes that initializing the driver took; they are part of the context. `None` if NVML does not count them.
    pub fn init_bytes(&self) -> Option<u64> {
        self.init_bytes
    }

    /// The bytes that are in use on the GPU. `None` before the context exists, if only CUDA counts them.
    fn used_bytes(&self) -> Result<Option<u64>> {
        if let Some((nvml, number)) = &self.nvml {
            return Ok(Some(nvml.memory(*number)?.used));
        }
        let used = |(free, total): (u64, u64)| total.saturating_sub(free);
        self.context.map(|_| self.driver.memory_info().map(used)).transpose()
    }

    /// The bytes that `work` uses.
    fn grows(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let before = self.used_bytes()?.unwrap_or(0);
        work()?;
        self.driver.synchronize()?;
        Ok(self.used_bytes()?.unwrap_or(0).saturating_sub(before))
    }

    /// Creates the context. Returns its size in bytes, including [`Probe::init_bytes`].
    ///
    /// # Errors
    /// Errors of the driver, or if the GPU lacks memory for a context.
    pub fn enter(&mut self) -> Result<u64> {
        let before = self.used_bytes()?;
        let context = self.driver.retain_context(self.device)?;
        self.driver.bind(context)?;
        self.context = Some(context);
        self.driver.synchronize()?;
        let used = self.used_bytes()?.unwrap_or(0);
        // If only CUDA counts, everything that is in use counts as the context.
        Ok(used.saturating_sub(before.unwrap_or(0)) + self.init_bytes.unwrap_or(0))
    }

    /// The bytes that `count` requests for `bytes` bytes use together. They are freed again.
    ///
    /// # Errors
    /// Errors of the driver. Needs a context.
    pub fn requests(&self, count: usize, bytes: u64) -> Result<u64> {
        let mut held = Vec::new();
        let grown =
            self.grows(|| (0..count).try_for_each(|_| self.driver.alloc(bytes).map(|it| held.push(it))));
        let freed: Result<Vec<()>> = held.into_iter().map(|it| self.driver.free(it)).collect();
        freed.and(grown)
    }

    /// How many bytes the context grows by when a kernel with `room` bytes of stack per thread is launched.
    ///
    /// # Errors
    /// Errors of the driver. Needs a context.
    pub fn stack(&self, room: u32) -> Result<u64> {
        let function = self.driver.load(&kernel(self.facts.capability, room), KERNEL)?;
        let mut out = self.driver.alloc(4096)?;
        let (mut at, stream) = (1_u32, 0);
        let grown = self.grows(|| {
            let mut arguments: [*mut c_void; 2] = [(&raw mut out).cast(), (&raw mut at).cast()];
            self.driver.launch(function, [1, 1, 1], 1, 0, stream, &mut arguments)
        });
        self.driver.free(out).and(grown)
    }

    /// The bytes that `count` streams use. They are destroyed again.
    ///
    /// # Errors
    /// Errors of the driver. Needs a context.
    pub fn streams(&self, count: usize) -> Result<u64> {
        let mut made = Vec::new();
        let grown =
            self.grows(|| (0..count).try_for_each(|_| self.driver.create_stream().map(|it| made.push(it))));
        let ended: Result<Vec<()>> = made.into_iter().map(|it| self.driver.destroy_stream(it)).collect();
        ended.and(grown)
    }

    /// Destroys the context, and waits until its memory is free.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn leave(&mut self) -> Result<()> {
        if self.context.take().is_none() {
            return Ok(());
        }
        self.driver.release_context(self.device)?;
        let mut last = self.used_bytes()?;
        for _ in 0..SETTLE.0 {
            thread::sleep(SETTLE.1);
            let now = self.used_bytes()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_text_for_its_generation_that_ends_with_zero() {
        for (capability, target) in
            [((9, 0), "sm_90"), ((12, 1), "sm_90"), ((8, 6), "sm_80"), ((7, 5), "sm_75")]
        {
            let text = String::from_utf8(kernel(capability, 4096)).unwrap();
            assert!(text.contains(&format!(".target {target}\n")), "{text}");
            assert!(text.contains("room[4096]") && text.ends_with("}\n\0"), "{text}");
        }
    }
}
