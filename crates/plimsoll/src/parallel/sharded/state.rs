//! Saving a sharded model and its optimizer, and loading them with any number of ranks.
//!
//! Either each rank saves its rows (`checkpoint`), or rank 0 gets whole tensors on the host, one at a time, to write
//! the file of a single process (`state_dict`). Loading is the same for both: each rank reads its rows.
//!
//! The parts of tensor-parallel ranks need not be rows: `parts.rs` turns them into rows, and reads them.

use std::collections::BTreeMap;

use plimsoll_tensor::{Device, Error, Result, Tensor, no_grad};

use super::parts::read_part;
use super::{FullyShardedDataParallel, Kind, ShardedParameter};
use crate::nn::{Module, check_listed, part_of};
use crate::optim::{GroupState, Optimizer, OptimizerState, ParamState};
use crate::parallel::norm::row_len;
use crate::serialize::{Checkpoint, DistributedCheckpoint, NamedGroup, TensorRows, state_name};
use crate::state_dict::{IncompatibleKeys, SerializeError, StateDict, Strict, TensorSource, load_into};

const STATE_DICT: &str = "state_dict";
const SAVE: &str = "checkpoint";
const LOAD: &str = "load_state_dict";

impl FullyShardedDataParallel {
    /// The unsharded parameters and the buffers of the model, like [`Module::state_dict`]. All ranks must call it. Rank 0 gets
    /// copies on the host; the others get an empty state dict.
    ///
    /// # Errors
    /// If memory runs out; or [`Error::Distributed`].
    pub fn state_dict(&self, module: &dyn Module) -> Result<StateDict> {
        let mut dict = StateDict::default();
        // Tied parameters get a single copy, so that they are saved once.
        let mut copied: Vec<(Tensor, Option<Tensor>)> = Vec::new();
        for (name, tensor) in module.state_dict().iter() {
            let at = copied.iter().position(|(known, _)| known.is_same(tensor)).unwrap_or(copied.len());
            if at == copied.len() {
                // Done on every rank, because it gathers the parameter.
                let host = match part_of(tensor) {
                    Some(part) => to_host(&part.gather(tensor)?)?,
                    None => to_host(tensor)?,
                };
                copied.push((tensor.clone(), (self.ranks.root.rank() == 0).then_some(host)));
            }
            if let Some(host) = &copied[at].1 {
                dict.insert(name, host.clone());
            }
        }
        Ok(dict)
    }

    /// This rank's rows of the model and of the optimizer's state, and the model's buffers, for [`DistributedCheckpoint::save`].
    /// Nothing is gathered or copied. If several ranks have the same rows, the first of them writes them. With
    /// [`Shard::Nothing`](super::Shard::Nothing), rank 0 has everything.
    ///
    /// If tensor-parallel ranks share the model's layers, all ranks must call this. Tensors whose parts are not rows
    /// are gathered one at a time, and each rank of the first group keeps an equal part of the rows on the host.
    ///
    /// # Errors
    /// If a parameter belongs to another model, state does not have one number for each element, tensor-parallel ranks
    /// are not neighbours in the mesh (its last dimension), or memory runs out; or [`Error::Distributed`].
    pub fn checkpoint(
        &self,
        module: &dyn Module,
        optimizer: &dyn Optimizer,
    ) -> Result<DistributedCheckpoint> {
        let (rank, is_whole) = (self.ranks.root.rank(), matches!(self.kind, Kind::Replicated(_)));
        self.want_neighbours()?;
        let host = Device::cpu_with(Default::default());
        let state = module.state_dict();
        check_listed("checkpoint", state.iter().map(|(_, tensor)| tensor))?;
        let whole = module.named_parameters();
        let (mut names, mut seen, mut aliases) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut rows = Vec::new();
        for (name, tensor) in state.iter() {
            if let Some((first, _)) = seen.iter().find(|(_, known): &&(&str, &Tensor)| known.is_same(tensor))
            {
                aliases.insert(name.to_owned(), (*first).to_owned());
                continue;
            }
            seen.push((name, tensor));
            names.push(name.to_owned());
            let place = whole.iter().position(|(_, parameter)| parameter.is_same(tensor));
            let parameter = place.map(|at| &self.parameters[at]);
            rows.extend(match parameter.filter(|it| !is_whole || it.part.is_some()) {
                Some(ShardedParameter { part: Some(part), rows, .. }) => {
                    self.rows_of_part(part, name.to_owned(), rows, &host)?
                }
                Some(parameter) => own_rows(parameter, name.to_owned(), &parameter.rows, rank)?,
                None if rank == 0 => {
                    let offsets = vec![0; tensor.shape().len()];
                    Some(TensorRows { name: name.to_owned(), rows: tensor.clone(), offsets })
                }
                None => None,
            });
        }
        let saved = DistributedCheckpoint::new(&self.ranks.root, self.writers(), names, rows, aliases);
        self.with_optimizer(saved, optimizer, &host)
    }

