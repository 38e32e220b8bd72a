//! Sharded data-parallel training: [`fully_shard`].
//!
//! | file | contents |
//! |---|---|
//! | `layout.rs` | the positions of parameters in the flat buffer of their unit, and the rows that a rank has |
//! | `plan.rs` | which parameters form a unit |
//! | `slots.rs` | fixed memory that units take turns in |
//! | `ahead.rs` | the order in which units are used |
//! | `gather.rs` | units, and how they are gathered when an operation reads a parameter |
//! | `reducer.rs` | the work during a backward pass |
//! | `parts.rs` | the rows and parts of models whose layers tensor-parallel ranks share |
//! | `state.rs` | saving and loading |
//! | this one | the public interface |

mod ahead;
mod gather;
mod layout;
mod parts;
mod plan;
mod reducer;
mod slots;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use plimsoll_tensor::{Error, HookHandle, Result, Tensor, no_grad};

use self::gather::{Gatherer, Ranks};
use self::reducer::{Reducer, Shared, arrived, locked};
use super::agree::{same_model, same_values};
use super::ddp::{Bucket, DdpOptions, DistributedDataParallel};
use super::lanes::Passes;
use super::norm::{self, Place, RowSums, SharedSums};
use super::{DeviceMesh, Reproducible};
use crate::nn::{Module, Part, check_listed, check_whole, part_of, replace};

const NAME: &str = "fully_shard";

/// The tensors that are sharded over the ranks. All kinds give bit-identical results, and each needs less memory than
/// the one before it.
///
/// ```
/// use plimsoll::parallel::Shard;
/// assert_eq!(Shard::default(), Shard::Parameters);
/// assert_eq!(Shard::from_name("optimizer-state").map(Shard::name), Some("optimizer-state"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shard {
    /// Nothing, like [`DistributedDataParallel`].
    Nothing,
    /// The optimizer's state. Each rank has complete parameters and gradients. Gradients are exchanged at the end of a
    /// backward pass, and parameters are gathered after each step. Known as ZeRO-1.
    OptimizerState,
    /// Optimizer state and gradients. A unit's gradients are exchanged when all are complete. Known as ZeRO-2.
    Gradients,
    /// Optimizer state, gradients and parameters. A unit is gathered when an operation reads one of its parameters,
    /// and its memory is used for another unit afterwards. Known as ZeRO-3, and like PyTorch's `fully_shard`.
    #[default]
    Parameters,
}

impl Shard {
    /// All kinds; each needs less memory than the one before it.
    pub const ALL: [Shard; 4] = [Shard::Nothing, Shard::OptimizerState, Shard::Gradients, Shard::Parameters];

    /// The name for options and files: `nothing`, `optimizer-state`, `gradients` or `parameters`.
    pub fn name(self) -> &'static str {
        match self {
            Shard::Nothing => "nothing",
            Shard::OptimizerState => "optimizer-state",
            Shard::Gradients => "gradients",
            Shard::Parameters => "parameters",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Shard> {
        Shard::ALL.into_iter().find(|shard| shard.name() == name)
    }
}

/// How a model is sharded.
///
/// ```
/// use plimsoll::parallel::{FullyShardOptions, Shard};
/// let options = FullyShardOptions { shard: Shard::Gradients, ..FullyShardOptions::default() };
/// assert!(options.units.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullyShardOptions {
    /// The tensors that are sharded over the ranks.
    pub shard: Shard,
    /// The names of the modules whose parameters are gathered together, such as `encoder.layers.0`. If the list is empty, these are
    /// the modules whose names are numbers, such as the elements of a [`ModuleList`](crate::nn::ModuleList). The other parameters
    /// form the root unit. A unit of more than 256 MiB is divided into several.
    pub units: Vec<String>,
    /// Requests bit-identical results on any number of ranks.
    pub reproducible: Option<Reproducible>,
}

/// A rank's rows of a parameter.
///
/// ```
/// use plimsoll::nn::{Linear, Scope};
/// use plimsoll::parallel::{FullyShardOptions, fully_shard};
/// use plimsoll::{Device, ProcessGroup};
/// let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
/// let group = ProcessGroup::threads(1).remove(0);
/// let sharded = fully_shard(&mut model, &group, FullyShardOptions::default())?;
/// let weight = &sharded.named_parameters()[0];
/// assert_eq!((weight.name.as_str(), weight.offset, weight.full_shape.as_slice()), ("weight", 0, &[2, 4][..]));
/// assert_eq!(weight.rows.shape(), [2, 4]); // all of them, because there is one rank
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardedParameter {
    /// The parameter's name in the model.
    pub name: String,
    /// This rank's rows; there may be none. If tensor-parallel ranks share the parameter, this rank's part.
    pub rows: Tensor,
    /// The index of the first of these rows in the full parameter.
    pub offset: usize,
    /// The shape of the full parameter.
    pub full_shape: Vec<usize>,
    /// If tensor-parallel ranks share it: which part this is.
    part: Option<Part>,
}

