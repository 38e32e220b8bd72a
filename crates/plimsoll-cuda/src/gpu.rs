//! A device, with its context, streams, kernels and matrix products.
//!
//! Note [Threads and the context]. Any thread may call these methods, so each one first makes the device's context
//! current on the thread, which takes a few tens of ns. Methods only queue work; [`Gpu::wait_all`] and events wait for
//! it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use plimsoll_alloc::{EventId, StreamId};

use crate::blas::Blas;
use crate::dnn::Dnn;
use crate::driver::{Driver, Handle};
use crate::error::{CudaError, Result};
use crate::faults::{Fault, Faults};
use crate::graph_functions::Functions;
use crate::kernels::Kernels;
use crate::nccl::Nccl;
use crate::nvrtc::Nvrtc;
use crate::pinned::Staging;
use crate::search::Search;
use crate::step::{Carrier, CollectiveStep, ConvolutionStep, Launch, Product, Step};
use crate::streams::{Streams, handle, lock};

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// The device's number.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// The address on the PCI bus, such as `0000:1b:00.0`.
    pub pci_bus_id: String,
    /// The compute capability (major, minor).
    pub capability: (i32, i32),
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub total_bytes: u64,
    /// The newest version of CUDA that its driver supports (major, minor).
    pub driver: (i32, i32),
}

/// The libraries that are open, and the errors of those that could not be opened.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// The driver's file.
    pub driver: String,
    /// NVRTC's version and file.
    pub nvrtc: Result<((i32, i32), String)>,
    /// cuBLASLt's file.
    pub blas: Result<String>,
    /// cuDNN's version and file.
    pub dnn: Result<(String, String)>,
    /// NCCL's version and file.
    pub nccl: Result<(String, String)>,
}