    /// Adds this rank's rows of the optimizer's state.
    fn with_optimizer(
        &self,
        saved: DistributedCheckpoint,
        optimizer: &dyn Optimizer,
        host: &Device,
    ) -> Result<DistributedCheckpoint> {
        let (rank, is_whole) = (self.ranks.root.rank(), matches!(self.kind, Kind::Replicated(_)));
        let (parameters, state) = (optimizer.parameters(), optimizer.state_dict());
        let (mut rows, mut steps) = (Vec::new(), BTreeMap::new());
        let copies = optimizer.unsharded_state();
        for (number, ParamState { step, tensors }) in &state.state {
            let parameter = self.parameter_of(&parameters, *number, SAVE)?;
            steps.extend(step.map(|step| (parameter.name.clone(), step)));
            for (key, tensor) in tensors {
                let name = state_name(&parameter.name, key);
                if is_whole && parameter.part.is_none() || copies.contains(&key.as_str()) {
                    let offsets = vec![0; tensor.shape().len()];
                    rows.extend((rank == 0).then(|| TensorRows { name, rows: tensor.clone(), offsets }));
                } else if let Some(part) = &parameter.part {
                    want_sharded(parameter, tensor, SAVE)?;
                    rows.extend(self.rows_of_part(part, name, tensor, host)?);
                } else {
                    want_sharded(parameter, tensor, SAVE)?;
                    rows.extend(own_rows(parameter, name, tensor, rank)?);
                }
            }
        }
        let name = |number: &usize| Ok(self.parameter_of(&parameters, *number, SAVE)?.name.clone());
        let group = |group: GroupState| {
            let params = group.params.iter().map(name).collect::<Result<_>>()?;
            Ok(NamedGroup { options: group.options, params })
        };
        let groups = state.param_groups.into_iter().map(group).collect::<Result<_>>()?;
        Ok(saved.optimizer(rows, groups, steps))
    }

    /// Loads the state and options of the optimizer from a checkpoint, like [`Checkpoint::load_optimizer`]: each rank
    /// reads its rows.
    ///
    /// # Errors
    /// As [`Checkpoint::load_optimizer`].
    pub fn load_optimizer(
        &self,
        optimizer: &mut dyn Optimizer,
        checkpoint: &Checkpoint,
    ) -> Result<(), SerializeError> {
        if self.has_whole() {
            return checkpoint.load_optimizer(optimizer);
        }
        let (parameters, host) = (optimizer.parameters(), Device::cpu());
        let copies = optimizer.unsharded_state();
        let state = checkpoint.read_optimizer(&|number, name, source| {
            let parameter = self.parameter_of(&parameters, number, LOAD)?;
            if copies.iter().any(|key| name.strip_prefix(&format!("{number}.")) == Some(*key)) {
                return source.tensor(name, &host);
            }
            if let Some(shape) = source.shape(name).filter(|shape| *shape != parameter.full_shape) {
                return Err(other_shape(name, parameter, &shape).into());
            }
            // The optimizer copies it to the device of the parameter.
            parameter.read(source, name, &host)
        })?;
        Ok(optimizer.load_state_dict(&state)?)
    }

    /// Loads parameters and buffers, like [`Module::load_state_dict`]: each rank reads its rows. All ranks must call it
    /// with the same source.
    ///
    /// # Errors
    /// The same errors as [`Module::load_state_dict`].
    pub fn load_state_dict(
        &self,
        module: &dyn Module,
        source: &dyn TensorSource,
        strict: Strict,
    ) -> Result<IncompatibleKeys, SerializeError> {
        if self.has_whole() {
            return module.load_state_dict(source, strict);
        }
        let mut rows_of = Vec::new();
        let mut own = StateDict::default();
        let whole = module.named_parameters();
        for (name, tensor) in module.state_dict().iter() {
            let place = whole.iter().position(|(_, parameter)| parameter.is_same(tensor));
            match place.map(|at| &self.parameters[at]) {
                Some(parameter) => {
                    own.insert(name, parameter.rows.clone());
                    rows_of.push((name.to_owned(), parameter));
                }
                None => own.insert(name, tensor.clone()),
            }
        }
        let whole_shapes = |error| match error {
            SerializeError::Keys(mut keys) => {
                for one in &mut keys.misshaped {
                    let known = rows_of.iter().find(|(name, _)| *name == one.name);
                    one.expected =
                        known.map_or_else(|| one.expected.clone(), |(_, it)| it.full_shape.clone());
                }
                SerializeError::Keys(keys)
            }
            other => other,
        };
        let rows = RowsOf { source, parameters: &rows_of };
        load_into(&own, module.kind(), &rows, strict).map_err(whole_shapes)
    }

