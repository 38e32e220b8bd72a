//! NVIDIA GPUs as devices: what operators describe is queued on the streams of `plimsoll-cuda`.
//!
//! The road, the allocator and autograd are those of every other device. Here are the back end and its errors: a kernel that
//! finds an index out of range says so later, by operator and owner; an error of the driver after which the context is lost
//! names the operators that may have caused it, and every later call gives it again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use plimsoll_alloc::{Config, DeviceMemory, DriverError, EventId, LabelId, StreamId};
use plimsoll_cuda::{CudaError, CudaMemory, Fault, Gpu, GpuFacts, Libraries, Search, Step};

use crate::backend::{Backend, Queues};
use crate::cuda::{CudaCall, fault};
use crate::cuda_times;
use crate::device::{Device, Inner};
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::Kernel;
use crate::label;
use crate::properties::DeviceProperties;
use crate::view::{Launch, View};

/// Opens or finds a device that is open: one for each number.
static OPEN: Mutex<BTreeMap<u32, Weak<Inner>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// An NVIDIA GPU by its number, as `torch.device("cuda", 0)`: the same device for as long as anything uses it. Its libraries
    /// are opened now or when they are first needed; none is needed to build. Settings of its allocator come from
    /// `PYTORCH_ALLOC_CONF` or `PYTORCH_CUDA_ALLOC_CONF`; with `CUDA_LAUNCH_BLOCKING=1` each operator is waited for, so that an
    /// error comes from its own call.
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
    /// A library is missing, with every place that was searched; there is no such device; settings that PyTorch refuses.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        let mut open = lock(&OPEN);
        if let Some(device) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Device(device));
        }
        let device = Device::new(Box::new(Cuda::open(ordinal)?));
        open.insert(ordinal, Arc::downgrade(&device.0));
        Ok(device)
    }
}

/// What is there of an NVIDIA GPU and its libraries: for people who look for what is missing.
#[derive(Clone, Debug)]
pub struct CudaReport {
    /// The device.
    pub facts: GpuFacts,
    /// How many devices the driver sees.
    pub devices: u32,
    /// Its libraries.
    pub libraries: Libraries,
    /// Bytes of its memory that are free, and all of them.
    pub memory: (u64, u64),
}

/// Looks at a GPU and opens all of its libraries.
///
/// # Errors
/// As [`Device::cuda`].
pub fn cuda_report(ordinal: u32) -> Result<CudaReport> {
    let failed = |source| Error::Cuda { device: format!("cuda:{ordinal}"), op: "doctor", source };
    let search = Search::from_env();
    let gpu = Gpu::open(ordinal, search.clone(), 0).map_err(failed)?;
    let devices = Gpu::count(&search).map_err(failed)?;
    let memory = gpu.memory_info().map_err(failed)?;
    Ok(CudaReport { facts: gpu.facts().clone(), devices, libraries: gpu.libraries(), memory })
}

/// Who is blamed for an error: an operator and the layer that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    op: &'static str,
    owner: LabelId,
}

/// Operators that were queued and may not have run, oldest first.
const REMEMBERED: usize = 64;

/// The error after which the context is lost.
#[derive(Clone, Debug)]
struct Lost {
    source: CudaError,
    suspects: Vec<Cause>,
}

/// Causes with the kinds of error that their kernels can find, and the number of each.
#[derive(Default)]
struct Causes {
    all: Vec<(Cause, u32)>,
    numbers: BTreeMap<(Cause, u32), u64>,
}

struct Cuda {
    name: String,
    gpu: Arc<Gpu>,
    memory: DeviceMemory,
    properties: DeviceProperties,
    /// Whether each operator is waited for.
    waits: bool,
    /// The causes and kinds of what kernels can find wrong, by their numbers.
    causes: Mutex<Causes>,
    recent: Mutex<VecDeque<Cause>>,
    lost: Mutex<Option<Lost>>,
}

