//! The state dict of an optimizer, in PyTorch's layout: [`OptimizerState`].

use std::collections::BTreeMap;

use plimsoll_tensor::{DType, Device, Error, Result, Tensor};
use serde_json::{Map, Value};

use super::algorithm::{Algorithm, StateTensor};
use super::groups::{ParamGroup, State, StateMemory};

/// The state and options of an optimizer. Like `torch.optim.Optimizer.state_dict()`.
///
/// ```
/// use plimsoll::optim::{Adam, AdamOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[3], &Device::cpu())?.requires_grad_(true)?;
/// w.square()?.sum()?.backward()?;
/// let mut adam = Adam::new(vec![w.clone()], AdamOptions::default());
/// adam.step()?;
/// let saved = adam.state_dict();
/// assert_eq!((saved.state[&0].step, saved.param_groups[0].options["lr"].as_f64()), (Some(1), Some(1e-3)));
/// let mut resumed = Adam::new(vec![w], AdamOptions { lr: 0.5, ..AdamOptions::default() });
/// resumed.load_state_dict(&saved)?;
/// assert_eq!(resumed.param_groups[0].options.lr, 1e-3);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// The state of each parameter that has taken a step, by its number.
    pub state: BTreeMap<usize, ParamState>,
    /// The options of each group and the numbers of its parameters.
    pub param_groups: Vec<GroupState>,
}

/// The state of one parameter.
#[derive(Clone, Debug, Default)]
pub struct ParamState {
    /// The number of steps the parameter has taken, if the algorithm counts them.
    pub step: Option<u64>,
    /// The tensors, by PyTorch's names.
    pub tensors: BTreeMap<String, Tensor>,
}

/// The options of a group and the numbers of its parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupState {
    /// Options, by PyTorch's names.
    pub options: Map<String, Value>,
    /// Numbers of the parameters.
    pub params: Vec<usize>,
}

pub(super) fn save<O: Algorithm>(groups: &[ParamGroup<O>]) -> OptimizerState {
    let (mut saved, mut known) = (OptimizerState::default(), Constants::default());
    let mut number = 0;
    for group in groups {
        let first = number;
        for (parameter, state) in group.parameters.iter().zip(&group.states) {
            if state.steps > 0 || !state.tensors.is_empty() {
                let step = O::COUNTS_STEPS.then_some(state.steps);
                let mut tensors: BTreeMap<_, _> =
                    state.tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
                let constants = group.options.constants(parameter.shape()).into_iter();
                tensors.extend(constants.filter_map(|(name, values)| known.tensor(name, values)));
                if step.is_some() || !tensors.is_empty() {
                    saved.state.insert(number, ParamState { step, tensors });
                }
            }
            number += 1;
        }
        let mut options = options_of(&group.options);
        if let Some(lr) = group.initial_lr {
            options.insert("initial_lr".to_owned(), lr.into());
        }
        saved.param_groups.push(GroupState { options, params: (first..number).collect() });
    }
    saved
}

