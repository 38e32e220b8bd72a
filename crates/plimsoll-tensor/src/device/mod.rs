//! The device of tensors: a cloneable handle to a back end and its allocator.
//!
//! `Device::cpu()` returns the host device that the process shares; `cpu_with` and `sim` make separate devices.
//!
//! | file | contents |
//! |---|---|
//! | `arenas` | who uses the bytes of planned steps |
//! | `callbacks` | functions that are called when memory is requested or freed |
//! | `reads` | the values that a program has read in a rehearsal |
//! | this one | the handle |
//! | `events`, `rehearsal` | [`Device::on_event`], [`Device::rehearse`] |
//! | `memory` | statistics under PyTorch's names, limits, owners |

mod arenas;
mod callbacks;
mod events;
mod memory;
mod reads;
mod rehearsal;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_alloc::{DeviceMemory, PoolKind, StreamId};
use plimsoll_cuda::Gpu;

use crate::backend::{Backend, Queues};
use crate::capturing;
use crate::clock::Clocks;
use crate::cpu::{Cpu, CpuConfig};
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::properties::DeviceProperties;
use crate::random::{self, RandomStream, RngState};
use crate::sim::{Sim, SimConfig};

use arenas::Arenas;
use callbacks::Callbacks;
pub use callbacks::{EventHandle, MemoryAction, MemoryEvent};
use reads::Reads;
pub use reads::{ReadPlace, Rehearsal};

/// A device, such as `cpu` or `sim`. Clones are the same device; devices made separately are not equal.
///
/// ```
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let x = Tensor::zeros(&[1024, 1024], &gpu)?;
/// assert_eq!(gpu.memory_allocated(), 4 << 20);
/// drop(x);
/// assert_eq!((gpu.memory_allocated(), gpu.memory_reserved()), (0, 20 << 20));
/// gpu.empty_cache()?;
/// assert_eq!(gpu.memory_reserved(), 0);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    backend: Box<dyn Backend>,
    /// The GPU whose collectives NCCL runs; without it, collectives run on the host.
    gpu: Option<Arc<Gpu>>,
    /// The clocks of a simulated GPU.
    clocks: Option<Clocks>,
    computes: Computes,
    /// Whether operators may outlive their calls, in a queue or a dispatch watch. Every operation reads this.
    shares_operators: AtomicBool,
    /// The watch that `dispatch/` calls between operators; only `dispatch/` knows its type.
    watch: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Frees memory for a request: [`Device::rematerialize`].
    make_room: OnceLock<MakeRoom>,
    /// Streams made so far, not counting the default one.
    streams: AtomicU64,
    seed: AtomicU64,
    /// The next random stream of `seed`; each random tensor uses one.
    next_stream: AtomicU64,
    /// Bytes of a simulated GPU that NCCL would have taken.
    nccl_bytes: AtomicU64,
    callbacks: Arc<Callbacks>,
    arenas: Arenas,
    /// Set if values that are read are zeros.
    reads: OnceLock<Reads>,
}

/// Frees memory for a request. Returns whether it freed any.
pub(crate) type MakeRoom = Box<dyn Fn(Wanted<'_>) -> bool + Send + Sync>;

/// The memory that a request needs.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// A block of so many bytes in the memory that is reserved for a stream and a pool.
    Block { memory: &'a DeviceMemory, bytes: u64, kind: PoolKind, stream: StreamId },
    /// So many bytes, anywhere.
    Bytes(u64),
}

/// When a back end computes. Every operation reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Computes {
    AtOnce,
    /// The back end has queues.
    Later,
    Nothing,
}

