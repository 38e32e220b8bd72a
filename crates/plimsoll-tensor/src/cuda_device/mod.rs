//! NVIDIA GPUs as devices: the work that operators describe is queued on the streams of `plimsoll-cuda`.
//!
//! Dispatch, the allocator and autograd are the same as on every other device. This folder has the back end and its errors.
//! If a kernel finds an index out of range, it is reported later, with the operator and its owner. If a driver error
//! destroys the context, the error names the operators that may have caused it, and every later call returns it again.

mod captured;
mod shared;
mod waiting;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};

use plimsoll_alloc::{DeviceMemory, EventId, LabelId, StreamId};
use plimsoll_cuda::{CudaError, CudaMemory, Gpu, GpuFacts, Libraries, Search};

use self::captured::{Captured, Captures};
use self::shared::{Cause, Shared, lock};
use crate::alloc_conf;
use crate::backend::{Backend, GivesUp, Queues, Replays, WORKSPACE_BYTES};
use crate::device::{Device, Inner};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::Kernel;
use crate::label;
use crate::properties::DeviceProperties;
use crate::view::{In, Launch, Out, View};

/// The open devices, one for each number.
static OPEN: Mutex<BTreeMap<u32, Weak<Inner>>> = Mutex::new(BTreeMap::new());

impl Device {
    /// An NVIDIA GPU by its number, like `torch.device("cuda", 0)`. Calls return the same device as long as anything
    /// uses it. NVIDIA's libraries are opened now or when first needed; none of them is needed for building. Allocator
    /// settings come from `PYTORCH_ALLOC_CONF` or `PYTORCH_CUDA_ALLOC_CONF`; with `CUDA_LAUNCH_BLOCKING=1` the host
    /// waits for each operator, so that an error is returned by the call that caused it.
    ///
    /// ```no_run
    /// use plimsoll_tensor::{Device, Tensor};
    /// let gpu = Device::cuda(0)?;
    /// let x = Tensor::ones(&[1024, 1024], &gpu)?;
    /// assert_eq!(x.matmul(&x)?.sum()?.item::<f32>()?, 1024.0 * 1024.0 * 1024.0);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a library is missing (the error lists every place that was searched), the device does not exist, or PyTorch
    /// would reject the settings.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        let mut open = lock(&OPEN);
        if let Some(device) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Device(device));
        }
        let device = Cuda::open(ordinal)?.into_device();
        open.insert(ordinal, Arc::downgrade(&device.0));
        Ok(device)
    }

    /// The number of NVIDIA GPUs that this process sees, like `torch.cuda.device_count`.
    ///
    /// ```no_run
    /// use plimsoll_tensor::Device;
    /// let gpus = (0..Device::cuda_count()?).map(Device::cuda).collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver is missing or finds no GPU.
    pub fn cuda_count() -> Result<u32> {
        let failed = |source| Error::Cuda { device: "cuda".to_owned(), op: "device_count", source };
        Gpu::count(&Search::from_env()).map_err(failed)
    }

    /// The address of a GPU on the PCI bus, such as `0000:1b:00.0`. Two processes that use one GPU see the same address. `None` for
    /// other devices.
    pub fn pci_bus_id(&self) -> Option<String> {
        self.gpu().map(|gpu| gpu.facts().pci_bus_id.clone())
    }
}

impl Device {
    /// Resets the device after a fault, such as an illegal address in a kernel, and returns it as newly opened.
    /// Everything that this process has on the device is lost. Operations on earlier handles and their tensors return
    /// an error that explains this; none of their memory is freed twice.
    ///
    /// Some drivers keep reporting a fault for the rest of the process (CUDA 13.0's does, after an illegal address or a
    /// trap on an H200). Then this returns the driver's error, and only a new process can use the device.
    ///
    /// ```no_run
    /// use plimsoll_tensor::{Device, Tensor};
    /// let gpu = Device::cuda(0)?;
    /// let lost = Tensor::ones(&[4], &gpu)?;
    /// let gpu = gpu.reset()?;
    /// assert!(lost.exp().unwrap_err().to_string().contains("from before cuda:0 was reset"));
    /// Tensor::ones(&[4], &gpu)?;
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device has no context (the host or a simulated one), or the handle is from before an earlier reset; also
    /// the driver's errors.
    pub fn reset(&self) -> Result<Device> {
        let mut open = lock(&OPEN);
        let Some(ordinal) = self.gpu().and_then(|_| self.backend().reset()) else {
            let message = format!("{}: only a GPU can be reset", self.name());
            return Err(Error::argument("reset", message));
        };
        let ordinal = ordinal?;
        open.remove(&ordinal);
        let device = Cuda::open(ordinal)?.into_device();
        open.insert(ordinal, Arc::downgrade(&device.0));
        Ok(device)
    }
}

