//! The place of a layer in its model: its path, its device, and the seed of its parameters.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_tensor::label::{self, Category, LabelId, Span};
use plimsoll_tensor::op::RandomStream;
use plimsoll_tensor::{DType, Device, Error, ProcessGroup, Result, State, Tensor, no_grad};

use super::made::Model;
use super::tensor_parallel::{Cut, TensorParallel};
use super::{Buffer, Init, Parameter};

/// A place in a model under construction.
///
/// Each parameter draws its initial values from its own random stream, which its path selects, so adding or reordering layers
/// does not change the initial values of other layers. A path must therefore be unique: all scopes below a root share a list
/// of the paths in use, and a second parameter with the same path is an error.
///
/// ```
/// use plimsoll::{Device, nn::Scope};
/// let root = Scope::new(&Device::cpu(), 42);
/// assert_eq!(root.at("blocks").at("3").path(), "blocks.3");
/// ```
#[derive(Clone, Debug)]
pub struct Scope {
    device: Device,
    seed: u64,
    path: String,
    /// The paths of all parameters made from this root.
    taken: Arc<Mutex<BTreeSet<String>>>,
    /// The parameters made from this root that still exist.
    model: Arc<Model>,
    /// Whether parameters get memory only when they are used.
    is_deferred: bool,
    /// The ranks that share each layer, if there are several.
    region: Option<TensorParallel>,
}

impl Scope {
    /// The root of a new model on a device; no path is in use yet. All initial values are derived from `seed`.
    pub fn new(device: &Device, seed: u64) -> Scope {
        Scope {
            device: device.clone(),
            seed,
            path: String::new(),
            taken: Arc::default(),
            model: Arc::default(),
            is_deferred: false,
            region: None,
        }
    }

    /// The same place, but with parameters that have no memory until an operation uses them. Their initial values are
    /// drawn at that time, and are bit-identical. So a model that is too large for a device can be built, and then
    /// sharded by [`fully_shard`](crate::parallel::fully_shard), one unit at a time. Like PyTorch's `meta` device.
    ///
    /// ```
    /// use plimsoll::nn::{Linear, Module, Scope};
    /// use plimsoll::{Device, State, Tensor};
    /// let device = Device::cpu_with(Default::default());
    /// let fc = Linear::new(&Scope::new(&device, 1).deferred(), 64, 32)?;
    /// assert_eq!((fc.weight().state(), device.memory_allocated()), (State::Evicted, 0));
    /// fc.forward(&Tensor::ones(&[1, 64], &device)?)?;
    /// assert_eq!(fc.weight().state(), State::Resident);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    #[must_use]
    pub fn deferred(mut self) -> Scope {
        self.is_deferred = true;
        self
    }

    /// The same place, but with layers that are divided among the ranks of a group (tensor parallelism): each rank has
    /// a part of each [`ColumnParallelLinear`](super::ColumnParallelLinear),
    /// [`RowParallelLinear`](super::RowParallelLinear) and [`VocabParallelEmbedding`](super::VocabParallelEmbedding),
    /// and thus of the models [`Gpt2`](crate::models::Gpt2) and [`Llama`](crate::models::Llama). All ranks get the same
    /// data.
    ///
    /// Between these layers, a rank has a part of the tokens (sequence parallelism). So any other parameter made here
    /// must be used on the rank's own tokens, as in normalization: the ranks then add up its gradients. Dropout masks
    /// must differ between ranks, so seed the ranks' devices differently.
    ///
    /// ```
    /// use plimsoll::models::{Gpt2, Gpt2Config};
    /// use plimsoll::nn::{Module, Scope};
    /// use plimsoll::parallel::{DdpOptions, DeviceMesh, DistributedDataParallel};
    /// use plimsoll::{Device, ProcessGroup, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(2 << 30)); // one of 8 ranks
    /// let mesh = DeviceMesh::new(&ProcessGroup::simulated(0, 8), &[("dp", 2), ("tp", 4)])?;
    /// let model = Gpt2::new(&Scope::new(&device, 1).tensor_parallel(mesh.group("tp")?), Gpt2Config::small())?;
    /// let _ddp = DistributedDataParallel::new(&model, mesh.group("dp")?, DdpOptions::default())?;
    /// let tokens = Tensor::from_slice(&[7i64; 64], &[1, 64], &device)?;
    /// model.loss(&tokens, &tokens)?.backward()?;
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// [`fully_shard`](crate::parallel::fully_shard) over the other dimension of the mesh averages gradients, clips them, saves and loads
    /// under the names and shapes of the whole model. [`Module::state_dict`](super::Module::state_dict) has this rank's parts.
    /// These are rejected with an error: all kinds of [`Shard`](crate::parallel::Shard) except `Nothing`,
    /// `optim::clip_grad_norm_`, `GradScaler`, `Muon`, `Adafactor` and `Lamb`.
    #[must_use]
    pub fn tensor_parallel(mut self, group: &ProcessGroup) -> Scope {
        self.region = TensorParallel::new(group);
        self
    }

