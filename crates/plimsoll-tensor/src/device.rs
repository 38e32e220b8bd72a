//! The device of tensors: a cloneable handle to a back end and its allocator.
//!
//! `Device::cpu()` returns the host device that the process shares; `cpu_with` and `sim` make separate devices. The memory
//! statistics have PyTorch's names and meanings.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_alloc::{CategoryBytes, DeviceMemory, Gauges, MemoryInfo, Segment};
use plimsoll_cuda::Gpu;

use crate::alloc_conf;
use crate::backend::{Backend, Queues};
use crate::capturing;
use crate::clock::Clocks;
use crate::cpu::{Cpu, CpuConfig};
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::label;
use crate::properties::DeviceProperties;
use crate::random::{self, RandomStream, RngState};
use crate::sim::{Sim, SimConfig};

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
    /// Whether operators are shared with a queue or a dispatch watch. Every operation reads it.
    shares_operators: AtomicBool,
    /// The watch that `dispatch/` calls between operators; only `dispatch/` knows its type.
    watch: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Frees memory for a request that failed: [`Device::rematerialize`].
    make_room: OnceLock<MakeRoom>,
    /// Streams made so far, not counting the default one.
    streams: AtomicU64,
    seed: AtomicU64,
    /// The next random stream of `seed`; each random tensor uses one.
    next_stream: AtomicU64,
    /// Bytes of a simulated GPU that NCCL would have taken.
    nccl_bytes: AtomicU64,
}

/// Frees about this many bytes. Returns whether it freed any.
pub(crate) type MakeRoom = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// When a back end computes. Every operation reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Computes {
    AtOnce,
    /// The back end has queues.
    Later,
    Nothing,
}