impl Cuda {
    fn open(ordinal: u32) -> Result<Cuda> {
        let name = format!("cuda:{ordinal}");
        let failed = |source| Error::Cuda { device: name.clone(), op: "open", source };
        let config = config(&name)?;
        // cuBLASLt's workspace is as large as PyTorch makes cuBLAS's on this kind of device.
        let gpu = Gpu::open(ordinal, Search::from_env(), WORKSPACE_BYTES).map_err(failed)?;
        let properties = properties(gpu.facts());
        let memory = DeviceMemory::new(config, CudaMemory::new(gpu.clone()));
        let waits =
            std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value != "0" && !value.is_empty());
        let (causes, recent, lost) = Default::default();
        Ok(Cuda { name, gpu, memory, properties, waits, causes, recent, lost })
    }

    /// The number of a cause and of a kind of error that its kernel can find.
    fn number(&self, cause: Cause, kind: u32) -> u64 {
        let Causes { all, numbers } = &mut *lock(&self.causes);
        *numbers.entry((cause, kind)).or_insert_with(|| {
            all.push((cause, kind));
            all.len() as u64 - 1
        })
    }

    /// An error of the edge, for an operator.
    fn failed(&self, source: CudaError, cause: Cause) -> Error {
        if source.is_sticky() {
            let mut suspects: Vec<Cause> = lock(&self.recent).iter().copied().collect();
            if self.waits {
                suspects = vec![cause];
            }
            return self.lost_by(lock(&self.lost).get_or_insert(Lost { source, suspects }));
        }
        match source {
            CudaError::OutOfMemory { .. } => Error::Allocator {
                device: self.name.clone(),
                source: plimsoll_alloc::Error::Driver(DriverError::from(source)),
            },
            source => Error::Cuda { device: self.name.clone(), op: cause.op, source },
        }
    }

    /// The error of a lost context, which every call gives from then on.
    fn lost_by(&self, Lost { source, suspects }: &Lost) -> Error {
        let first = suspects.first().copied().unwrap_or(Cause { op: "an operator", owner: LabelId(0) });
        let names: Vec<&str> = suspects.iter().map(|cause| cause.op).collect();
        let among = match names.as_slice() {
            [] | [_] => String::new(),
            names => format!(
                "; queued since the last wait: {}; CUDA_LAUNCH_BLOCKING=1 finds the one",
                names.join(", ")
            ),
        };
        let source = match source.clone() {
            CudaError::Call { call, name, text, is_sticky } => {
                CudaError::Call { call, name, text: text + &among, is_sticky }
            }
            other => other,
        };
        let cause = Box::new(Error::Cuda { device: self.name.clone(), op: first.op, source });
        Error::Late { device: self.name.clone(), op: first.op, owner: label::text(first.owner), cause }
    }

    /// A call of the edge that is no operator's.
    fn done<T>(&self, result: plimsoll_cuda::Result<T>, op: &'static str) -> Result<T> {
        result.map_err(|source| self.failed(source, Cause { op, owner: label::current_layer() }))
    }

    /// What a kernel found wrong, in words.
    fn found(&self, fault: Fault) -> Error {
        let at = usize::try_from(fault.id).unwrap_or(usize::MAX);
        let cause = lock(&self.causes).all.get(at).copied();
        let (cause, kind) = cause.unwrap_or((Cause { op: "an operator", owner: LabelId(0) }, fault::INDEX));
        let Fault { value, row, limit, .. } = fault;
        let size = |n: i64| usize::try_from(n).unwrap_or(0);
        let error = match kind {
            fault::TARGET => Error::Target { op: cause.op, row: size(row), value, classes: size(limit) },
            fault::WEIGHT if value < 0 => {
                Error::argument(cause.op, format!("row {row} has only {limit} weights above 0: draw fewer"))
            }
            fault::WEIGHT => Error::argument(
                cause.op,
                format!("the weight at [{row}, {value}]: needs finite weights of at least 0"),
            ),
            _ => Error::argument(
                cause.op,
                format!("index {value} at position {row} is out of range: use 0 to {}", limit - 1),
            ),
        };
        let owner = label::text(cause.owner);
        Error::Late { device: self.name.clone(), op: cause.op, owner, cause: Box::new(error) }
    }

    /// All work before now is done: nothing queued so far is to blame for what comes.
    fn forget(&self) {
        lock(&self.recent).clear();
    }

    fn queue(&self, kernel: &dyn Kernel, launch: Launch<'_>, on: StreamId, owner: LabelId) -> Result<()> {
        let cause = Cause { op: kernel.name(), owner };
        let mut call = CudaCall::new(cause.op, self.facts(), launch);
        kernel.cuda(&mut call)?;
        let mut recent = lock(&self.recent);
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(cause);
        drop(recent);
        for step in call.into_steps() {
            let kind = match &step {
                Step::Launch(launch) => launch.args.fault_kind(),
                _ => None,
            };
            let number = kind.map_or(0, |kind| self.number(cause, kind));
            cuda_times::run(&self.gpu, cause.op, step, on, number)
                .map_err(|source| self.failed(source, cause))?;
        }
        if self.waits {
            self.gpu.wait_all().map_err(|source| self.failed(source, cause))?;
        }
        Ok(())
    }
}

/// As PyTorch on GPUs from Hopper on.
const WORKSPACE_BYTES: u64 = 32 << 20;

fn config(name: &str) -> Result<Config> {
    let setting = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
    let Some((setting, text)) = setting.iter().find_map(|name| Some((name, std::env::var(name).ok()?)))
    else {
        return Ok(Config::default());
    };
    let parsed = Config::parse(&text);
    Ok(parsed.map_err(|error| Error::argument("cuda", format!("{name}: {setting}={text}: {error}")))?.config)
}

/// What the driver says, with the rates of the table where the product is in it.
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
        DeviceFacts { kind: DeviceKind::Cuda, capability: self.properties.capability }
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
        self.done(self.gpu.read(from.first_address(), count, bytes, on), "to_host")
    }

    fn copy(&self, from: View<'_>, to: View<'_>, on: StreamId) -> Result<()> {
        let bytes = (from.layout().len() * from.dtype().size()) as u64;
        self.done(self.gpu.copy(from.first_address(), to.first_address(), bytes, on), "copy")
    }

    fn resident_bytes(&self) -> Option<u64> {
        None
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
        self.queue(&*kernel, launch, on, owner)
    }

    fn record(&self, on: StreamId) -> Result<EventId> {
        self.done(self.gpu.record(on), "record_event")
    }

    fn is_done(&self, event: EventId) -> Result<bool> {
        self.done(self.gpu.is_done(event), "query")
    }

    fn wait(&self, event: EventId) -> Result<()> {
        self.done(self.gpu.wait(event), "synchronize")
    }

    fn wait_on(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.done(self.gpu.wait_on(stream, event), "wait_event")
    }

    fn wait_all(&self) -> Result<()> {
        self.done(self.gpu.wait_all(), "synchronize")?;
        self.forget();
        Ok(())
    }

    fn release(&self, event: EventId) {
        self.gpu.release(event);
    }

    fn take_error(&self) -> Option<Error> {
        if let Some(lost) = &*lock(&self.lost) {
            return Some(self.lost_by(lost));
        }
        match self.gpu.take_fault() {
            Ok(fault) => fault.map(|fault| self.found(fault)),
            Err(source) => Some(self.failed(source, Cause { op: "synchronize", owner: LabelId(0) })),
        }
    }
}