/// The tensors of [`Algorithm::constants`] on the host. All parameters share them.
#[derive(Default)]
struct Constants(BTreeMap<&'static str, Tensor>);

impl Constants {
    fn tensor(&mut self, name: &'static str, values: &[f32]) -> Option<(String, Tensor)> {
        if !self.0.contains_key(name) {
            // Allocating a kilobyte on the host does not fail.
            let tensor = Tensor::from_slice(values, &[values.len()], &Device::cpu()).ok()?;
            self.0.insert(name, tensor);
        }
        Some((name.to_owned(), self.0.get(name)?.clone()))
    }
}

/// Whether a saved tensor has these values, except for rounding.
fn has_values(tensor: &Tensor, values: &[f32]) -> Result<bool> {
    if !tensor.device().has_values() {
        return Ok(true);
    }
    let saved = tensor.to_dtype(DType::F32)?.to_vec::<f32>()?;
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs();
    Ok(saved.len() == values.len() && saved.iter().zip(values).all(is_close))
}

fn options_of<O: Algorithm>(options: &O) -> Map<String, Value> {
    match serde_json::to_value(options) {
        Ok(Value::Object(map)) => map,
        other => unreachable!("options are a struct of numbers: {other:?}"),
    }
}

/// PyTorch options that change the effect of a step and that some algorithms here do not support.
const MISSING: [&str; 2] = ["amsgrad", "maximize"];

fn wrong<O: Algorithm>(message: &str) -> Error {
    Error::Argument { op: O::NAME, message: format!("load_state_dict: {message}") }
}

/// Replaces options by those of a saved group; keys that are not options here are ignored.
fn merged<O: Algorithm>(current: &O, saved: &GroupState) -> Result<O> {
    let known = options_of(current);
    let is_missing =
        |name: &str| saved.options.get(name) == Some(&Value::Bool(true)) && !known.contains_key(name);
    if let Some(name) = MISSING.iter().find(|&&name| is_missing(name)) {
        return Err(wrong::<O>(&format!("the saved optimizer has {name}=True, which is not supported")));
    }
    let mut map = options_of(current);
    for (name, value) in &mut map {
        if let Some(saved) = saved.options.get(name) {
            value.clone_from(saved);
        }
    }
    let options: O =
        serde_json::from_value(Value::Object(map)).map_err(|why| wrong::<O>(&why.to_string()))?;
    options.check()?;
    Ok(options)
}

/// Copies the saved state of one parameter into new memory.
fn copied<O: Algorithm>(
    number: usize,
    parameter: &Tensor,
    (wanted, dtype): (Vec<StateTensor>, DType),
    constants: &[(&'static str, &'static [f32])],
    saved: &ParamState,
    memory: &mut StateMemory,
) -> Result<State> {
    let mut state = State { steps: saved.step.unwrap_or(1), tensors: Vec::new() };
    let names = || wanted.iter().map(|wanted| wanted.name).collect::<Vec<_>>().join(", ");
    for (name, values) in constants {
        let of_saved = saved.tensors.get(*name);
        if !of_saved.map_or(Ok(true), |tensor| has_values(tensor, values))? {
            let message =
                format!("`{name}` of parameter {number} has values that differ from the fixed ones here");
            return Err(wrong::<O>(&message));
        }
    }
    let is_known = |name: &str| {
        wanted.iter().any(|wanted| wanted.name == name) || constants.iter().any(|(known, _)| *known == name)
    };
    if let Some(name) = saved.tensors.keys().find(|name| !is_known(name)) {
        return Err(wrong::<O>(&format!(
            "parameter {number} has `{name}`; this optimizer keeps {}",
            names()
        )));
    }
    for wanted in &wanted {
        let Some(tensor) = saved.tensors.get(wanted.name) else {
            return Err(wrong::<O>(&format!("parameter {number} has no `{}`", wanted.name)));
        };
        if tensor.shape() != wanted.shape {
            let (found, expected) = (tensor.shape(), &wanted.shape);
            let message =
                format!("`{}` of parameter {number} has shape {found:?}, not {expected:?}", wanted.name);
            return Err(wrong::<O>(&message));
        }
        if let Some(dtype) = wanted.dtype.filter(|&dtype| dtype != tensor.dtype()) {
            let (name, found) = (wanted.name, tensor.dtype());
            return Err(wrong::<O>(&format!("`{name}` of parameter {number} has type {found}, not {dtype}")));
        }
        let own = memory.allocate(parameter, &StateTensor { start: None, ..wanted.clone() }, dtype)?;
        own.copy_(&tensor.to_device(parameter.device())?)?;
        state.tensors.push((wanted.name, own));
    }
    Ok(state)
}

pub(super) fn load<O: Algorithm>(groups: &mut [ParamGroup<O>], saved: &OptimizerState) -> Result<()> {
    let (here, there) = (groups.len(), saved.param_groups.len());
    if here != there {
        return Err(wrong::<O>(&format!(
            "{there} parameter groups were saved, but this optimizer has {here}"
        )));
    }
    let (mut loaded, mut memory) = (Vec::new(), StateMemory::default());
    for (at, (group, saved_group)) in groups.iter().zip(&saved.param_groups).enumerate() {
        let (here, there) = (group.parameters.len(), saved_group.params.len());
        if here != there {
            return Err(wrong::<O>(&format!(
                "group {at} was saved with {there} parameters, but this one has {here}"
            )));
        }
        let options = merged(&group.options, saved_group)?;
        // The group with its new options.
        let kept = ParamGroup {
            master_weights: group.master_weights,
            ..ParamGroup::new(Vec::new(), options.clone())
        };
        let states = group.parameters.iter().zip(&saved_group.params).map(|(parameter, number)| {
            let state = saved.state.get(number);
            let constants = kept.options.constants(parameter.shape());
            let wanted = kept.wanted(parameter);
            let copy = |state| copied::<O>(*number, parameter, wanted, &constants, state, &mut memory);
            state.map_or(Ok(State::default()), copy)
        });
        let states = states.collect::<Result<Vec<State>>>()?;
        loaded.push((options, states, saved_group.options.get("initial_lr").and_then(Value::as_f64)));
    }
    for (group, (options, states, initial_lr)) in groups.iter_mut().zip(loaded) {
        (group.options, group.states, group.initial_lr) = (options, states, initial_lr);
    }
    Ok(())
}