/// Parameters that are gathered together.
///
/// ```
/// use plimsoll::nn::{Linear, Scope};
/// use plimsoll::parallel::{FullyShardOptions, fully_shard};
/// use plimsoll::{Device, ProcessGroup};
/// let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
/// let group = ProcessGroup::threads(1).remove(0);
/// let units = fully_shard(&mut model, &group, FullyShardOptions::default())?.units();
/// assert_eq!((units[0].name.as_str(), units[0].parameters.as_slice()), ("root", &["weight".to_owned(), "bias".to_owned()][..]));
/// assert_eq!(units[0].bytes, 1024); // the bias begins at byte 512
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedUnit {
    /// The name of its module; `root` for the parameters that belong to no other unit.
    pub name: String,
    /// The names of its parameters.
    pub parameters: Vec<String>,
    /// The size of the full unit in bytes. Each rank has an equal part.
    pub bytes: u64,
}

/// A sharded model on one rank, from [`fully_shard`]. Keep it as long as the model is used.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
/// use plimsoll::parallel::{FullyShardOptions, fully_shard};
/// use plimsoll::{Device, ProcessGroup, Result, Tensor};
/// let train = |group: &ProcessGroup| -> Result<Vec<f32>> {
///     let device = Device::cpu();
///     let mut model = Linear::new(&Scope::new(&device, 1), 256, 128)?;
///     let sharded = fully_shard(&mut model, group, FullyShardOptions::default())?;
///     let mut adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
///     for step in 0..3 {
///         let x = Tensor::full(&[8, 256], (step + group.rank()) as f64, plimsoll::DType::F32, &device)?; // this rank's part
///         model.forward(&x)?.square()?.mean()?.backward()?; // gathers and exchanges by itself
///         sharded.clip_grad_norm_(1.0)?;
///         adamw.step()?;
///         adamw.zero_grad();
///     }
///     model.parameters()[0].to_vec() // gathers, on all ranks
/// };
/// let ranks = ProcessGroup::threads(2); // processes: `dist::init_from_env`
/// let weights: Vec<Vec<f32>> = std::thread::scope(|scope| {
///     let each: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| train(rank))).collect();
///     each.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_>>()
/// })?;
/// assert_eq!(weights[0], weights[1]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct FullyShardedDataParallel {
    kind: Kind,
    ranks: Ranks,
    parameters: Vec<ShardedParameter>,
}

enum Kind {
    /// `None` if there is no other rank to average gradients with.
    Replicated(Option<DistributedDataParallel>),
    Sharded {
        gatherer: Arc<Gatherer>,
        reducer: Shared,
        hooks: Vec<HookHandle>,
        sums: SharedSums,
    },
}