/// The bytes of the context and the loaded kernels of a training run on an H200 (`train gpt --device cuda --json`:
/// `outside_allocator_bytes` minus `workspace_bytes`).
const CONTEXT_BYTES: u64 = 560_791_552;

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
        }))
    }

    /// Whether an operator may outlive its call.
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

    /// Sets what frees memory for a request that failed. Returns false if it is set already.
    pub(crate) fn set_make_room(&self, make_room: MakeRoom) -> bool {
        self.0.make_room.set(make_room).is_ok()
    }

    /// Frees about this many bytes for a request that failed. Returns whether it freed any.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        self.0.make_room.get().is_some_and(|make_room| make_room(bytes))
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

    /// Whether tensors on this device have values. On a simulated device, reading a value is an error.
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

    /// Bytes of live blocks now, including rounding.
    pub fn memory_allocated(&self) -> u64 {
        self.memory().memory_allocated()
    }

    /// Bytes obtained from the system now: live blocks and cache.
    pub fn memory_reserved(&self) -> u64 {
        self.memory().memory_reserved()
    }

    /// The peak of bytes in live blocks since the device was made or the peaks were reset.
    pub fn max_memory_allocated(&self) -> u64 {
        self.memory().max_memory_allocated()
    }

    /// The peak of bytes obtained from the system since the device was made or the peaks were reset.
    pub fn max_memory_reserved(&self) -> u64 {
        self.memory().max_memory_reserved()
    }

    /// Sets the peaks to the current values, also those by category and owner.
    pub fn reset_peak_memory_stats(&self) {
        self.memory().reset_peak_memory_stats();
    }

    /// Sets the running totals of bytes and requests to zero; peaks and current values stay.
    pub fn reset_accumulated_memory_stats(&self) {
        self.memory().reset_accumulated_memory_stats();
    }

    /// Returns all completely unused segments to the system.
    ///
    /// # Errors
    /// The driver's error, if it fails to free a segment.
    pub fn empty_cache(&self) -> Result<()> {
        self.memory().empty_cache().map(drop).map_err(|source| self.allocator_error(source))
    }

    /// All statistics under PyTorch's keys (`allocated_bytes.all.peak`, `num_ooms`, …), sorted.
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        self.memory().memory_stats()
    }

    /// The statistics as a table, laid out as `torch.cuda.memory_summary`.
    pub fn memory_summary(&self) -> String {
        self.memory().memory_summary(&format!("Plimsoll memory summary, device {}", self.name()))
    }

    /// The current statistics, read together, and the levels at the most recent steps ([`Device::mark_step`]).
    pub fn memory_gauges(&self) -> Gauges {
        self.memory().gauges()
    }

    /// Bytes of live blocks by category; they add up to [`Device::memory_allocated`].
    pub fn memory_by_category(&self) -> CategoryBytes {
        self.memory().by_category()
    }

    /// Bytes of live blocks by category at the peak; they add up to [`Device::max_memory_allocated`].
    pub fn peak_by_category(&self) -> CategoryBytes {
        self.memory().by_category_at_peak()
    }

    /// The owners of the bytes at the peak, largest first; ties are in the order in which the names were registered.
    pub fn owners_at_peak(&self) -> Vec<label::Owner> {
        let named = |owner: plimsoll_alloc::Owner| {
            let plimsoll_alloc::Owner { label, category, bytes, blocks } = owner;
            label::Owner { label: label::text(label), category, bytes, blocks }
        };
        self.memory().owners_at_peak().into_iter().map(named).collect()
    }

    /// All segments with their blocks, sorted by address. Like `torch.cuda.memory_snapshot`.
    pub fn memory_snapshot(&self) -> Vec<Segment> {
        self.memory().segments()
    }

    /// Limits the reserved bytes from now on; `None` removes the limit. Memory that is already reserved stays; a request that
    /// needs more first releases cached segments.
    pub fn set_memory_limit(&self, bytes: impl Into<Option<u64>>) {
        self.memory().set_memory_limit(bytes.into());
    }

    /// Changes the allocator's settings from now on, in the format of `PYTORCH_ALLOC_CONF`; settings that are not named get their
    /// defaults. Reserved memory stays as it is. Like `torch.cuda.memory._set_allocator_settings`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, SimConfig};
    /// let gpu = Device::sim(SimConfig::like("H200")?);
    /// gpu.set_allocator_settings("expandable_segments:True")?;
    /// let error = gpu.set_allocator_settings("expandable_segments:maybe").unwrap_err().to_string();
    /// assert!(error.contains("expandable_segments"), "{error}");
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Settings that PyTorch refuses.
    pub fn set_allocator_settings(&self, settings: &str) -> Result<()> {
        let parsed = alloc_conf::parse(settings);
        self.memory().set_config(parsed.map_err(|why| Error::argument("set_allocator_settings", why))?);
        Ok(())
    }

    /// Limits the reserved bytes to a fraction of the device's memory; 1 removes the limit.
    ///
    /// # Errors
    /// A fraction that is not between 0 and 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        self.memory().set_memory_fraction(fraction).map_err(|source| self.allocator_error(source))
    }

    /// The current limit on reserved bytes, if any.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory().memory_limit()
    }

    /// Free and total bytes of the device, like `torch.cuda.mem_get_info`.
    pub fn memory_info(&self) -> MemoryInfo {
        self.memory().memory_info()
    }

    /// Bytes of a GPU's memory that are in use outside this allocator: the context, kernels, workspaces of libraries, and other
    /// processes. For a simulated GPU, the expected value for one process, as measured on an H200 (driver 580): 561 MB for the
    /// context and kernels, and a workspace; cuDNN adds 8 MB, and NCCL adds the memory that the collectives so far would take.
    /// `None` if the device is not a GPU.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, SimConfig};
    /// let h200 = Device::sim(SimConfig::like("H200")?);
    /// assert_eq!(h200.outside_bytes(), Some(594_345_984)); // to the byte what an H200 had after 60 steps of `train gpt`
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn outside_bytes(&self) -> Option<u64> {
        if self.facts().kind != DeviceKind::Cuda {
            return None;
        }
        if !self.has_values() {
            let nccl_bytes = self.0.nccl_bytes.load(Ordering::Relaxed);
            return Some(CONTEXT_BYTES + self.workspace_bytes() + nccl_bytes);
        }
        let MemoryInfo { free_bytes, total_bytes } = self.memory_info();
        Some(total_bytes.saturating_sub(free_bytes).saturating_sub(self.memory_reserved()))
    }

    /// Counts memory that NCCL would take on a simulated GPU.
    pub(crate) fn take_outside(&self, bytes: u64) {
        self.0.nccl_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the libraries' workspaces, which are outside the allocator. On a GPU, 32 MiB for each stream with matrix products
    /// or convolutions; otherwise 0.
    pub fn workspace_bytes(&self) -> u64 {
        self.0.backend.workspace_bytes()
    }

    /// Says which library could not be opened when it was needed, why, and what to install. For example, cuDNN is reported once a
    /// GPU has computed a convolution with slower kernels. `None` if no library was missing.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let (images, filters) = (Tensor::ones(&[1, 3, 8, 8], &device)?, Tensor::ones(&[4, 3, 3, 3], &device)?);
    /// images.conv2d(&filters, None, Default::default())?;
    /// assert_eq!(device.missing_library(), None); // the host needs no library
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn missing_library(&self) -> Option<String> {
        self.0.backend.missing_library()
    }

    /// Bytes of this device's segments that are resident in host memory now; `None` if they are not host
    /// memory or the system does not report it. The system maps pages on first touch, so this can be
    /// less than [`Device::memory_reserved`].
    pub fn resident_bytes(&self) -> Option<u64> {
        self.0.backend.resident_bytes()
    }

    fn allocator_error(&self, source: plimsoll_alloc::Error) -> Error {
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