impl Device {
    /// The process's host device; every call returns the same one. Its capacity is the smaller of
    /// physical memory and the control group's limit.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::cpu_with(CpuConfig::default())).clone()
    }

    /// A separate host device, with its own cache and statistics.
    pub fn cpu_with(config: CpuConfig) -> Device {
        Device::with_backend(Cpu::new(config))
    }

    /// A simulated device, which computes nothing and accounts for every byte.
    pub fn sim(config: SimConfig) -> Device {
        let sim = Sim::new(config);
        let clocks = sim.clocks();
        Device::new(Box::new(sim), None, clocks)
    }

    /// A device whose work another back end does: see [`Backend`].
    pub fn with_backend(backend: impl Backend + 'static) -> Device {
        Device::new(Box::new(backend), None, None)
    }

    /// A device of a back end; for an NVIDIA GPU with its libraries, for a simulated one with its clocks.
    pub(crate) fn new(backend: Box<dyn Backend>, gpu: Option<Arc<Gpu>>, clocks: Option<Clocks>) -> Device {
        let computes = match backend.queues() {
            Some(_) => Computes::Later,
            None if backend.has_values() => Computes::AtOnce,
            None => Computes::Nothing,
        };
        let [streams, seed, next_stream, nccl_bytes] = [const { AtomicU64::new(0) }; 4];
        let shares_operators = AtomicBool::new(computes == Computes::Later);
        let watch = OnceLock::new();
        Device(Arc::new(Inner {
            backend,
            gpu,
            clocks,
            computes,
            shares_operators,
            watch,
            make_room: OnceLock::new(),
            streams,
            seed,
            next_stream,
            nccl_bytes,
            callbacks: Arc::default(),
            arenas: Arenas::default(),
            reads: OnceLock::new(),
        }))
    }

    /// Whether operators may outlive their calls.
    #[inline]
    pub(crate) fn shares_operators(&self) -> bool {
        self.0.shares_operators.load(Ordering::Relaxed)
    }

    /// The watch that is called between operators, if set.
    pub(crate) fn watch(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.watch.get().map(|watch| &**watch)
    }

    /// Sets the watch. Returns false if one is set already.
    pub(crate) fn set_watch(&self, watch: Box<dyn Any + Send + Sync>) -> bool {
        let set = self.0.watch.set(watch).is_ok();
        self.0.shares_operators.store(true, Ordering::Relaxed);
        set
    }

    /// Sets what frees memory for requests. Returns false if it is set already.
    pub(crate) fn set_make_room(&self, make_room: MakeRoom) -> bool {
        self.0.make_room.set(make_room).is_ok()
    }

    /// Frees memory for a request. Returns whether it freed any.
    pub(crate) fn make_room(&self, wanted: Wanted<'_>) -> bool {
        self.0.make_room.get().is_some_and(|make_room| make_room(wanted))
    }

    /// Whether tensors may leave the device while an operator requests memory.
    pub(crate) fn evicts(&self) -> bool {
        self.0.make_room.get().is_some()
    }

    /// The streams of this device, if it is asynchronous.
    #[inline]
    pub(crate) fn queues(&self) -> Option<&dyn Queues> {
        if self.0.computes == Computes::Later { self.0.backend.queues() } else { None }
    }

    /// Whether operators on this device only allocate memory.
    #[inline]
    pub(crate) fn computes_nothing(&self) -> bool {
        self.0.computes == Computes::Nothing
    }

    /// Whether work may be on another stream than the default one.
    pub(crate) fn has_side_streams(&self) -> bool {
        self.0.streams.load(Ordering::Relaxed) > 0
    }

    /// Counts a new stream. Returns the number of streams made before it.
    pub(crate) fn count_stream(&self) -> u64 {
        self.0.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Checks for an error of earlier work that was found since the last call.
    ///
    /// # Errors
    /// The error that was found.
    #[inline]
    pub(crate) fn late_error(&self) -> Result<()> {
        match self.queues().and_then(Queues::take_error) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Waits until all work on all streams of this device is done. Returns at once on a synchronous device. Like
    /// `torch.cuda.synchronize`.
    ///
    /// # Errors
    /// [`Error::Late`] for an unreported error of earlier work; [`Error::Captured`] during a capture.
    pub fn synchronize(&self) -> Result<()> {
        capturing::refuse(self.number(), "synchronize", "nothing runs before the replay: wait afterwards")?;
        if let Some(queues) = self.queues() {
            queues.wait_all()?;
        }
        self.late_error()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        self.0.backend.as_ref()
    }

    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.0.gpu.as_ref()
    }

    pub(crate) fn clocks(&self) -> Option<&Clocks> {
        self.0.clocks.as_ref()
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        self.0.backend.memory()
    }

    /// `cpu` or `sim`, or the name that it was created with.
    pub fn name(&self) -> &str {
        self.0.backend.name()
    }

    /// Whether tensors on this device have values. On a simulated device, reading a value is an error, unless it rehearses
    /// ([`Device::rehearse`]).
    pub fn has_values(&self) -> bool {
        self.0.backend.has_values()
    }

    /// Whether its memory is host memory.
    pub(crate) fn is_host(&self) -> bool {
        self.0.backend.is_host()
    }

    /// The properties of this device that operators may depend on before they run.
    pub fn facts(&self) -> DeviceFacts {
        self.0.backend.facts()
    }

    /// The device's properties: memory, bandwidths, FLOP/s by type, workspaces.
    pub fn properties(&self) -> &DeviceProperties {
        self.0.backend.properties()
    }

    /// Seeds the device's random numbers, like `torch.manual_seed`. The n-th random tensor after this call is the same on
    /// every machine.
    pub fn manual_seed(&self, seed: u64) {
        self.0.seed.store(seed, Ordering::Relaxed);
        self.0.next_stream.store(0, Ordering::Relaxed);
    }

    /// The state of the device's random number generator. Like `torch.cuda.get_rng_state`.
    pub fn rng_state(&self) -> RngState {
        RngState {
            seed: self.0.seed.load(Ordering::Relaxed),
            next_stream: self.0.next_stream.load(Ordering::Relaxed),
        }
    }

    /// Restores a state of the device's random number generator. Like `torch.cuda.set_rng_state`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let cpu = Device::cpu_with(Default::default());
    /// let state = cpu.rng_state();
    /// let first = Tensor::randn(&[3], &cpu)?.to_vec::<f32>()?;
    /// cpu.set_rng_state(state);
    /// assert_eq!(Tensor::randn(&[3], &cpu)?.to_vec::<f32>()?, first);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn set_rng_state(&self, state: RngState) {
        self.0.seed.store(state.seed, Ordering::Relaxed);
        self.0.next_stream.store(state.next_stream, Ordering::Relaxed);
    }

    /// Runs `f`, then restores the state of this device's random number generator. Like `torch.random.fork_rng`.
    pub fn fork_rng<T>(&self, f: impl FnOnce() -> T) -> T {
        /// Restores the state even if `f` panics.
        struct Restore<'a>(&'a Device, RngState);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set_rng_state(self.1);
            }
        }
        let _before = Restore(self, self.rng_state());
        f()
    }

    pub(crate) fn next_random(&self) -> RandomStream {
        let generator = random::current();
        let from = match &generator {
            Some(generator) => generator.next(),
            None => {
                let stream = self.0.next_stream.fetch_add(1, Ordering::Relaxed);
                RandomStream { seed: self.0.seed.load(Ordering::Relaxed), stream }
            }
        };
        capturing::drawn(self.number(), generator.as_ref(), from);
        from
    }

    /// Whether this thread captures the work of this device. Like `torch.cuda.is_current_stream_capturing`.
    pub fn is_capturing(&self) -> bool {
        capturing::is_open(self.number())
    }

    /// Whether work of this device can be captured ([`Graph`](crate::Graph)): false for a synchronous device such as the host.
    pub fn captures(&self) -> bool {
        self.0.computes != Computes::AtOnce
    }

    /// Identifies the device; never 0.
    #[inline]
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub(crate) fn allocator_error(&self, source: plimsoll_alloc::Error) -> Error {
        Error::Allocator { device: self.name().to_owned(), source }
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
