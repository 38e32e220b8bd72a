//! The late device: the host's kernels, queued on a thread for each stream and finished in their own time.
//!
//! It is what a GPU is to a program: calls return before the work is done, streams run beside each other, errors come
//! later. Delays are random, from a seed. Kernels of different streams run one at a time, so a program that forgets to
//! order its streams gets wrong values and never a data race.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plimsoll_alloc::{Addr, DeviceMemory, Driver, DriverError, EventId, LabelId, MemoryInfo, StreamId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use smallvec::SmallVec;

use super::line::{Line, Work};
use crate::backend::{Backend, Queues};
use crate::cpu::{Cpu, CpuConfig};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::label;
use crate::properties::DeviceProperties;
use crate::stream::Stream;
use crate::unwind::panicked;
use crate::view::{Launch, QueuedView, View};

/// A device that computes later.
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
    /// Where the delays come from.
    pub seed: u64,
    /// The longest delay before a piece of work; the shortest is none.
    pub longest_delay: Duration,
    /// Bytes of memory; by default as the host's.
    pub capacity_bytes: Option<u64>,
    /// Stops streams, for a test that needs work to be late for certain.
    pub pauses: Pauses,
    /// Whether operations note the streams that use a tensor's memory. Without that, memory that is freed early serves
    /// other tensors while it is still read.
    pub records_uses: bool,
}

impl Default for LateConfig {
    fn default() -> LateConfig {
        let (longest_delay, pauses) = (Duration::from_micros(100), Pauses::default());
        LateConfig { seed: 0, longest_delay, capacity_bytes: None, pauses, records_uses: true }
    }
}

/// The streams of late devices that stand still. Clones are the same.
///
/// ```
/// use plimsoll_tensor::testing::{LateConfig, Pauses};
/// use plimsoll_tensor::{Device, Tensor};
/// let pauses = Pauses::default();
/// let device = Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() });
/// let stream = device.current_stream();
/// pauses.pause(&stream);
/// let x = Tensor::ones(&[4], &device)?;
/// assert!(!stream.query()?);
/// pauses.resume(&stream);
/// stream.synchronize()?;
/// assert!(stream.query()?);
/// # drop(x);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pauses(Arc<(Mutex<BTreeSet<StreamId>>, Condvar)>);

impl Pauses {
    /// No work of this stream begins from now on.
    pub fn pause(&self, stream: &Stream) {
        self.lock().insert(stream.id());
    }

    /// Work goes on.
    pub fn resume(&self, stream: &Stream) {
        self.lock().remove(&stream.id());
        self.0.1.notify_all();
    }

    fn resume_all(&self) {
        self.lock().clear();
        self.0.1.notify_all();
    }

    fn wait(&self, stream: StreamId) {
        let mut paused = self.lock();
        while paused.contains(&stream) {
            paused = self.0.1.wait(paused).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<StreamId>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// A device that computes what the host computes, later: see [`LateConfig`].
    pub fn late(config: LateConfig) -> Device {
        Device::new(Box::new(Late::new(config)))
    }
}

struct Late {
    host: Arc<Cpu>,
    lines: Arc<Lines>,
    records_uses: bool,
}

impl Late {
    fn new(config: LateConfig) -> Late {
        let lines = Arc::new(Lines {
            seed: config.seed,
            longest_delay: config.longest_delay,
            pauses: config.pauses,
            running: Arc::default(),
            error: Arc::default(),
            finished: Arc::default(),
            open: Mutex::default(),
        });
        let memory = CpuConfig { capacity_bytes: config.capacity_bytes };
        let host = Cpu::with_driver(memory, |driver| LateDriver { driver, lines: lines.clone() });
        Late { host: Arc::new(host), lines, records_uses: config.records_uses }
    }

    /// Queues work for the host's memory, which stays mapped for as long.
    fn queue(
        &self,
        on: StreamId,
        cause: Cause,
        work: impl FnOnce(&Cpu) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let host = self.host.clone();
        self.lines.queue(on, cause, move || work(&host))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.lines.close();
    }
}

/// What is blamed for an error: an operator and the layer that called it.
#[derive(Clone, Copy)]
struct Cause {
    op: &'static str,
    owner: LabelId,
}

/// The streams of one device.
struct Lines {
    seed: u64,
    longest_delay: Duration,
    pauses: Pauses,
    /// Held while a kernel runs: the kernels of two streams could otherwise touch the same bytes at once.
    running: Arc<Mutex<()>>,
    /// The first error that nobody has seen.
    error: Arc<Mutex<Option<Error>>>,
    /// Kernels that have run, for a thread of the program to drop: one may own tensors, and freeing them takes the
    /// allocator's lock, whose owner may be waiting for this device.
    finished: Arc<Mutex<Vec<Arc<dyn Kernel>>>>,
    /// Those on which work was queued, with what their delays are drawn from.
    open: Mutex<BTreeMap<StreamId, OpenStream>>,
}

/// A kernel in a queue.
struct Queued {
    kernel: Arc<dyn Kernel>,
    finished: Arc<Mutex<Vec<Arc<dyn Kernel>>>>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).push(self.kernel.clone());
    }
}