    /// The unsharded state of an optimizer over [`FullyShardedDataParallel::parameters`], like
    /// [`Optimizer::state_dict`]. All ranks must call it. Rank 0 gets copies on the host; the others get no tensors.
    ///
    /// # Errors
    /// If the optimizer has a parameter of another model, state does not have one value for each element, or memory
    /// runs out; or [`Error::Distributed`].
    pub fn optimizer_state_dict(&self, optimizer: &dyn Optimizer) -> Result<OptimizerState> {
        let (parameters, mut state) = (optimizer.parameters(), optimizer.state_dict());
        if self.has_whole() {
            return Ok(state);
        }
        let copies = optimizer.unsharded_state();
        for (number, ParamState { tensors, .. }) in &mut state.state {
            let parameter = self.parameter_of(&parameters, *number, STATE_DICT)?;
            for (key, tensor) in tensors.iter_mut() {
                *tensor = match copies.contains(&key.as_str()) {
                    true => to_host(tensor)?,
                    false => self.whole_state(parameter, tensor)?,
                };
            }
            if self.ranks.root.rank() > 0 {
                tensors.clear();
            }
        }
        Ok(state)
    }

    /// Loads the unsharded state of an optimizer: each rank copies its rows.
    ///
    /// # Errors
    /// The same errors as [`Optimizer::load_state_dict`].
    pub fn load_optimizer_state_dict(
        &self,
        optimizer: &mut dyn Optimizer,
        state: &OptimizerState,
    ) -> Result<()> {
        if self.has_whole() {
            return optimizer.load_state_dict(state);
        }
        let (parameters, mut own) = (optimizer.parameters(), state.clone());
        let copies = optimizer.unsharded_state();
        for (number, ParamState { tensors, .. }) in &mut own.state {
            let parameter = self.parameter_of(&parameters, *number, LOAD)?;
            for (name, tensor) in tensors.iter_mut().filter(|(key, _)| !copies.contains(&key.as_str())) {
                if tensor.shape() != parameter.full_shape {
                    return Err(other_shape(name, parameter, tensor.shape()));
                }
                *tensor = parameter.own(tensor)?;
            }
        }
        optimizer.load_state_dict(&own)
    }

    /// How many ranks write a checkpoint: those of the first replica.
    fn writers(&self) -> usize {
        match self.kind {
            Kind::Replicated(_) => self.parts_group().unwrap_or(&self.ranks.all).size(),
            Kind::Sharded { .. } => self.ranks.shard.size(),
        }
    }

    /// Whether this rank has all parameters in full.
    fn has_whole(&self) -> bool {
        matches!(self.kind, Kind::Replicated(_)) && self.parts_group().is_none()
    }

    fn parameter_of(
        &self,
        parameters: &[Tensor],
        number: usize,
        op: &'static str,
    ) -> Result<&ShardedParameter> {
        let tensor = parameters.get(number);
        let found = tensor.and_then(|it| self.parameters.iter().find(|parameter| parameter.rows.is_same(it)));
        found.ok_or_else(|| {
            let message = format!("parameter {number} of the optimizer is not one of `sharded.parameters()`");
            Error::argument(op, message)
        })
    }

    /// The rows of all ranks of a state tensor, on the host.
    fn whole_state(&self, parameter: &ShardedParameter, rows: &Tensor) -> Result<Tensor> {
        want_sharded(parameter, rows, STATE_DICT)?;
        match &parameter.part {
            Some(part) => return to_host(&part.gather(rows)?),
            None if matches!(self.kind, Kind::Replicated(_)) => return to_host(rows),
            None => {}
        }
        let own =
            (parameter.offset as u64).to_le_bytes().into_iter().chain((rows.numel() as u64).to_le_bytes());
        let own: Vec<u8> = own.collect();
        let ranks = self.ranks.shard.all_gather_bytes(&own, "rows")?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes) as usize;
        let row = row_len(&parameter.full_shape);
        let whole = Tensor::empty(&parameter.full_shape, rows.dtype(), rows.device())?;
        no_grad(|| {
            let flat = whole.view(&[-1])?;
            for (rank, bytes) in ranks.iter().enumerate() {
                let (start, len) = (number(&bytes[..8]) * row, number(&bytes[8..]));
                if len == 0 {
                    continue;
                }
                let part = flat.narrow(0, start, len)?;
                if rank == self.ranks.shard.rank() {
                    part.copy_(&rows.reshape(&[-1])?)?;
                }
                self.ranks.shard.broadcast(&part, rank)?;
            }
            to_host(&whole)
        })
    }
}