/// An NVIDIA GPU and the libraries that were found, for diagnosing what is missing.
#[derive(Clone, Debug)]
pub struct CudaReport {
    /// The device.
    pub facts: GpuFacts,
    /// The number of devices that the driver reports.
    pub devices: u32,
    /// Its libraries.
    pub libraries: Libraries,
    /// Free and total bytes of its memory.
    pub memory: (u64, u64),
}

/// Queries a GPU and opens all of its libraries.
///
/// # Errors
/// The same errors as [`Device::cuda`].
pub fn cuda_report(ordinal: u32) -> Result<CudaReport> {
    let failed = |source| Error::Cuda { device: format!("cuda:{ordinal}"), op: "doctor", source };
    let search = Search::from_env();
    let gpu = Gpu::open(ordinal, search.clone(), 0).map_err(failed)?;
    let devices = Gpu::count(&search).map_err(failed)?;
    let memory = gpu.memory_info().map_err(failed)?;
    Ok(CudaReport { facts: gpu.facts().clone(), devices, libraries: gpu.libraries(), memory })
}

/// The back end.
struct Cuda {
    shared: Arc<Shared>,
    captures: Captures,
}

impl Deref for Cuda {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Cuda {
    fn open(ordinal: u32) -> Result<Cuda> {
        let name = format!("cuda:{ordinal}");
        let failed = |source| Error::Cuda { device: name.clone(), op: "open", source };
        let config = alloc_conf::from_env(&name)?;
        // cuBLASLt's workspace has the size that PyTorch chooses for cuBLAS on this kind of device.
        let gpu = Gpu::open(ordinal, Search::from_env(), WORKSPACE_BYTES).map_err(failed)?;
        let properties = properties(gpu.facts());
        let memory = DeviceMemory::new(config, CudaMemory::new(gpu.clone()));
        let waits =
            std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value != "0" && !value.is_empty());
        let (causes, recent, lost, gives_up) = Default::default();
        let shared =
            Arc::new(Shared { name, gpu, memory, properties, waits, causes, recent, lost, gives_up });
        Ok(Cuda { shared, captures: Captures::default() })
    }

    fn into_device(self) -> Device {
        let gpu = self.shared.gpu.clone();
        Device::new(Box::new(self), Some(gpu), None)
    }
}
/// The properties that the driver reports, with the rates from the GPU table if the product is listed.
fn properties(facts: &GpuFacts) -> DeviceProperties {
    let known = plimsoll_gpu::named(&facts.name).ok().map(DeviceProperties::of_gpu);
    let properties = known.unwrap_or_else(|| DeviceProperties::of_memory(&facts.name, facts.total_bytes));
    DeviceProperties {
        name: facts.name.clone(),
        memory_bytes: facts.total_bytes,
        capability: Some(facts.capability),
        multiprocessors: Some(facts.multiprocessors),
        ..properties
    }
}

