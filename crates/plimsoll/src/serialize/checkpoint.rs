//! Everything needed to resume training, in one file: [`Checkpoint`]. It also opens folders saved by several ranks.
//!
//! The file is in safetensors format: tensors `model.…` and `optimizer.…`, and everything else as JSON in its header. So other
//! tools can read the weights, and the file is replaced atomically.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Device, RngState, Tensor};
use serde_json::{Map, Value, json};

use super::async_save::AsyncSave;
use super::distributed::DistributedSource;
use super::layout;
use super::safetensors::{CHECKPOINT, SafetensorsFile};
use crate::nn::{Module, check_listed};
use crate::optim::{GroupState, Optimizer, OptimizerState, ParamState};
use crate::state_dict::{SerializeError, StateDict, Strict, TensorSource};

/// A model, optimizers, random number generators, and values (schedulers, epoch, position in the data), from which
/// training resumes bit for bit.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::optim::{Adam, AdamOptions, Optimizer};
/// use plimsoll::serialize::Checkpoint;
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let build = |seed| Sequential::new(&Scope::new(&device, seed)).add("fc", |s| Linear::new(s, 4, 2));
/// let (model, path) = (build(1)?, std::env::temp_dir().join(format!("plimsoll-{}.ckpt", std::process::id())));
/// let mut adam = Adam::new(model.parameters(), AdamOptions::default());
/// model.forward(&Tensor::ones(&[1, 4], &device)?)?.sum()?.backward()?;
/// adam.step()?;
/// Checkpoint::default().model(&model).optimizer(&adam).generator("cpu", &device).value("epoch", 3).save(&path)?;
///
/// // In another process:
/// let (model, saved) = (build(2)?, Checkpoint::open(&path)?);
/// let mut adam = Adam::new(model.parameters(), AdamOptions::default());
/// saved.load_model(&model)?;
/// saved.load_optimizer(&mut adam)?;
/// saved.load_generator("cpu", &device)?;
/// assert_eq!(saved.get("epoch"), Some(&3.into()));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Checkpoint {
    tensors: StateDict,
    optimizer_groups: Vec<GroupState>,
    optimizer_steps: BTreeMap<usize, u64>,
    generators: BTreeMap<String, RngState>,
    values: Map<String, Value>,
    saved: Option<Saved>,
}

/// Reads a tensor of an optimizer's state. It receives the number of the parameter and the tensor's name in a source.
pub(crate) type ReadState<'a> = dyn Fn(usize, &str, &dyn TensorSource) -> Result<Tensor, SerializeError> + 'a;

/// Where the tensors of a checkpoint are, if it was opened.
#[derive(Debug)]
enum Saved {
    File(Box<SafetensorsFile>),
    Folder(Box<DistributedSource>),
}

impl Checkpoint {
    /// Adds the parameters and buffers of a model.
    #[must_use]
    pub fn model(self, model: &dyn Module) -> Checkpoint {
        self.model_state(&model.state_dict())
    }

    /// Adds the state dict of a model.
    #[must_use]
    pub fn model_state(mut self, state: &StateDict) -> Checkpoint {
        for (name, tensor) in state.iter() {
            self.tensors.insert(format!("model.{name}"), tensor.clone());
        }
        self
    }

    /// Adds the state and options of an optimizer.
    #[must_use]
    pub fn optimizer(self, optimizer: &dyn Optimizer) -> Checkpoint {
        self.optimizer_state(optimizer.state_dict())
    }

    /// Adds the state dict of an optimizer.
    #[must_use]
    pub fn optimizer_state(mut self, state: OptimizerState) -> Checkpoint {
        let OptimizerState { state, param_groups } = state;
        for (number, ParamState { step, tensors }) in state {
            self.optimizer_steps.extend(step.map(|step| (number, step)));
            for (name, tensor) in tensors {
                self.tensors.insert(format!("optimizer.{number}.{name}"), tensor);
            }
        }
        self.optimizer_groups = param_groups;
        self
    }

    /// Adds the state of a device's random number generator under a name.
    #[must_use]
    pub fn generator(mut self, name: &str, device: &Device) -> Checkpoint {
        self.generators.insert(name.to_owned(), device.rng_state());
        self
    }

