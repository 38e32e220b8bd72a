//! The state that a GPU's back end shares with its captured graphs: the device, and the operators that may
//! have caused an error.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use plimsoll_alloc::{DeviceMemory, DriverError, LabelId, StreamId};
use plimsoll_cuda::{CudaError, Fault, Gpu, Step};

use crate::backend::GivesUp;
use crate::cuda::{CudaCall, fault};
use crate::cuda_times;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::Kernel;
use crate::label;
use crate::properties::DeviceProperties;
use crate::view::Launch;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The possible cause of an error: an operator and the layer that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cause {
    pub(super) op: &'static str,
    pub(super) owner: LabelId,
}

/// The number of queued operators that are remembered as possible causes.
const REMEMBERED: usize = 64;

/// The error that destroyed the context, with the operators that may have caused it.
#[derive(Clone, Debug)]
pub(super) struct LostContext {
    source: CudaError,
    suspects: Vec<Cause>,
}

/// The number of each pair of a cause and an error kind that its kernel can report.
#[derive(Default)]
pub(super) struct Causes {
    all: Vec<(Cause, u32)>,
    numbers: BTreeMap<(Cause, u32), u64>,
}

/// The device and its state.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) gpu: Arc<Gpu>,
    pub(super) memory: DeviceMemory,
    pub(super) properties: DeviceProperties,
    /// Whether the host waits for each operator.
    pub(super) waits: bool,
    /// The causes and error kinds that kernels can report, by number.
    pub(super) causes: Mutex<Causes>,
    pub(super) recent: Mutex<VecDeque<Cause>>,
    pub(super) lost: Mutex<Option<LostContext>>,
    /// Why the host should not wait any longer, where other ranks take part in the device's work.
    pub(super) gives_up: OnceLock<GivesUp>,
}

impl Shared {
    pub(super) fn facts(&self) -> DeviceFacts {
        DeviceFacts { kind: DeviceKind::Cuda, capability: self.properties.capability }
    }

    /// The number of a cause and an error kind that its kernel can report.
    pub(super) fn number(&self, cause: Cause, kind: u32) -> u64 {
        let Causes { all, numbers } = &mut *lock(&self.causes);
        *numbers.entry((cause, kind)).or_insert_with(|| {
            all.push((cause, kind));
            all.len() as u64 - 1
        })
    }

    /// Converts an error of `plimsoll-cuda` that occurred in an operator.
    pub(super) fn failed(&self, source: CudaError, cause: Cause) -> Error {
        if source.is_sticky() {
            let mut suspects: Vec<Cause> = lock(&self.recent).iter().copied().collect();
            if self.waits {
                suspects = vec![cause];
            }
            return self.lost_by(lock(&self.lost).get_or_insert(LostContext { source, suspects }));
        }
        match source {
            CudaError::OutOfMemory { .. } => Error::Allocator {
                device: self.name.clone(),
                source: plimsoll_alloc::Error::Driver(DriverError::from(source)),
            },
            source => Error::Cuda { device: self.name.clone(), op: cause.op, source },
        }
    }

    /// The error for a lost context, which every later call returns.
    pub(super) fn lost_by(&self, LostContext { source, suspects }: &LostContext) -> Error {
        let first = suspects.first().copied().unwrap_or(Cause { op: "an operator", owner: LabelId(0) });
        let names: Vec<&str> = suspects.iter().map(|cause| cause.op).collect();
        let among = match names.as_slice() {
            [] | [_] => String::new(),
            names => format!(
                "; queued since the last wait: {}; CUDA_LAUNCH_BLOCKING=1 finds the failing one",
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

    /// Converts the result of a `plimsoll-cuda` call outside an operator.
    pub(super) fn done<T>(&self, result: plimsoll_cuda::Result<T>, op: &'static str) -> Result<T> {
        result.map_err(|source| self.failed(source, Cause { op, owner: label::current_layer() }))
    }

    /// The error for a fault that a kernel reported.
    pub(super) fn found(&self, fault: Fault) -> Error {
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

    /// Called when all earlier work is done, so that it cannot be the cause of later errors.
    pub(super) fn forget(&self) {
        lock(&self.recent).clear();
    }

    /// The number with which a step's kernel reports errors.
    pub(super) fn number_of(&self, step: &Step, cause: Cause) -> u64 {
        let kind = match step {
            Step::Launch(launch) => launch.args.fault_kind(),
            _ => None,
        };
        kind.map_or(0, |kind| self.number(cause, kind))
    }

    /// Records an operator that is about to be queued, as a possible cause of a later error.
    pub(super) fn remember(&self, cause: Cause) {
        let mut recent = lock(&self.recent);
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(cause);
    }

    pub(super) fn queue(
        &self,
        kernel: &dyn Kernel,
        launch: Launch<'_>,
        on: StreamId,
        owner: LabelId,
    ) -> Result<()> {
        let cause = Cause { op: kernel.name(), owner };
        let mut call = CudaCall::new(cause.op, self.facts(), launch);
        kernel.cuda(&mut call)?;
        self.remember(cause);
        for step in call.into_steps() {
            let number = self.number_of(&step, cause);
            cuda_times::run(&self.gpu, cause.op, step, on, number)
                .map_err(|source| self.failed(source, cause))?;
        }
        if self.waits && !self.gpu.is_capturing() {
            self.gpu.wait_all().map_err(|source| self.failed(source, cause))?;
        }
        Ok(())
    }
}