impl Backend for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    fn has_values(&self) -> bool {
        true
    }

    fn facts(&self) -> DeviceFacts {
        self.shared.facts()
    }

    fn kernel_type(&self, _: &dyn Kernel, dtype: DType) -> DType {
        dtype
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn queues(&self) -> Option<&dyn Queues> {
        Some(self)
    }

    fn run(&self, kernel: &dyn Kernel, launch: Launch<'_>) -> Result<()> {
        self.queue(kernel, launch, StreamId::default(), label::current_layer())?;
        self.wait_all()
    }

    fn write(&self, to: View<'_>, bytes: &[u8], on: StreamId) -> Result<()> {
        self.done(self.gpu.write(to.first_address(), bytes, on), "to_device")
    }

    fn read(&self, from: View<'_>, bytes: &mut Vec<u8>, on: StreamId) -> Result<()> {
        let count = from.layout().len() * from.dtype().size();
        self.wait_for_stream(on)?;
        self.done(self.gpu.read(from.first_address(), count, bytes, on), "to_host")
    }

    fn copy_in(&self, from: In<'_>, to: View<'_>, on: StreamId) -> Result<()> {
        self.done(self.gpu.copy(from.view().first_address(), to.first_address(), to.span_bytes(), on), "copy")
    }

    fn copy_out(&self, from: View<'_>, to: Out<'_>, on: StreamId) -> Result<()> {
        let address = to.view().first_address();
        self.done(self.gpu.copy(from.first_address(), address, from.span_bytes(), on), "copy")
    }

    fn wait_unless(&self, gives_up: GivesUp) {
        // The first group's function also covers later groups, whose ranks are the same or a subset.
        let _ = self.shared.gives_up.set(gives_up);
    }

    fn reset(&self) -> Option<Result<u32>> {
        let failed = |source| Error::Cuda { device: self.name.clone(), op: "reset", source };
        Some(self.gpu.reset().map(|()| self.gpu.facts().ordinal).map_err(failed))
    }

    fn missing_library(&self) -> Option<String> {
        self.gpu.missing_dnn().map(ToString::to_string)
    }

    fn workspace_bytes(&self) -> u64 {
        self.gpu.workspaces_bytes()
    }
}

impl Queues for Cuda {
    fn launch(
        &self,
        kernel: Arc<dyn Kernel>,
        launch: Launch<'_>,
        on: StreamId,
        owner: LabelId,
    ) -> Result<()> {
        match kernel.varies().filter(|_| self.gpu.is_capturing()) {
            Some(varies) => self.captures.queue(&self.shared, (varies, kernel), &launch, on, owner),
            None => self.queue(&*kernel, launch, on, owner),
        }
    }

    fn register(&self, address: u64, bytes: u64) -> Result<()> {
        self.done(self.gpu.register(address, bytes), "pin_memory")
    }

    fn unregister(&self, address: u64) -> Result<()> {
        self.done(self.gpu.unregister(address), "pin_memory")
    }

    fn begin_capture(&self, on: StreamId) -> Result<()> {
        drop(self.captures.take());
        self.done(self.gpu.begin_capture(on), "capture")
    }

    fn end_capture(&self) -> Result<Box<dyn Replays>> {
        let varying = self.captures.take();
        let graph = self.done(self.gpu.end_capture(), "capture")?;
        Ok(Box::new(Captured::new(self.shared.clone(), graph, varying)))
    }

    fn abandon_capture(&self) {
        drop(self.captures.take());
        self.gpu.abandon_capture();
    }

    fn record(&self, on: StreamId) -> Result<EventId> {
        self.done(self.gpu.record(on), "record_event")
    }

    fn is_done(&self, event: EventId) -> Result<bool> {
        self.done(self.gpu.is_done(event), "query")
    }

    fn wait(&self, event: EventId) -> Result<()> {
        self.wait_for(&[event])?;
        self.done(self.gpu.wait(event), "synchronize")
    }

    fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.done(self.gpu.wait_on(stream, event), "wait_event")
    }

    fn wait_all(&self) -> Result<()> {
        self.wait_for_all()?;
        self.done(self.gpu.wait_all(), "synchronize")?;
        self.forget();
        Ok(())
    }

    fn release(&self, event: EventId) {
        self.gpu.release(event);
    }

    fn take_error(&self) -> Option<Error> {
        if self.gpu.is_reset() {
            let source = CudaError::Reset { ordinal: self.gpu.facts().ordinal };
            return Some(Error::Cuda { device: self.name.clone(), op: "reset", source });
        }
        if let Some(lost) = &*lock(&self.lost) {
            return Some(self.lost_by(lost));
        }
        match self.gpu.take_fault() {
            Ok(fault) => fault.map(|fault| self.found(fault)),
            Err(source) => Some(self.failed(source, Cause { op: "synchronize", owner: LabelId(0) })),
        }
    }
}