/// Shards a model over the ranks of a mesh: each rank keeps an equal part of its optimizer state, gradients and parameters. The
/// model is used as before. Like PyTorch's `fully_shard`, except that PyTorch's is called for each block, while here
/// one call shards all blocks.
///
/// `mesh` is a `&ProcessGroup`, whose ranks all share the model, or a [`DeviceMesh`] with one or two dimensions. With
/// two, the ranks of the second dimension share the model, and those of the first have the same part (hybrid sharding,
/// HSDP): parameters are gathered only in the second dimension, such as on one host, and the sums of gradients are
/// exchanged in the first one, in 32 bits.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::parallel::{DeviceMesh, FullyShardOptions, fully_shard};
/// use plimsoll::{Device, ProcessGroup, Result};
/// let shard = |world: ProcessGroup| -> Result<usize> {
///     let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 256, 128)?;
///     let mesh = DeviceMesh::new(&world, &[("replicate", 2), ("shard", 2)])?;
///     let sharded = fully_shard(&mut model, &mesh, FullyShardOptions::default())?;
///     Ok(sharded.named_parameters()[0].rows.shape()[0])
/// };
/// let ranks = ProcessGroup::threads(4);
/// let rows: Vec<usize> = std::thread::scope(|scope| {
///     let each: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| shard(rank))).collect();
///     each.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_>>()
/// })?;
/// assert!(rows[0] + rows[1] == 128 && rows[..2] == rows[2..]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// Each rank trains on its part of the batch, with a loss that is the mean over that part. All ranks must call the same operations
/// on the model, in the same order: an operation that reads a parameter gathers its unit from all ranks. That includes
/// evaluation, printing, and [`Module::state_dict`]. Construct the optimizer with [`FullyShardedDataParallel::parameters`].
/// Freeze, move and convert a model before sharding it. The results equal those of [`DistributedDataParallel`], bit for
/// bit; with two dimensions, this requires that the size of the second one is a power of two.
///
/// Parameters are replaced by new tensors, one unit after another, so the peak is the size of the model plus one unit. With
/// [`Scope::deferred`](crate::nn::Scope::deferred) it is the size of this rank's rows plus one unit. For `P` bytes of parameters
/// on `N` ranks, a rank then holds `P / N` bytes of rows, plus slots for two blocks and the root.
///
/// If tensor-parallel ranks share the model's layers ([`Scope::tensor_parallel`](crate::nn::Scope::tensor_parallel)),
/// pass the mesh of the ranks that do not share layers: for `mesh = DeviceMesh::new(&world, &[("dp", 2), ("tp", 4)])?`
/// that is `mesh.submesh("dp")?`. Only [`Shard::Nothing`] works, which averages the gradients over `dp`. All ranks of
/// `mesh` must call the functions that clip, save and load.
///
/// These are rejected with an error: captured steps, `GradScaler`, `step_in_backward`, `Muon` and `Adafactor`,
/// `offload`, and operations that change a full parameter. With [`Shard::Nothing`], only captured steps are rejected.
///
/// # Errors
/// If the mesh has more than two dimensions; if the ranks have different models; if [`FullyShardOptions::reproducible`]
/// does not fit the model or the ranks; if parameters are on several devices; if the model is already sharded; if a
/// name in [`FullyShardOptions::units`] is not a module with parameters; or if memory runs out, in which case some of
/// the parameters may already be sharded. Also [`Error::Distributed`].
#[allow(clippy::needless_pass_by_value, reason = "as all options")]
pub fn fully_shard(
    module: &mut dyn Module,
    mesh: impl Into<DeviceMesh>,
    options: FullyShardOptions,
) -> Result<FullyShardedDataParallel> {
    let ranks = Ranks::of(&mesh.into())?;
    let (group, shard_rank) = (&ranks.all, ranks.shard.rank());
    let all = module.named_parameters();
    let (shard, reproducible, buffers) = (options.shard, options.reproducible, module.named_buffers());
    may_be_sharded(&all)?;
    if shard == Shard::Nothing {
        return replicated(module, all, ranks, reproducible);
    }
    check_whole(NAME, all.iter().map(|(_, parameter)| parameter))?;
    if let Some(reproducible) = reproducible {
        reproducible.check_model(module, group)?;
    }
    let tensors: Vec<&(String, Tensor)> = all.iter().chain(&buffers).collect();
    same_model(NAME, &tensors, group)?;
    same_values(&buffers.iter().collect::<Vec<_>>(), group)?;
    let device = all[0].1.device().clone();
    let buffers: Vec<Tensor> = buffers.into_iter().map(|(_, buffer)| buffer).collect();
    let plans = plan::plan(&all, &options.units, ranks.shard.size())?;
    let keep = shard != Shard::Parameters;
    let gatherer = Arc::new(Gatherer::new(&ranks));
    let (names, mut old): (Vec<String>, Vec<Option<Tensor>>) =
        all.into_iter().map(|(name, parameter)| (name, Some(parameter))).unzip();
    let (mut units, mut made) = (Vec::new(), BTreeMap::new());
    for plan in plans {
        let members: Vec<(String, Tensor)> =
            plan.members.iter().filter_map(|at| Some((names[*at].clone(), old[*at].take()?))).collect();
        // Values of deferred parameters are drawn here, on all ranks.
        members.iter().try_for_each(|(_, parameter)| parameter.pin().map(drop))?;
        same_values(&members.iter().collect::<Vec<_>>(), group)?;
        let unit = gatherer.make(units.len(), plan, &members, keep)?;
        for (at, (name, before)) in members.iter().enumerate() {
            let whole = whole_of(&unit, at, before)?;
            replace(module, &BTreeMap::from([(before.id(), whole.clone())]));
            let rows = rows_of(&unit, at, shard_rank, before)?;
            let offset = unit.layout.rows(at, shard_rank).start;
            let (name, full_shape) = (name.clone(), before.shape().to_vec());
            let own = ShardedParameter { name, rows, offset, full_shape, part: None };
            made.insert(unit.members[at], (whole, own));
        }
        units.push(unit); // the old parameters are dropped here
    }
    gatherer.set_units(units, &device)?;
    let (wholes, parameters): (Vec<Tensor>, Vec<ShardedParameter>) = made.into_values().unzip();
    let passes = reproducible.map(|reproducible| Passes::new(reproducible, group));
    let reducer = Reducer::new(&gatherer, shard, (wholes.clone(), parameters.clone()), buffers, passes)?;
    let reducer = Arc::new(Mutex::new(reducer));
    let mut hooks = Vec::new();
    for (i, whole) in wholes.iter().enumerate().filter(|(_, whole)| whole.requires_grad()) {
        let reducer = Arc::downgrade(&reducer);
        let hook = move |_: &Tensor| reducer.upgrade().map_or(Ok(()), |reducer| arrived(&reducer, i));
        hooks.push(whole.register_post_accumulate_grad_hook(hook)?);
    }
    let kind = Kind::Sharded { gatherer, reducer, hooks, sums: SharedSums::new(&ranks.shard) };
    Ok(FullyShardedDataParallel { kind, ranks, parameters })
}

