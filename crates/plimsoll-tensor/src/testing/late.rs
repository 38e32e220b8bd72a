//! The late device: an asynchronous device that runs the host's kernels on one thread for each stream.
//!
//! To a program it behaves like a GPU: calls return before the work is done, streams run concurrently, errors come
//! later. Delays are random, from a seed. Kernels of different streams run one at a time, so a program that forgets to
//! order its streams gets wrong values and never a data race.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_alloc::{Addr, DeviceMemory, Driver, DriverError, EventId, LabelId, MemoryInfo, StreamId};

use super::captured::{Captured, Captures, Operands, Piece};
use super::streams::{Cause, NAME, Pauses, Streams};
use crate::backend::{Backend, Queues, Replays};
use crate::cpu::{Cpu, CpuConfig, readable, writable};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::label;
use crate::properties::DeviceProperties;
use crate::view::{In, Launch, Out, View};

/// The configuration of the late device.
///
/// ```
/// use plimsoll_tensor::testing::LateConfig;
/// use plimsoll_tensor::{Device, Tensor};
/// let device = Device::late(LateConfig { seed: 7, ..LateConfig::default() });
/// let x = Tensor::ones(&[2, 2], &device)?; // returns at once
/// let y = x.matmul(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0; 4]); // waits
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LateConfig {
    /// The seed of the delays.
    pub seed: u64,
    /// The longest delay before a piece of work; the shortest is zero.
    pub longest_delay: Duration,
    /// Bytes of memory; by default the same as the host's.
    pub capacity_bytes: Option<u64>,
    /// Pauses streams, for tests in which work must definitely be late.
    pub pauses: Pauses,
    /// Whether operations record the streams that use a tensor's memory. Without that, memory that is freed early is
    /// reused for other tensors while it is still being read.
    pub records_uses: bool,
}

impl Default for LateConfig {
    fn default() -> LateConfig {
        let (longest_delay, pauses) = (Duration::from_micros(100), Pauses::default());
        LateConfig { seed: 0, longest_delay, capacity_bytes: None, pauses, records_uses: true }
    }
}

impl Device {
    /// An asynchronous device with the host's kernels: see [`LateConfig`].
    pub fn late(config: LateConfig) -> Device {
        Device::with_backend(Late::new(config))
    }
}

struct Late {
    host: Arc<Cpu>,
    streams: Arc<Streams>,
    captures: Arc<Captures>,
    records_uses: bool,
}

impl Late {
    fn new(config: LateConfig) -> Late {
        let streams = Arc::new(Streams::new(config.seed, config.longest_delay, config.pauses));
        let memory = CpuConfig { capacity_bytes: config.capacity_bytes };
        let captures = Arc::new(Captures::default());
        let (of_driver, captured) = (streams.clone(), captures.clone());
        let host =
            Cpu::with_driver(memory, |driver| LateDriver { driver, streams: of_driver, captures: captured });
        Late { host: Arc::new(host), streams, captures, records_uses: config.records_uses }
    }

    /// Queues work for the host's memory, which stays mapped until the work is done.
    fn queue(
        &self,
        on: StreamId,
        cause: Cause,
        work: impl FnOnce(&Cpu) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let host = self.host.clone();
        self.streams.queue(on, cause, move || work(&host))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.streams.close();
    }
}

impl Backend for Late {
    fn name(&self) -> &str {
        NAME
    }

    fn memory(&self) -> &DeviceMemory {
        self.host.memory()
    }

    fn has_values(&self) -> bool {
        true
    }

    fn queues(&self) -> Option<&dyn Queues> {
        Some(self)
    }

