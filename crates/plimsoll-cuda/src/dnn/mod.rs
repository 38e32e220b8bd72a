//! cuDNN through its graph API: plans for graphs of operations, cached by shape and type.
//!
//! | file | contents |
//! |---|---|
//! | `descriptor` | the library's descriptors: creating, setting, finalizing and reading them; all unsafe code |
//! | `graph` | a graph as plain data: tensors and operations with their attributes |
//! | this one | the library, the choice of a plan, running a plan |
//! | `convolution` | the three passes of a convolution as graphs |
//!
//! Note [Which plan]. The library's heuristic (mode A, then its fallbacks) ranks the ways to compute a graph, by sizes and types
//! alone. We take the first one that is deterministic, keeps the requested precision, and whose workspace fits into the stream's.
//! Nothing is timed, since that would make the bits of a run depend on timing.

pub(crate) mod convolution;
#[allow(unsafe_code)]
mod descriptor;
pub(crate) mod graph;

use std::collections::HashMap;

use self::convolution::Key;
use self::descriptor::{Api, Descriptor};
use self::graph::{Graph, Value, attribute, kind};
use crate::driver::Handle;
use crate::error::{CudaError, Result};
use crate::library::package;
use crate::search::Search;
use crate::step::Convolution;

/// The oldest version that has the graph API used here.
const OLDEST: usize = 90_000;
/// `CUDNN_HEUR_MODE_A` and `CUDNN_HEUR_MODE_FALLBACK`.
const MODES: [i64; 2] = [3, 2];
/// The maximum number of ways to compute a graph that are considered.
const MOST_FOUND: usize = 64;

/// The precision that an engine may compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// As given by the types in the graph.
    AsTyped,
    /// No tensor cores: multiplies in 32 bits, not in TF32's 19.
    NoTensorCores,
}

/// `cudnnBackendNumericalNote_t`.
mod note {
    pub(super) const TENSOR_CORE: i64 = 0;
    pub(super) const DOWN_CONVERT_INPUTS: i64 = 1;
    pub(super) const NONDETERMINISTIC: i64 = 4;
}

/// A way to compute a graph, with the descriptors from which it was made.
pub(crate) struct Plan {
    plan: Descriptor,
    _parts: Vec<Descriptor>,
}

/// The library, with a handle in the device's context.
pub(crate) struct Dnn {
    api: Api,
    handle: Handle,
    convolutions: HashMap<Key, Option<Plan>>,
}

impl Dnn {
    /// Opens the library; the device's context must be current on the thread. `driver` is the newest version of CUDA that the
    /// driver supports.
    ///
    /// # Errors
    /// If the library is missing, is too old, or needs a newer version of CUDA than the driver supports.
    pub(crate) fn open(search: &Search, driver: i32) -> Result<Dnn> {
        let api = Api::open(search, driver)?;
        let (version, cuda) = api.versions();
        let wrong = |why: String| {
            let why = format!("{why}; {}", package(driver));
            Err(CudaError::WrongVersion { library: "cuDNN", path: api.path(), why })
        };
        if version < OLDEST {
            return wrong(format!("version {} is too old; needs 9.0", text(version)));
        }
        if cuda / 1000 > usize::try_from(driver).unwrap_or(0) / 1000 {
            return wrong(format!(
                "it needs CUDA {}, but the driver supports only CUDA {}",
                cuda / 1000,
                driver / 1000
            ));
        }
        let handle = api.create_handle()?;
        Ok(Dnn { api, handle, convolutions: HashMap::new() })
    }

    /// Its version, such as `9.19.0`.
    pub(crate) fn version(&self) -> String {
        text(self.api.versions().0)
    }

    /// The file from which it was loaded.
    pub(crate) fn path(&self) -> String {
        self.api.path()
    }

    /// Whether it can compute a convolution in a workspace of this size. Plans the convolution at the first call.
    pub(crate) fn takes(&mut self, convolution: &Convolution, workspace_bytes: usize) -> bool {
        let key = Key::of(convolution);
        if let Some(plan) = self.convolutions.get(&key) {
            return plan.is_some();
        }
        let plan = self.plan(&key.graph(), key.precision(), workspace_bytes);
        let takes = plan.is_some();
        self.convolutions.insert(key, plan);
        takes
    }