/// [`Shard::Nothing`]: each rank has all parameters, or its part of a parameter that tensor-parallel ranks share.
fn replicated(
    module: &dyn Module,
    all: Vec<(String, Tensor)>,
    ranks: Ranks,
    reproducible: Option<Reproducible>,
) -> Result<FullyShardedDataParallel> {
    let own = |(name, rows): (String, Tensor)| {
        let part = part_of(&rows);
        let full_shape = part.as_ref().map_or(rows.shape(), Part::whole_shape).to_vec();
        ShardedParameter { name, rows, offset: 0, full_shape, part }
    };
    let parameters: Vec<ShardedParameter> = all.into_iter().map(own).collect();
    let mut parts = parameters.iter().filter_map(|it| Some((&it.name, it.part.as_ref()?.group())));
    let first = parts.next();
    if let Some((name, group)) = first {
        let own = ranks.all.ranks();
        if group.ranks().iter().filter(|rank| own.contains(rank)).count() > 1 {
            let message = format!(
                "the ranks {own:?} have different parts of {name}: pass the other dimension of the mesh, as `mesh.submesh(\"dp\")`"
            );
            return Err(Error::argument(NAME, message));
        }
    }
    // Nothing is exchanged, so gradients need no buckets.
    let is_alone = first.is_some() && ranks.all.size() == 1 && reproducible.is_none();
    let options = DdpOptions { reproducible, ..DdpOptions::default() };
    let ddp = || DistributedDataParallel::new(module, &ranks.all, options);
    let kind = Kind::Replicated(if is_alone { None } else { Some(ddp()?) });
    Ok(FullyShardedDataParallel { kind, ranks, parameters })
}

/// # Errors
/// If there are no parameters, they are on several devices, or they are sharded already.
fn may_be_sharded(parameters: &[(String, Tensor)]) -> Result<()> {
    let Some((first, tensor)) = parameters.first() else {
        return Err(Error::argument(NAME, "the model has no parameters"));
    };
    check_listed(NAME, parameters.iter().map(|(_, parameter)| parameter))?;
    for (name, parameter) in parameters {
        if parameter.is_lent() {
            return Err(Error::argument(NAME, format!("{name} is sharded already")));
        }
        if parameter.device() != tensor.device() {
            let (here, there) = (tensor.device().name(), parameter.device().name());
            let message = format!("{first} is on {here} and {name} on {there}: move the model to one device");
            return Err(Error::argument(NAME, message));
        }
    }
    Ok(())
}

/// The full parameter, as a view of its unit.
fn whole_of(unit: &gather::Unit, at: usize, before: &Tensor) -> Result<Tensor> {
    let flat =
        no_grad(|| unit.whole.narrow(0, unit.layout.starts[at], before.numel())?.view(before.shape()))?;
    flat.detach().requires_grad_(before.requires_grad())
}