    fn properties(&self) -> &DeviceProperties {
        self.host.properties()
    }

    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()> {
        self.streams.wait_all();
        self.streams.alone(|| self.host.run(kernel, launch))
    }

    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()> {
        let (to, bytes) = (to.to_queued(), bytes.to_vec());
        let cause = Cause { op: "to_device", owner: label::current_layer() };
        self.queue(on, cause, move |host| host.write(to.view(), &bytes, on))
    }

    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()> {
        let from = from.to_queued();
        let read = Arc::new(Mutex::new(Vec::new()));
        let there = read.clone();
        let cause = Cause { op: "to_host", owner: label::current_layer() };
        self.queue(on, cause, move |host| {
            host.read(from.view(), &mut there.lock().unwrap_or_else(PoisonError::into_inner), on)
        })?;
        self.streams.wait(self.streams.record(on));
        bytes.append(&mut read.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    fn copy_in(&self, from: In<'_>, to: View<'_>, on: StreamId) -> Result<()> {
        let (from, to) = (from.view().to_queued(), to.to_queued());
        let cause = Cause { op: "copy", owner: label::current_layer() };
        self.queue(on, cause, move |host| host.copy_in(readable(&from.view()), to.view(), on))
    }

    fn copy_out(&self, from: View<'_>, to: Out<'_>, on: StreamId) -> Result<()> {
        let (from, to) = (from.to_queued(), to.view().to_queued());
        let cause = Cause { op: "copy", owner: label::current_layer() };
        self.queue(on, cause, move |host| host.copy_out(from.view(), writable(&to.view()), on))
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.host.resident_bytes()
    }
}

impl Queues for Late {
    fn records_uses(&self) -> bool {
        self.records_uses
    }

    fn launch(
        &self,
        kernel: Arc<dyn Kernel>,
        launch: Launch<'_>,
        on: StreamId,
        owner: LabelId,
    ) -> Result<()> {
        self.streams.sweep();
        let cause = Cause { op: kernel.name(), owner };
        let piece = Piece { kernel, operands: Arc::new(Operands::of(&launch)), cause };
        if let Some(piece) = self.captures.note(piece) {
            piece.queue(&self.streams, &self.host, on)?;
        }
        Ok(())
    }

    fn begin_capture(&self, on: StreamId) -> Result<()> {
        self.captures.begin(on);
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn Replays>> {
        let (on, pieces) = self.captures.end();
        Ok(Box::new(Captured::new(self.streams.clone(), self.host.clone(), on, pieces)))
    }

    fn abandon_capture(&self) {
        drop(self.captures.end());
    }

    fn record(&self, on: StreamId) -> Result<EventId> {
        Ok(self.streams.record(on))
    }

    fn is_done(&self, event: EventId) -> Result<bool> {
        Ok(self.streams.is_done(event))
    }

    fn wait(&self, event: EventId) -> Result<()> {
        self.streams.wait(event);
        Ok(())
    }

    fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()> {
        let (Some(queue), pieces) = self.streams.of(event) else { return Ok(()) };
        self.streams.push(stream, |_| Box::new(move || queue.wait_for(pieces)))
    }

    fn wait_all(&self) -> Result<()> {
        self.streams.wait_all();
        self.streams.sweep();
        Ok(())
    }

    fn take_error(&self) -> Option<Error> {
        self.streams.take_error()
    }
}

/// The host's driver with the events of the late device's streams.
struct LateDriver<D> {
    driver: D,
    streams: Arc<Streams>,
    captures: Arc<Captures>,
}

impl<D: Driver> Driver for LateDriver<D> {
    fn segment_alloc(&mut self, bytes: u64) -> std::result::Result<Addr, DriverError> {
        self.driver.segment_alloc(bytes)
    }

    /// A freed block may still have work on its own stream. Like `cudaFree`, this waits for it before it frees the
    /// memory.
    fn segment_free(&mut self, addr: Addr) -> std::result::Result<(), DriverError> {
        self.streams.wait_all();
        self.driver.segment_free(addr)
    }

    fn record(&mut self, stream: StreamId) -> std::result::Result<EventId, DriverError> {
        Ok(self.streams.record(stream))
    }

    fn is_done(&mut self, event: EventId) -> std::result::Result<bool, DriverError> {
        Ok(self.streams.is_done(event))
    }

    fn wait(&mut self, event: EventId) -> std::result::Result<(), DriverError> {
        self.streams.wait(event);
        Ok(())
    }

    fn is_capturing(&self) -> bool {
        self.captures.is_open()
    }

    fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }
}