    /// The ranks that share each layer, if there are several.
    pub(crate) fn region(&self) -> Option<TensorParallel> {
        self.region.clone()
    }

    /// The place called `name` inside this one.
    pub fn at(&self, name: &str) -> Scope {
        Scope { path: self.name(name), ..self.clone() }
    }

    /// The names on the path from the root to here, joined by dots; empty at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The device on which parameters are created.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The label for the allocations of a layer built here.
    pub fn label(&self) -> LabelId {
        label::intern(&self.path)
    }

    /// Makes a parameter at this place, with initial values drawn according to `init`.
    ///
    /// # Errors
    /// If the path is already in use in this model, or memory runs out. The path stays in use even after the parameter
    /// is dropped: to build again, start from a new root.
    pub fn parameter(&self, name: &str, shape: &[usize], init: Init) -> Result<Parameter> {
        self.at(name).own_parameter(shape, init)
    }

    /// Makes a parameter whose path is the path of this place, for a field of [`module!`](crate::module).
    ///
    /// # Errors
    /// As [`Scope::parameter`].
    pub fn own_parameter(&self, shape: &[usize], init: Init) -> Result<Parameter> {
        let path = self.path.clone();
        self.take(&path)?;
        let _owner = Span::of(Category::Parameter, label::intern(&path));
        let tensor = Tensor::empty(shape, DType::F32, &self.device)?;
        let from = RandomStream { seed: self.seed, stream: stream_of(&path) };
        if self.is_deferred {
            draw_later(&tensor, init, from)?;
        } else {
            init.fill(&tensor, from)?;
        }
        let parameter = Parameter::made(&tensor, &path, Some(&self.model))?;
        if let Some(region) = &self.region {
            region.add_gradients(&parameter)?;
        }
        Ok(parameter)
    }

    /// Makes this rank's part of a parameter whose full shape is given, with its part of the initial values. Without
    /// [`Scope::tensor_parallel`], makes the whole parameter.
    ///
    /// # Errors
    /// The same errors as [`Scope::parameter`]; also if the number of ranks does not divide the dimension.
    pub(crate) fn part(&self, name: &str, shape: &[usize], cut: Cut, init: Init) -> Result<Parameter> {
        let Some(region) = self.region.clone() else { return self.parameter(name, shape, init) };
        let path = self.name(name);
        let part = region.part(&path, shape, cut)?;
        self.take(&path)?;
        let _owner = Span::of(Category::Parameter, label::intern(&path));
        let from = RandomStream { seed: self.seed, stream: stream_of(&path) };
        let (device, of_draw, own_path) = (self.device.clone(), part.clone(), path.clone());
        let draw = move || {
            let whole = {
                let _owner = Span::of(Category::Workspace, label::intern(&own_path));
                Tensor::empty(of_draw.whole_shape(), DType::F32, &device)?
            };
            no_grad(|| init.fill(&whole, from))?;
            of_draw.of(&whole)
        };
        let tensor = if self.is_deferred {
            let tensor = Tensor::empty(&part.shape(), DType::F32, &self.device)?;
            tensor.evict_with(draw)?;
            tensor
        } else {
            draw()?
        };
        let parameter = Parameter::made(&tensor, &path, Some(&self.model))?;
        parameter.set_part(part);
        Ok(parameter)
    }