struct OpenStream {
    line: Arc<Line>,
    thread: JoinHandle<()>,
    delays: ChaCha8Rng,
}

/// The bits of an event's number that count pieces of work; the stream's number is above them.
const PIECE_BITS: u32 = 48;

impl Lines {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamId, OpenStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work to a stream, after a delay.
    fn queue(
        &self,
        on: StreamId,
        cause: Cause,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (running, error, pauses) = (self.running.clone(), self.error.clone(), self.pauses.clone());
        self.push(on, |delay| {
            Box::new(move || {
                thread::sleep(delay);
                pauses.wait(on);
                let done = {
                    let _running = running.lock().unwrap_or_else(PoisonError::into_inner);
                    catch_unwind(AssertUnwindSafe(work))
                };
                let failed =
                    done.unwrap_or_else(|panic| Err(panicked(cause.op, "the kernel", panic.as_ref()))).err();
                if let Some(failed) = failed {
                    let (op, owner) = (cause.op, label::text(cause.owner));
                    let late = Error::Late { device: NAME.to_owned(), op, owner, cause: Box::new(failed) };
                    error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(late);
                }
            })
        })
    }

    fn push(&self, on: StreamId, work: impl FnOnce(Duration) -> Work) -> Result<()> {
        let mut open = self.lock();
        let OpenStream { line, delays, .. } = match open.entry(on) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                let started = Line::start(format!("{NAME} stream {}", on.0));
                let (line, thread) = started.map_err(|error| {
                    failed(DriverError::Failed(format!("no thread for a stream: {error}")))
                })?;
                let mut delays = ChaCha8Rng::seed_from_u64(self.seed);
                delays.set_stream(on.0);
                new.insert(OpenStream { line, thread, delays })
            }
        };
        let share = f64::from(delays.next_u32()) / f64::from(u32::MAX);
        // Short delays often, long ones sometimes.
        line.push(work(self.longest_delay.mul_f64(share * share * share)));
        Ok(())
    }

    fn line(&self, stream: StreamId) -> Option<Arc<Line>> {
        self.lock().get(&stream).map(|stream| stream.line.clone())
    }

    /// The line of an event and the number of pieces to be done; no line where nothing was queued.
    fn of(&self, event: EventId) -> (Option<Arc<Line>>, u64) {
        (self.line(StreamId(event.0 >> PIECE_BITS)), event.0 & ((1 << PIECE_BITS) - 1))
    }

    fn record(&self, on: StreamId) -> EventId {
        let pieces = self.line(on).map_or(0, |line| line.end());
        EventId(on.0 << PIECE_BITS | pieces)
    }

    fn is_done(&self, event: EventId) -> bool {
        let (line, pieces) = self.of(event);
        line.is_none_or(|line| line.has_done(pieces))
    }

    fn wait(&self, event: EventId) {
        if let (Some(line), pieces) = self.of(event) {
            line.wait_for(pieces);
        }
    }

    fn wait_all(&self) {
        let lines: Vec<Arc<Line>> = self.lock().values().map(|stream| stream.line.clone()).collect();
        lines.iter().for_each(|line| line.wait_for(line.end()));
    }

    /// Ends the threads when their work is done, and waits for them.
    fn close(&self) {
        self.pauses.resume_all();
        let streams = std::mem::take(&mut *self.lock());
        streams.values().for_each(|stream| stream.line.close());
        for stream in streams.into_values() {
            // Its work's panics were caught where they happened.
            let _ = stream.thread.join();
        }
    }

    /// Drops the kernels that have run.
    fn sweep(&self) {
        let finished = std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner));
        drop(finished); // outside the lock
    }
}