/// # Errors
/// If the state is not a number for each element of the parameter.
fn want_sharded(parameter: &ShardedParameter, state: &Tensor, op: &'static str) -> Result<()> {
    if state.shape() == parameter.rows.shape() {
        return Ok(());
    }
    let message = format!(
        "the state of {} has shape {:?}, so it is not sharded like the parameter",
        parameter.name,
        state.shape()
    );
    Err(Error::argument(op, message))
}

fn other_shape(name: &str, parameter: &ShardedParameter, found: &[usize]) -> Error {
    let (of, wanted) = (&parameter.name, &parameter.full_shape);
    Error::argument(LOAD, format!("`{name}` of {of} has shape {found:?}, not {wanted:?}"))
}

impl ShardedParameter {
    /// Reads this rank's rows or part of a tensor that is divided like this parameter.
    fn read(&self, source: &dyn TensorSource, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        match &self.part {
            Some(part) => read_part(part, source, name, device),
            None if self.rows.shape().is_empty() => source.tensor(name, device),
            None => {
                let count = self.rows.shape()[0];
                source.rows(name, self.offset..self.offset + count, device)
            }
        }
    }

    /// This rank's rows or part of a whole tensor that is divided like this parameter.
    fn own(&self, whole: &Tensor) -> Result<Tensor> {
        if let Some(part) = &self.part {
            return part.of(whole);
        }
        let start = self.offset * row_len(&self.full_shape);
        let rows = &self.rows;
        no_grad(|| whole.detach().reshape(&[-1])?.narrow(0, start, rows.numel())?.view(rows.shape()))
    }
}

/// This rank's rows of a tensor that is sharded like a parameter; `None` if it has none. A tensor without elements
/// belongs to rank 0.
fn own_rows(
    parameter: &ShardedParameter,
    name: String,
    rows: &Tensor,
    rank: usize,
) -> Result<Option<TensorRows>> {
    let full_shape = &parameter.full_shape;
    if full_shape.contains(&0) {
        let whole = || no_grad(|| Tensor::empty(full_shape, rows.dtype(), &Device::cpu()));
        let rows = if rank == 0 { Some(whole()?) } else { None };
        return Ok(rows.map(|rows| TensorRows { name, rows, offsets: vec![0; full_shape.len()] }));
    }
    if rows.numel() == 0 {
        return Ok(None);
    }
    // The row of a scalar is a scalar.
    let is_scalar = full_shape.is_empty();
    let rows = if is_scalar { no_grad(|| rows.detach().view(&[] as &[usize]))? } else { rows.clone() };
    let mut offsets = vec![0; full_shape.len()];
    offsets.iter_mut().take(1).for_each(|offset| *offset = parameter.offset);
    Ok(Some(TensorRows { name, rows, offsets }))
}

/// A copy on the host.
fn to_host(tensor: &Tensor) -> Result<Tensor> {
    no_grad(|| {
        let host = tensor.detach().to_device(&Device::cpu())?;
        if host.shares_storage(tensor) { host.copy() } else { Ok(host) }
    })
}

/// Adapts a source of unsharded tensors to a source of this rank's rows.
struct RowsOf<'a> {
    source: &'a dyn TensorSource,
    parameters: &'a [(String, &'a ShardedParameter)],
}

impl RowsOf<'_> {
    fn parameter(&self, name: &str) -> Option<&ShardedParameter> {
        self.parameters.iter().find(|(other, _)| other == name).map(|(_, parameter)| *parameter)
    }
}

impl TensorSource for RowsOf<'_> {
    fn names(&self) -> Vec<String> {
        self.source.names()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let shape = self.source.shape(name)?;
        match self.parameter(name) {
            Some(parameter) if shape == parameter.full_shape => Some(parameter.rows.shape().to_vec()),
            _ => Some(shape),
        }
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        match self.parameter(name) {
            Some(parameter) => parameter.read(self.source, name, device),
            None => self.source.tensor(name, device),
        }
    }

    fn not_finite(&self) -> Vec<String> {
        self.source.not_finite()
    }
}