/// This rank's rows of a parameter, as a view of its part of the unit.
fn rows_of(unit: &gather::Unit, at: usize, rank: usize, before: &Tensor) -> Result<Tensor> {
    let (rows, place) = (unit.layout.rows(at, rank), unit.layout.place_in_part(at, rank));
    let shape: Vec<usize> = [rows.len()].into_iter().chain(before.shape().iter().skip(1).copied()).collect();
    Ok(no_grad(|| unit.rows.narrow(0, place.start, place.len())?.view(&shape[..]))?.detach())
}

impl FullyShardedDataParallel {
    /// This rank's rows of all parameters, in the order of [`Module::parameters`], for an optimizer.
    pub fn parameters(&self) -> Vec<Tensor> {
        self.parameters.iter().map(|parameter| parameter.rows.clone()).collect()
    }

    /// This rank's rows of all parameters, with their names, in the order of [`Module::named_parameters`].
    pub fn named_parameters(&self) -> &[ShardedParameter] {
        &self.parameters
    }

    /// Scales all gradients so that their total norm is at most `max_norm`. Returns the norm before scaling, as a scalar tensor,
    /// or `None` if there are no gradients. All ranks must call it. The norm is that of the unsharded gradients, and is
    /// bit-identical for each [`Shard`].
    ///
    /// # Errors
    /// If the bound is negative or NaN, or memory runs out; or [`Error::Distributed`].
    pub fn clip_grad_norm_(&self, max_norm: f64) -> Result<Option<Tensor>> {
        let Kind::Sharded { sums, .. } = &self.kind else {
            let trained = self.parameters.iter().map(|it| &it.rows).filter(|it| it.requires_grad());
            return norm::clip(trained, max_norm);
        };
        let mut rows = RowSums::new();
        for parameter in &self.parameters {
            rows.add(&parameter.full_shape, parameter.offset, parameter.rows.grad());
        }
        rows.clip(&Place::Shared(sums), max_norm)
    }

    /// Sets whether the next backward passes exchange gradients. If not, a pass only adds to this rank's gradients, which are
    /// unsharded, and the next pass that exchanges gradients sends the sum. Use it for gradient accumulation with less
    /// communication and more memory. Like `FSDPModule.set_requires_gradient_sync`.
    pub fn set_requires_gradient_sync(&self, syncs: bool) {
        match &self.kind {
            Kind::Replicated(ddp) => ddp.iter().for_each(|ddp| ddp.set_syncs(syncs)),
            Kind::Sharded { reducer, .. } => locked(reducer).syncs = syncs,
        }
    }

    /// Releases the memory of gathered parameters, so that the next operation that reads one gathers its unit again. Not needed
    /// in training. Like `FSDPModule.reshard`.
    pub fn reshard(&self) {
        if let Kind::Sharded { gatherer, .. } = &self.kind {
            gatherer.units().iter().for_each(|unit| {
                unit.whole.take_back();
            });
        }
    }

    /// The units, in the order of their first parameters. Empty for [`Shard::Nothing`].
    pub fn units(&self) -> Vec<ShardedUnit> {
        let Kind::Sharded { gatherer, .. } = &self.kind else { return Vec::new() };
        let name = |member: &usize| self.parameters[*member].name.clone();
        let shown = |unit: &gather::Unit| ShardedUnit {
            name: unit.name.clone(),
            parameters: unit.members.iter().map(name).collect(),
            bytes: (unit.layout.len() * unit.rows.dtype().size()) as u64,
        };
        gatherer.units().iter().map(shown).collect()
    }

    /// The gradient buckets of [`Shard::Nothing`]. Empty for the other kinds.
    pub fn buckets(&self) -> Vec<Bucket> {
        match &self.kind {
            Kind::Replicated(Some(ddp)) => ddp.buckets(),
            Kind::Replicated(None) | Kind::Sharded { .. } => Vec::new(),
        }
    }

    /// The number of times that units were gathered so far, and the size in bytes of the slots that units share.
    pub fn gathered(&self) -> (u64, u64) {
        match &self.kind {
            Kind::Replicated(_) => (0, 0),
            Kind::Sharded { gatherer, .. } => (gatherer.gathered(), gatherer.slot_bytes()),
        }
    }
}

impl Drop for FullyShardedDataParallel {
    fn drop(&mut self) {
        self.reshard(); // so that any later use of a parameter is an error
        if let Kind::Sharded { hooks, .. } = &self.kind {
            hooks.iter().for_each(HookHandle::remove);
        }
    }
}

impl fmt::Debug for FullyShardedDataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.ranks.all.rank(), self.ranks.all.size());
        write!(f, "FullyShardedDataParallel(rank {rank} of {size}, {} units)", self.units().len())
    }
}