const NAME: &str = "late";

fn failed(source: DriverError) -> Error {
    Error::Allocator { device: NAME.to_owned(), source: plimsoll_alloc::Error::Driver(source) }
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
        self.lines.wait_all();
        let _running = self.lines.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.host.run(kernel, launch)
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
        self.lines.wait(self.lines.record(on));
        bytes.append(&mut read.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    fn copy(&self, from: View<'_>, to: View<'_>, on: StreamId) -> Result<()> {
        let (from, to) = (from.to_queued(), to.to_queued());
        let cause = Cause { op: "copy", owner: label::current_layer() };
        self.queue(on, cause, move |host| host.copy(from.view(), to.view(), on))
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
        type Views = SmallVec<[QueuedView; 4]>;
        let copies = |views: &[View<'_>]| -> Views { views.iter().map(|view| view.to_queued()).collect() };
        let (ins, outs, scratch) =
            (copies(launch.ins), copies(launch.outs), launch.scratch.map(View::to_queued));
        self.lines.sweep();
        let cause = Cause { op: kernel.name(), owner };
        let queued = Queued { kernel, finished: self.lines.finished.clone() };
        self.queue(on, cause, move |host| {
            let in_views: SmallVec<[View<'_>; 4]> = ins.iter().map(QueuedView::view).collect();
            let out_views: SmallVec<[View<'_>; 4]> = outs.iter().map(QueuedView::view).collect();
            let scratch = scratch.as_ref().map(QueuedView::view);
            host.run(&*queued.kernel, Launch { ins: &in_views, outs: &out_views, scratch })
        })
    }

    fn record(&self, on: StreamId) -> Result<EventId> {
        Ok(self.lines.record(on))
    }

    fn is_done(&self, event: EventId) -> Result<bool> {
        Ok(self.lines.is_done(event))
    }

    fn wait(&self, event: EventId) -> Result<()> {
        self.lines.wait(event);
        Ok(())
    }

    fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()> {
        let (Some(line), pieces) = self.lines.of(event) else { return Ok(()) };
        self.lines.push(stream, |_| Box::new(move || line.wait_for(pieces)))
    }

    fn wait_all(&self) -> Result<()> {
        self.lines.wait_all();
        self.lines.sweep();
        Ok(())
    }

    fn take_error(&self) -> Option<Error> {
        self.lines.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The host's memory with the events of the late device's streams.
struct LateDriver<D> {
    driver: D,
    lines: Arc<Lines>,
}

impl<D: Driver> Driver for LateDriver<D> {
    fn segment_alloc(&mut self, bytes: u64) -> std::result::Result<Addr, DriverError> {
        self.driver.segment_alloc(bytes)
    }

    /// A freed block may still have work on its own stream, which ends before the memory goes: as `cudaFree`.
    fn segment_free(&mut self, addr: Addr) -> std::result::Result<(), DriverError> {
        self.lines.wait_all();
        self.driver.segment_free(addr)
    }

    fn record(&mut self, stream: StreamId) -> std::result::Result<EventId, DriverError> {
        Ok(self.lines.record(stream))
    }

    fn is_done(&mut self, event: EventId) -> std::result::Result<bool, DriverError> {
        Ok(self.lines.is_done(event))
    }

    fn wait(&mut self, event: EventId) -> std::result::Result<(), DriverError> {
        self.lines.wait(event);
        Ok(())
    }

    fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }
}