    /// Redraws the initial values of a parameter of this place with a different rule, for models that do not use the
    /// default initial values of PyTorch's layers.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn redraw(&self, name: &str, parameter: &Parameter, init: Init) -> Result<()> {
        let from = RandomStream { seed: self.seed, stream: stream_of(&self.name(name)) };
        match parameter.state() {
            State::Evicted if self.is_deferred => draw_later(parameter, init, from),
            _ => no_grad(|| init.fill(parameter, from)),
        }
    }

    /// Makes a buffer at this place by calling `make` with the scope's device.
    ///
    /// # Errors
    /// If the path is already in use in this model; also the errors of `make`.
    pub fn buffer(&self, name: &str, make: impl FnOnce(&Device) -> Result<Tensor>) -> Result<Buffer> {
        let path = self.name(name);
        self.take(&path)?;
        let _owner = Span::of(Category::Buffer, label::intern(&path));
        Ok(Buffer::new(&make(&self.device)?))
    }

    fn take(&self, path: &str) -> Result<()> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.insert(path.to_owned()) {
            return Ok(());
        }
        let message = format!(
            "`{path}` was already made in this model; give each layer a name of its own, \
             or start another model from a new Scope"
        );
        Err(Error::Argument { op: "parameter", message })
    }

    fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// Frees the memory of a parameter. Its values are drawn when it is first used.
fn draw_later(parameter: &Tensor, init: Init, from: RandomStream) -> Result<()> {
    let (shape, dtype, device) = (parameter.shape().to_vec(), parameter.dtype(), parameter.device().clone());
    parameter.evict_with(move || {
        let values = Tensor::empty(&shape, dtype, &device)?;
        init.fill(&values, from)?;
        Ok(values)
    })
}

/// FNV-1a, 64 bits: the same number for the same path on every machine and in every version.
fn stream_of(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameters_values_depend_on_its_path_and_seed_alone() {
        let draw = |seed, path: &str| {
            let scope = Scope::new(&Device::cpu(), seed);
            scope.at(path).parameter("weight", &[4], Init::Uniform(1.0)).unwrap().to_vec::<f32>().unwrap()
        };
        let first = draw(1, "a");
        assert_ne!(first, draw(1, "b"));
        assert_ne!(first, draw(2, "a"));
        assert_eq!(first, draw(1, "a"));
    }

    #[test]
    fn a_path_names_one_parameter_of_its_root() {
        let make =
            |scope: &Scope, name| scope.parameter(name, &[1], Init::Zeros).map(|tensor| tensor.label());
        let root = Scope::new(&Device::cpu(), 1);
        assert_eq!(make(&root.at("a"), "weight").unwrap(), "a.weight");
        assert_eq!(make(&root.at("b"), "weight").unwrap(), "b.weight");
        for again in [root.at("a"), root.clone().at("a")] {
            let error = make(&again, "weight").unwrap_err();
            assert!(matches!(error, Error::Argument { op: "parameter", .. }), "{error:?}");
            assert!(error.to_string().starts_with("parameter: `a.weight` was already made"), "{error}");
        }
        assert!(make(&root, "a.weight").is_err(), "a dot in a name is a dot in the path");
        assert!(make(&Scope::new(&Device::cpu(), 1).at("a"), "weight").is_ok(), "a new root is a new model");
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(stream_of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(stream_of("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