    /// Queues a convolution for which [`Dnn::takes`] returned true.
    pub(crate) fn convolve(&self, convolution: &Convolution, workspace: u64, stream: Handle) -> Result<()> {
        let plan = self.convolutions.get(&Key::of(convolution)).and_then(Option::as_ref);
        let Some(plan) = plan else {
            return Err(CudaError::NoAlgorithm { product: format!("{convolution:?}") });
        };
        self.run(plan, &convolution::tensors(convolution), workspace, stream)
    }

    /// Plans a graph: Note [Which plan]. `None` if the library has no suitable plan.
    pub(crate) fn plan(&self, graph: &Graph, precision: Precision, workspace_bytes: usize) -> Option<Plan> {
        let mut parts: Vec<Descriptor> = Vec::new();
        for described in graph.descriptions() {
            let mut attributes = described.attributes.clone();
            if described.kind == kind::OPERATION_GRAPH {
                attributes.push((attribute::GRAPH_HANDLE, Value::Handle(self.handle)));
            }
            parts.push(self.api.make(described.kind, &attributes, &parts).ok()?);
        }
        let operations = parts.len() - 1;
        for mode in MODES {
            let attributes = [
                (attribute::HEURISTICS_GRAPH, Value::Descriptors(vec![operations])),
                (attribute::HEURISTICS_MODE, Value::Choice { kind: kind::HEURISTICS_MODE, value: mode }),
            ];
            let Ok(heuristics) = self.api.make(kind::HEURISTICS, &attributes, &parts) else { continue };
            let found =
                self.api.parts(&heuristics, attribute::HEURISTICS_RESULTS, kind::CONFIGURATION, MOST_FOUND);
            for configuration in found.unwrap_or_default() {
                if !self.keeps_to(&configuration, precision) {
                    continue;
                }
                if let Some(plan) = self.finish(&configuration, workspace_bytes) {
                    parts.extend([heuristics, configuration]);
                    return Some(Plan { plan, _parts: parts });
                }
            }
        }
        None
    }

    /// Whether a configuration's engine is deterministic and computes in the requested precision.
    fn keeps_to(&self, configuration: &Descriptor, precision: Precision) -> bool {
        let engine = self.api.parts(configuration, attribute::CONFIGURATION_ENGINE, kind::ENGINE, 1);
        let Some(engine) = engine.ok().and_then(|mut engines| engines.pop()) else { return false };
        let notes = self.api.notes(&engine, attribute::ENGINE_NUMERICAL_NOTES);
        let has = |note: i64| notes.contains(&note);
        let precise = precision == Precision::AsTyped || !has(note::TENSOR_CORE);
        precise && !has(note::NONDETERMINISTIC) && !has(note::DOWN_CONVERT_INPUTS)
    }

    /// The plan of a configuration, if it is supported and its workspace fits.
    fn finish(&self, configuration: &Descriptor, workspace_bytes: usize) -> Option<Descriptor> {
        let attributes = [(attribute::PLAN_HANDLE, Value::Handle(self.handle))];
        let plan =
            self.api.make_of(kind::PLAN, &attributes, attribute::PLAN_CONFIGURATION, configuration).ok()?;
        let bytes = self.api.number(&plan, attribute::PLAN_WORKSPACE).ok()?;
        let bytes = usize::try_from(bytes).ok()?;
        (bytes <= workspace_bytes).then_some(plan)
    }

    /// Queues a plan. `tensors` are the unique numbers of the graph's tensors and their addresses.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        tensors: &[(i64, u64)],
        workspace: u64,
        stream: Handle,
    ) -> Result<()> {
        self.api.set_stream(self.handle, stream)?;
        let (numbers, addresses) = tensors.iter().map(|&(number, address)| (number, address)).unzip();
        let attributes = [
            (attribute::PACK_NUMBERS, Value::Integers(numbers)),
            (attribute::PACK_POINTERS, Value::Addresses(addresses)),
            (attribute::PACK_WORKSPACE, Value::Addresses(vec![workspace])),
        ];
        let pack = self.api.make(kind::VARIANT_PACK, &attributes, &[])?;
        self.api.execute(self.handle, &plan.plan, &pack)
    }

    /// Frees the library's device memory. Nothing may be queued with the library after this.
    pub(crate) fn close(&mut self) {
        self.convolutions.clear();
        self.api.destroy_handle(self.handle);
    }
}

fn text(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