/// A device.
pub struct Gpu {
    driver: Arc<Driver>,
    device: c_int,
    context: Handle,
    facts: GpuFacts,
    search: Search,
    streams: Streams,
    staging: Staging,
    faults: Mutex<Option<Faults>>,
    kernels: Kernels,
    nvrtc: OnceLock<Result<Nvrtc>>,
    blas: OnceLock<Result<Mutex<Blas>>>,
    dnn: OnceLock<Result<Mutex<Dnn>>>,
    nccl: OnceLock<Result<Arc<Nccl>>>,
    /// The workspace of each stream. cuBLASLt and cuDNN share it, because their work on a stream is sequential.
    workspaces: Mutex<BTreeMap<StreamId, u64>>,
    workspace_bytes: u64,
    launches: AtomicU64,
    graphs: OnceLock<Result<Functions>>,
    /// Whether the context and everything in it no longer exist. Its addresses may then already be in use again.
    is_reset: AtomicBool,
}

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`, `…_COMPUTE_CAPABILITY_MAJOR`, `…_MINOR`.
const ATTRIBUTES: [c_int; 3] = [16, 75, 76];

/// The lowest compute capability that the kernels support.
const OLDEST_CAPABILITY: (i32, i32) = (7, 5);

impl Gpu {
    /// Opens a device. Each stream that runs products uses `workspace_bytes` of device memory for cuBLASLt.
    ///
    /// # Errors
    /// If the driver is missing, too old, or finds no such device, or if the device is too old, or lacks memory for a
    /// context.
    pub fn open(ordinal: u32, search: Search, workspace_bytes: u64) -> Result<Arc<Gpu>> {
        let driver = Arc::new(Driver::open(&search)?);
        let device = driver.device(ordinal)?;
        let version = driver.version()?;
        let [multiprocessors, major, minor] = ATTRIBUTES.map(|attribute| driver.attribute(attribute, device));
        let facts = GpuFacts {
            ordinal,
            name: driver.name(device)?,
            pci_bus_id: driver.pci_bus_id(device)?,
            capability: (major?, minor?),
            multiprocessors: multiprocessors?.unsigned_abs(),
            total_bytes: driver.total_bytes(device)?,
            driver: (version / 1000, version % 1000 / 10),
        };
        if facts.capability < OLDEST_CAPABILITY {
            return Err(CudaError::OldDevice { name: facts.name, capability: facts.capability });
        }
        let context = driver.retain_context(device)?;
        let gpu = Gpu {
            driver,
            device,
            context,
            facts,
            search,
            streams: Streams::default(),
            staging: Staging::default(),
            faults: Mutex::default(),
            kernels: Kernels::from_env(),
            nvrtc: OnceLock::new(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            nccl: OnceLock::new(),
            workspaces: Mutex::default(),
            workspace_bytes,
            launches: AtomicU64::new(0),
            graphs: OnceLock::new(),
            is_reset: AtomicBool::new(false),
        };
        gpu.bind()?;
        let stream = gpu.streams.get(&gpu.driver, StreamId::default())?;
        *lock(&gpu.faults) = Some(Faults::new(&gpu.driver, stream)?);
        Ok(Arc::new(gpu))
    }

    /// The properties of the device.
    pub fn facts(&self) -> &GpuFacts {
        &self.facts
    }

    /// The number of devices that the driver finds.
    ///
    /// # Errors
    /// If the driver is missing or finds no devices.
    pub fn count(search: &Search) -> Result<u32> {
        Driver::open(search)?.device_count()
    }

    /// Opens the libraries that have not been needed so far, and describes all of them.
    pub fn libraries(&self) -> Libraries {
        let nvrtc = self.bind().and_then(|()| self.nvrtc()).map(|nvrtc| (nvrtc.version(), nvrtc.path()));
        let blas = self.bind().and_then(|()| self.blas()).map(|blas| lock(blas).path());
        let dnn = self.bind().and_then(|()| self.dnn()).map(|dnn| {
            let dnn = lock(dnn);
            (dnn.version(), dnn.path())
        });
        let nccl = self.nccl().map(|nccl| (nccl.version(), nccl.path().display().to_string()));
        Libraries { driver: self.driver.path(), nvrtc, blas, dnn, nccl }
    }

    /// Why cuDNN could not be opened when a convolution needed it; `None` if it was found, or has not been needed so
    /// far.
    pub fn missing_dnn(&self) -> Option<&CudaError> {
        self.dnn.get().and_then(|dnn| dnn.as_ref().err())
    }

    /// The number of launches, products and fills so far.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Makes its context current on this thread. Done before every call, so that no call reaches a context created after a
    /// reset.
    pub(crate) fn bind(&self) -> Result<()> {
        match self.is_reset() {
            true => Err(CudaError::Reset { ordinal: self.facts.ordinal }),
            false => self.driver.bind(self.context),
        }
    }

    /// Frees everything that this process has on the device (memory, streams, modules), regardless of its owner. Every later
    /// call on this handle fails.
    ///
    /// # Errors
    /// The driver's errors, or if the handle was already reset.
    pub fn reset(&self) -> Result<()> {
        if self.is_reset.swap(true, Ordering::SeqCst) {
            return Err(CudaError::Reset { ordinal: self.facts.ordinal });
        }
        self.driver.reset_context(self.device)
    }

    /// Whether this handle is from before a reset.
    pub fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::SeqCst)
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(crate) fn context(&self) -> Handle {
        self.context
    }

    pub(crate) fn device(&self) -> c_int {
        self.device
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(crate) fn graph_functions(&self) -> Result<&Functions> {
        self.graphs.get_or_init(|| Functions::load(self.driver.library())).as_ref().map_err(Clone::clone)
    }

    fn nvrtc(&self) -> Result<&Nvrtc> {
        let (major, minor) = self.facts.driver;
        let opened = self.nvrtc.get_or_init(|| Nvrtc::open(&self.search, major * 1000 + minor * 10));
        opened.as_ref().map_err(Clone::clone)
    }

    fn blas(&self) -> Result<&Mutex<Blas>> {
        let (major, minor) = self.facts.driver;
        let open = || Blas::open(&self.search, major * 1000 + minor * 10).map(Mutex::new);
        self.blas.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    fn dnn(&self) -> Result<&Mutex<Dnn>> {
        let (major, minor) = self.facts.driver;
        // cuDNN opens both libraries by bare name, which finds libraries that are already open. Without them, it has
        // fewer plans.
        let _ = (self.nvrtc().map(drop), self.blas().map(drop));
        let open = || Dnn::open(&self.search, major * 1000 + minor * 10).map(Mutex::new);
        self.dnn.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    pub(crate) fn nccl(&self) -> Result<&Arc<Nccl>> {
        self.nccl.get_or_init(|| Nccl::open(&self.search)).as_ref().map_err(Clone::clone)
    }

    /// Queues a piece of work. An error that its kernel detects is returned by [`Gpu::take_fault`] with `id`.
    ///
    /// # Errors
    /// If a library is missing or a kernel does not compile; also the driver's errors.
    pub fn run(&self, step: Step, on: StreamId, id: u64) -> Result<()> {
        self.bind()?;
        self.launches.fetch_add(1, Ordering::Relaxed);
        let stream = self.streams.get(&self.driver, on)?;
        match step {
            Step::Launch(launch) => self.launch(launch, stream, id),
            Step::Product(product) => self.product(&product, on, stream),
            Step::Convolution(step) => self.convolution(*step, on, stream, id),
            Step::Collective(CollectiveStep { carrier: Carrier::Nccl(nccl), collective }) => {
                nccl.run(collective, stream)
            }
            Step::Collective(CollectiveStep { carrier: Carrier::Peers(peers), collective }) => {
                peers.run(collective, stream)
            }
            Step::Clear { address, bytes } => self.driver.clear(address, bytes, stream),
        }
    }

    fn launch(&self, mut launch: Launch, stream: Handle, id: u64) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let function = self.ready(&mut launch, id)?;
        let Launch { grid, block, shared_bytes, .. } = launch;
        self.driver.launch(function, grid, block, shared_bytes, stream, &mut launch.args.places())
    }

    /// Sets where the launch's kernel writes its errors, and returns the loaded kernel.
    pub(crate) fn ready(&self, launch: &mut Launch, id: u64) -> Result<Handle> {
        let kernel = self.kernels.get(launch, &self.driver, self.facts.capability, || self.nvrtc())?;
        if launch.args.fault_kind().is_some()
            && let Some(faults) = &*lock(&self.faults)
        {
            launch.args.set_fault(faults.words(id));
        }
        Ok(kernel)
    }

    fn product(&self, product: &Product, on: StreamId, stream: Handle) -> Result<()> {
        let workspace = self.workspace(on)?;
        let bytes = usize::try_from(self.workspace_bytes).unwrap_or(0);
        lock(self.blas()?).run(product, (workspace, bytes), stream)
    }

    /// Runs a convolution with cuDNN or its replacement. The choice depends only on the libraries and the sizes.
    fn convolution(&self, step: ConvolutionStep, on: StreamId, stream: Handle, id: u64) -> Result<()> {
        let ConvolutionStep { convolution, before, after, otherwise } = step;
        let bytes = usize::try_from(self.workspace_bytes).unwrap_or(0);
        let Some(dnn) = self.dnn().ok().filter(|dnn| lock(dnn).takes(&convolution, bytes)) else {
            return otherwise.into_iter().try_for_each(|step| self.run(step, on, id));
        };
        let workspace = self.workspace(on)?;
        before.into_iter().try_for_each(|step| self.run(step, on, id))?;
        lock(dnn).convolve(&convolution, workspace, stream)?;
        after.into_iter().try_for_each(|step| self.run(step, on, id))
    }

    fn workspace(&self, on: StreamId) -> Result<u64> {
        let mut workspaces = lock(&self.workspaces);
        if let Some(&workspace) = workspaces.get(&on) {
            return Ok(workspace);
        }
        let workspace = self.driver.alloc(self.workspace_bytes)?;
        workspaces.insert(on, workspace);
        Ok(workspace)
    }

    /// Queues a copy from host memory. The caller may change the bytes once this returns.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn write(&self, to: u64, bytes: &[u8], on: StreamId) -> Result<()> {
        self.bind()?;
        self.staging.write(&self.driver, to, bytes, self.streams.get(&self.driver, on)?)
    }

    /// Appends bytes of device memory to `to`, after the work that is now on the stream.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn read(&self, from: u64, count: usize, to: &mut Vec<u8>, on: StreamId) -> Result<()> {
        self.bind()?;
        self.staging.read(&self.driver, from, count, to, self.streams.get(&self.driver, on)?)
    }

    /// Locks the pages of host memory, which must stay mapped until [`Gpu::unregister`]. Copies to and from it are then
    /// asynchronous, for every device of the process.
    ///
    /// # Errors
    /// The driver's errors: for example, the pages cannot be locked, or are already locked.
    pub fn register(&self, address: u64, bytes: u64) -> Result<()> {
        self.bind()?;
        self.driver.host_register(address, bytes)
    }

    /// Undoes [`Gpu::register`]. No copy may be in progress.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn unregister(&self, address: u64) -> Result<()> {
        self.bind()?;
        self.driver.host_unregister(address)
    }

    /// Bytes of its streams' workspaces, which are outside the allocator.
    pub fn workspaces_bytes(&self) -> u64 {
        lock(&self.workspaces).len() as u64 * self.workspace_bytes
    }

    /// Queues a copy between two addresses, in this device's memory or in host memory. Host memory must not change until the
    /// copy is done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn copy(&self, from: u64, to: u64, bytes: u64, on: StreamId) -> Result<()> {
        self.bind()?;
        self.driver.copy(to, from, bytes, self.streams.get(&self.driver, on)?)
    }

    /// Records an event after the work that is now on a stream.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn record(&self, on: StreamId) -> Result<EventId> {
        self.bind()?;
        self.streams.record(&self.driver, on)
    }

    /// Whether the work before an event is done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn is_done(&self, event: EventId) -> Result<bool> {
        self.bind()?;
        self.driver.is_done(handle(event))
    }

    /// Waits until the work before an event is done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn wait(&self, event: EventId) -> Result<()> {
        self.bind()?;
        self.driver.wait(handle(event))
    }

    /// Makes a stream wait for an event.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.bind()?;
        self.driver.stream_waits(self.streams.get(&self.driver, stream)?, handle(event))
    }

    /// Releases an event that is no longer needed.
    pub fn release(&self, event: EventId) {
        self.streams.recycle(event);
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn wait_all(&self) -> Result<()> {
        self.bind()?;
        // Waits for the streams, not the context: waiting for the context is an error while another thread captures.
        self.streams.all().into_iter().try_for_each(|stream| self.driver.synchronize_stream(stream))
    }

    /// Takes the first error that a kernel detected since the last call. If there is none, this costs only a lock and a
    /// load.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn take_fault(&self) -> Result<Option<Fault>> {
        // The memory read below was freed together with the context.
        if self.is_reset() {
            return Err(CudaError::Reset { ordinal: self.facts.ordinal });
        }
        let mut faults = lock(&self.faults);
        let Some(faults) = faults.as_mut().filter(|faults| faults.is_found()) else { return Ok(None) };
        self.bind()?;
        faults.take(&self.driver, self.streams.itself(&self.driver, StreamId::default())?)
    }

    /// Free and total bytes of the device. Memory that this process and others use outside the allocator is not free.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        self.bind()?;
        self.driver.memory_info()
    }

    /// Measures the time of a piece of work on a stream, in milliseconds.
    ///
    /// # Errors
    /// Errors of the driver or of the work.
    pub fn time<E: From<CudaError>>(
        &self,
        on: StreamId,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<f32, E> {
        self.bind()?;
        let stream = self.streams.get(&self.driver, on)?;
        let (begin, end) = (self.driver.create_event(true)?, self.driver.create_event(true)?);
        self.driver.record(begin, stream)?;
        work()?;
        self.bind()?;
        self.driver.record(end, stream)?;
        self.driver.wait(end)?;
        let elapsed = self.driver.elapsed_ms(begin, end)?;
        self.driver.destroy_event(begin)?;
        self.driver.destroy_event(end)?;
        Ok(elapsed)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // If the context is lost, each of these calls fails, and everything is freed when the process ends.
        if self.bind().is_err() {
            return;
        }
        let _ = self.driver.synchronize();
        if let Some(Ok(blas)) = self.blas.get() {
            lock(blas).close();
        }
        if let Some(Ok(dnn)) = self.dnn.get() {
            lock(dnn).close();
        }
        for (_, workspace) in std::mem::take(&mut *lock(&self.workspaces)) {
            let _ = self.driver.free(workspace);
        }
        if let Some(faults) = lock(&self.faults).take() {
            faults.close(&self.driver);
        }
        self.staging.close(&self.driver);
        self.streams.close(&self.driver);
        let _ = self.driver.release_context(self.device);
    }
}