    /// Adds a value: a scheduler's `state_dict()`, the epoch, or the number of the next batch.
    #[must_use]
    pub fn value(mut self, name: &str, value: impl Into<Value>) -> Checkpoint {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// Writes the file, first under a temporary name: the last checkpoint stays until this one is on disk.
    ///
    /// # Errors
    /// If the disk is full, the folder does not exist, or tensors have no values. The previous save is unchanged.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SerializeError> {
        let _entry = Entry::here();
        check_listed("save", self.tensors.iter().map(|(_, tensor)| tensor))?;
        let groups: Vec<Value> = self
            .optimizer_groups
            .iter()
            .map(|GroupState { options, params }| json!({ "options": options, "params": params }))
            .collect();
        let generators: BTreeMap<&String, Value> = self
            .generators
            .iter()
            .map(|(name, state)| (name, json!({ "seed": state.seed, "stream": state.next_stream })))
            .collect();
        let rest = json!({
            "optimizer": { "param_groups": groups, "steps": self.optimizer_steps },
            "generators": generators,
            "values": self.values,
        });
        let texts = BTreeMap::from([(CHECKPOINT.to_owned(), rest.to_string())]);
        layout::save_as(self.tensors.iter(), texts, path.as_ref())
    }

    /// [`Checkpoint::save`] on a thread, while training goes on. Waits for the previous save of `saving`, and copies the tensors
    /// to pinned host memory before it returns ([`StateDict::stage`]). The copies need as many bytes as the file.
    ///
    /// # Errors
    /// The error of the previous save, or if no pinned memory is available: nothing is then saved. The errors of this save
    /// are returned by [`AsyncSave::wait`], or by the next save.
    #[track_caller]
    pub fn save_async(&self, path: impl AsRef<Path>, saving: &mut AsyncSave) -> Result<(), SerializeError> {
        let _entry = Entry::here();
        saving.wait().map(drop)?;
        let Checkpoint { optimizer_groups, optimizer_steps, generators, values, .. } = self;
        let staged = Checkpoint {
            tensors: self.tensors.stage()?,
            optimizer_groups: optimizer_groups.clone(),
            optimizer_steps: optimizer_steps.clone(),
            generators: generators.clone(),
            values: values.clone(),
            saved: None,
        };
        let path = path.as_ref().to_owned();
        saving.start(move || staged.save(&path).map(|()| path))
    }

