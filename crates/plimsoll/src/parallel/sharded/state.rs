//! Saves a sharded model and its optimizer in the same form as a single process would, and loads them.
//!
//! Rank 0 gets unsharded tensors on the host, one at a time, so the file does not depend on the number of ranks: any number of
//! ranks can load it.

use plimsoll_tensor::{Device, Error, Result, Tensor, no_grad};

use super::{FullyShardedDataParallel, Kind, ShardedParameter};
use crate::nn::Module;
use crate::optim::{Optimizer, OptimizerState, ParamState};
use crate::parallel::norm::row_len;
use crate::state_dict::{IncompatibleKeys, SerializeError, StateDict, Strict, TensorSource, load_into};

const STATE_DICT: &str = "state_dict";
const LOAD: &str = "load_state_dict";

impl FullyShardedDataParallel {
    /// The unsharded parameters and the buffers of the model, like [`Module::state_dict`]. All ranks must call it. Rank 0 gets
    /// copies on the host; the others get an empty state dict.
    ///
    /// # Errors
    /// Out of memory; or [`Error::Distributed`].
    pub fn state_dict(&self, module: &dyn Module) -> Result<StateDict> {
        let mut dict = StateDict::default();
        // Tied parameters have one copy, so that they are saved once.
        let mut copied: Vec<(Tensor, Option<Tensor>)> = Vec::new();
        for (name, tensor) in module.state_dict().iter() {
            let at = copied.iter().position(|(known, _)| known.is_same(tensor)).unwrap_or(copied.len());
            if at == copied.len() {
                let host = to_host(tensor)?; // on every rank, because it gathers the parameter
                copied.push((tensor.clone(), (self.group.rank() == 0).then_some(host)));
            }
            if let Some(host) = &copied[at].1 {
                dict.insert(name, host.clone());
            }
        }
        Ok(dict)
    }

    /// Loads parameters and buffers, like [`Module::load_state_dict`]: each rank copies its rows. All ranks must call it with
    /// the same source.
    ///
    /// # Errors
    /// The errors of [`Module::load_state_dict`].
    pub fn load_state_dict(
        &self,
        module: &dyn Module,
        source: &dyn TensorSource,
        strict: Strict,
    ) -> Result<IncompatibleKeys, SerializeError> {
        if let Kind::Replicated(_) = self.kind {
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

    /// The unsharded state of an optimizer of [`FullyShardedDataParallel::parameters`], like [`Optimizer::state_dict`]. All
    /// ranks must call it. Rank 0 gets copies on the host; the others get no tensors.
    ///
    /// # Errors
    /// The optimizer has a parameter of another model, or state that does not have one value for each element; out of
    /// memory; or [`Error::Distributed`].
    pub fn optimizer_state_dict(&self, optimizer: &dyn Optimizer) -> Result<OptimizerState> {
        let (parameters, mut state) = (optimizer.parameters(), optimizer.state_dict());
        if let Kind::Replicated(_) = self.kind {
            return Ok(state);
        }
        for (number, ParamState { tensors, .. }) in &mut state.state {
            let parameter = self.parameter_of(&parameters, *number, STATE_DICT)?;
            for tensor in tensors.values_mut() {
                *tensor = self.whole_state(parameter, tensor)?;
            }
            if self.group.rank() > 0 {
                tensors.clear();
            }
        }
        Ok(state)
    }

    /// Loads the unsharded state of an optimizer: each rank copies its rows.
    ///
    /// # Errors
    /// The errors of [`Optimizer::load_state_dict`].
    pub fn load_optimizer_state_dict(
        &self,
        optimizer: &mut dyn Optimizer,
        state: &OptimizerState,
    ) -> Result<()> {
        if let Kind::Replicated(_) = self.kind {
            return optimizer.load_state_dict(state);
        }
        let (parameters, mut own) = (optimizer.parameters(), state.clone());
        for (number, ParamState { tensors, .. }) in &mut own.state {
            let parameter = self.parameter_of(&parameters, *number, LOAD)?;
            for (name, tensor) in tensors.iter_mut() {
                if tensor.shape() != parameter.full_shape {
                    let (found, wanted) = (tensor.shape(), &parameter.full_shape);
                    let message =
                        format!("`{name}` of {} has shape {found:?}, not {wanted:?}", parameter.name);
                    return Err(Error::argument(LOAD, message));
                }
                *tensor = rows_of(tensor, parameter)?;
            }
        }
        optimizer.load_state_dict(&own)
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
        if rows.shape() != parameter.rows.shape() {
            let message = format!(
                "the state of {} has shape {:?}, so it is not sharded like the parameter",
                parameter.name,
                rows.shape()
            );
            return Err(Error::argument(STATE_DICT, message));
        }
        let own =
            (parameter.offset as u64).to_le_bytes().into_iter().chain((rows.numel() as u64).to_le_bytes());
        let own: Vec<u8> = own.collect();
        let ranks = self.group.all_gather_bytes(&own, "rows")?;
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
                if rank == self.group.rank() {
                    part.copy_(&rows.reshape(&[-1])?)?;
                }
                self.group.broadcast(&part, rank)?;
            }
            to_host(&whole)
        })
    }
}

/// A copy on the host.
fn to_host(tensor: &Tensor) -> Result<Tensor> {
    no_grad(|| {
        let host = tensor.detach().to_device(&Device::cpu())?;
        if host.shares_storage(tensor) { host.copy() } else { Ok(host) }
    })
}

/// A rank's rows of an unsharded tensor.
fn rows_of(whole: &Tensor, parameter: &ShardedParameter) -> Result<Tensor> {
    let start = parameter.offset * row_len(&parameter.full_shape);
    let rows = &parameter.rows;
    no_grad(|| whole.detach().reshape(&[-1])?.narrow(0, start, rows.numel())?.view(rows.shape()))
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
        let whole = self.source.tensor(name, device)?;
        match self.parameter(name) {
            Some(parameter) => Ok(rows_of(&whole, parameter)?),
            None => Ok(whole),
        }
    }

    fn not_finite(&self) -> Vec<String> {
        self.source.not_finite()
    }
}