    /// Opens a checkpoint; tensors are read when they are loaded. `path` is a file, the folder of a
    /// [`DistributedCheckpoint`](super::DistributedCheckpoint), or the folder of the run that saved it, whose newest
    /// checkpoint is then opened.
    ///
    /// # Errors
    /// If the file is missing, damaged, or not a checkpoint.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, SerializeError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Self::open_folder(path);
        }
        let file = SafetensorsFile::open(path)?;
        let wrong = |what: &str| SerializeError::format(path, format!("not a checkpoint: {what}"));
        let text = file
            .text(CHECKPOINT)
            .ok_or_else(|| wrong("it has tensors only; load it with `serialize::open`"))?;
        let rest: Value = serde_json::from_str(text).map_err(|why| wrong(&why.to_string()))?;
        let group = |group: &Value| {
            let number = |number: &Value| number.as_u64().map(|number| number as usize);
            let params: Option<Vec<usize>> = group["params"].as_array()?.iter().map(number).collect();
            Some(GroupState { options: group["options"].as_object()?.clone(), params: params? })
        };
        let step = |(number, step): (&String, &Value)| Some((number.parse().ok()?, step.as_u64()?));
        let generator = |(name, state): (&String, &Value)| {
            let [seed, stream] = ["seed", "stream"].map(|key| state[key].as_u64());
            Some((name.clone(), RngState { seed: seed?, next_stream: stream? }))
        };
        let optimizer = &rest["optimizer"];
        let groups: Option<Vec<GroupState>> =
            optimizer["param_groups"].as_array().and_then(|groups| groups.iter().map(group).collect());
        let steps: Option<BTreeMap<usize, u64>> =
            optimizer["steps"].as_object().and_then(|steps| steps.iter().map(step).collect());
        let generators: Option<BTreeMap<String, RngState>> =
            rest["generators"].as_object().and_then(|all| all.iter().map(generator).collect());
        let values = rest["values"].as_object().cloned();
        let (Some(optimizer_groups), Some(optimizer_steps), Some(generators), Some(values)) =
            (groups, steps, generators, values)
        else {
            return Err(wrong("the JSON in its header was not written by this version"));
        };
        let (tensors, saved) = (StateDict::default(), Some(Saved::File(Box::new(file))));
        Ok(Checkpoint { tensors, optimizer_groups, optimizer_steps, generators, values, saved })
    }

    fn open_folder(path: &Path) -> Result<Checkpoint, SerializeError> {
        let Some(source) = DistributedSource::open(path)? else {
            let message =
                "not a checkpoint: a complete checkpoint of several ranks has a file checkpoint.json";
            return Err(SerializeError::format(path, message));
        };
        let (optimizer_groups, optimizer_steps) = source.optimizer();
        let (generators, values) = (source.generators(), source.values().clone());
        let (tensors, saved) = (StateDict::default(), Some(Saved::Folder(Box::new(source))));
        Ok(Checkpoint { tensors, optimizer_groups, optimizer_steps, generators, values, saved })
    }

    /// A value, by name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Loads the parameters and buffers of the model.
    ///
    /// # Errors
    /// If the checkpoint is of another model: the error lists all names and shapes that do not match, and nothing has
    /// changed. Also if the file is damaged, or memory runs out.
    pub fn load_model(&self, model: &dyn Module) -> Result<(), SerializeError> {
        model.load_state_dict(&self.model_source(), Strict::Yes).map(drop)
    }

    /// The parameters and buffers of the model, for loading them in a different way.
    pub fn model_source(&self) -> impl TensorSource + '_ {
        Part { of: self, prefix: "model." }
    }

    /// Loads the state and options of the optimizer.
    ///
    /// # Errors
    /// The same errors as [`Optimizer::load_state_dict`], or if the file is damaged.
    pub fn load_optimizer(&self, optimizer: &mut dyn Optimizer) -> Result<(), SerializeError> {
        let parameters = optimizer.parameters();
        let device_of = |number: usize| {
            parameters.get(number).map_or_else(Device::cpu, |parameter| parameter.device().clone())
        };
        let state = self.read_optimizer(&|number, name, source| source.tensor(name, &device_of(number)))?;
        Ok(optimizer.load_state_dict(&state)?)
    }

    /// Reads the state and options of the optimizer, for loading them in a different way.
    ///
    /// # Errors
    /// If the file is damaged, or memory runs out.
    pub fn read_optimizer_state(&self, device: &Device) -> Result<OptimizerState, SerializeError> {
        self.read_optimizer(&|_, name, source| source.tensor(name, device))
    }

    /// Reads the optimizer's state. `read` receives the number of a parameter and the name of a tensor in a source.
    pub(crate) fn read_optimizer(&self, read: &ReadState<'_>) -> Result<OptimizerState, SerializeError> {
        let mut state =
            OptimizerState { param_groups: self.optimizer_groups.clone(), ..OptimizerState::default() };
        for (&number, &step) in &self.optimizer_steps {
            state.state.entry(number).or_default().step = Some(step);
        }
        let part = Part { of: self, prefix: "optimizer." };
        for name in part.names() {
            let Some((number, key)) =
                name.split_once('.').and_then(|(n, key)| Some((n.parse::<usize>().ok()?, key)))
            else {
                continue;
            };
            let tensor = read(number, &name, &part)?;
            state.state.entry(number).or_default().tensors.insert(key.to_owned(), tensor);
        }
        Ok(state)
    }

    /// Restores the state of a device's random number generator.
    ///
    /// # Errors
    /// If a name was not saved.
    pub fn load_generator(&self, name: &str, device: &Device) -> Result<(), SerializeError> {
        let Some(&state) = self.generators.get(name) else {
            let message = format!("the checkpoint has no generator `{name}`");
            return Err(plimsoll_tensor::Error::Argument { op: "load_generator", message }.into());
        };
        device.set_rng_state(state);
        Ok(())
    }

    /// The tensors loaded so far whose values include NaN or infinity, by their names in the file: `model.fc.weight`.
    pub fn not_finite(&self) -> Vec<String> {
        self.source().not_finite()
    }

    fn source(&self) -> &dyn TensorSource {
        match &self.saved {
            Some(Saved::File(file)) => file.as_ref(),
            Some(Saved::Folder(folder)) => folder.as_ref(),
            None => &self.tensors,
        }
    }
}

/// The tensors of a checkpoint whose names have a common prefix, which is removed.
struct Part<'a> {
    of: &'a Checkpoint,
    prefix: &'static str,
}

impl TensorSource for Part<'_> {
    fn names(&self) -> Vec<String> {
        let names = self.of.source().names();
        names.iter().filter_map(|name| name.strip_prefix(self.prefix)).map(str::to_owned).collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.of.source().shape(&format!("{}{name}", self.prefix))
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        self.of.source().tensor(&format!("{}{name}", self.prefix), device)
    }

    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        self.of.source().rows(&format!("{}{name}", self.prefix), rows, device)
    }

    fn not_finite(&self) -> Vec<String> {
        let names = self.of.source().not_finite();
        names.iter().filter_map(|name| name.strip_prefix(self.prefix)).map(str::to_owned).collect()
    }
}
