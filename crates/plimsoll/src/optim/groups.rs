//! An optimizer of any algorithm: parameter groups, each with options of its own, and the state of each parameter.

use std::collections::BTreeSet;

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::op::{Slot, optimizer_step};
use plimsoll_tensor::{DType, Device, Error, Result, Tensor};

use super::Optimizer;
use super::algorithm::{Algorithm, StateTensor};
use super::state_dict::{self, OptimizerState};

/// An optimizer with the options `O`: `Sgd` is `OptimizerOf<SgdOptions>`.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 4, 2))?;
/// // Weights decay, biases do not.
/// let (biases, weights) = model.named_parameters().into_iter().partition::<Vec<_>, _>(|(name, _)| name.ends_with("bias"));
/// let tensors = |named: Vec<(String, Tensor)>| named.into_iter().map(|(_, tensor)| tensor).collect();
/// let mut adamw = AdamW::new(tensors(weights), AdamWOptions::default());
/// adamw.add_param_group(tensors(biases), AdamWOptions { weight_decay: 0.0, ..AdamWOptions::default() })?;
/// model.forward(&Tensor::ones(&[1, 4], &device)?)?.sum()?.backward()?;
/// adamw.step()?;
/// adamw.param_groups[1].options.lr = 1e-4;
/// assert_eq!(adamw.lrs(), [1e-3, 1e-4]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct OptimizerOf<O> {
    /// The groups. Their options may be changed between steps.
    pub param_groups: Vec<ParamGroup<O>>,
}

/// Parameters with options in common.
#[derive(Debug)]
pub struct ParamGroup<O> {
    /// Their options.
    pub options: O,
    pub(super) parameters: Vec<Tensor>,
    pub(super) states: Vec<State>,
    pub(super) initial_lr: Option<f64>,
}

/// What is kept of one parameter.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) steps: u64,
    pub(super) tensors: Vec<(&'static str, Tensor)>,
}

impl State {
    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|(at, _)| *at == name).map(|(_, tensor)| tensor)
    }
}

/// State of a parameter, by number, that its first step needs.
type Fresh = (usize, &'static str, Tensor);

impl<O: Algorithm> ParamGroup<O> {
    fn new(parameters: Vec<Tensor>, options: O) -> ParamGroup<O> {
        let states = vec![State::default(); parameters.len()];
        ParamGroup { options, parameters, states, initial_lr: None }
    }

    /// The parameters of the group.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// Allocates what is missing of the state of parameters that have a gradient: all or none.
    fn missing(&self) -> Result<Vec<Fresh>> {
        let mut fresh = Vec::new();
        for (i, (parameter, state)) in self.parameters.iter().zip(&self.states).enumerate() {
            if parameter.grad().is_none() {
                continue;
            }
            for wanted in self.options.state(parameter.shape()) {
                if state.get(wanted.name).is_none() {
                    fresh.push((i, wanted.name, allocate(parameter, &wanted)?));
                }
            }
        }
        Ok(fresh)
    }

    /// Steps every parameter that has a gradient: one call for each device.
    fn step(&mut self, fresh: &[Fresh]) -> Result<()> {
        struct Work {
            at: usize,
            grad: Tensor,
            state: Vec<Tensor>,
            step: u64,
        }
        let mut work = Vec::new();
        for (at, (parameter, state)) in self.parameters.iter().zip(&self.states).enumerate() {
            let Some(grad) = parameter.grad() else { continue };
            let is_new = fresh.binary_search_by_key(&at, |(i, ..)| *i).is_ok();
            let new = |name| fresh.iter().find(|(i, n, _)| (*i, *n) == (at, name)).map(|(.., tensor)| tensor);
            let wanted = self.options.state(parameter.shape());
            let find = |wanted: &StateTensor| state.get(wanted.name).or_else(|| new(wanted.name)).cloned();
            let state_tensors = wanted.iter().filter_map(find).collect();
            // Where PyTorch counts no steps, the first is the one that makes the state.
            let step = if O::COUNTS_STEPS { state.steps + 1 } else { 1 + u64::from(!is_new) };
            work.push(Work { at, grad, state: state_tensors, step });
        }
        let mut devices: Vec<&Device> = Vec::new();
        for parameter in work.iter().map(|work| &self.parameters[work.at]) {
            if !devices.contains(&parameter.device()) {
                devices.push(parameter.device());
            }
        }
        for device in devices {
            let slots: Vec<Slot<'_>> = work
                .iter()
                .filter(|work| self.parameters[work.at].device() == device)
                .map(|work| Slot {
                    parameter: &self.parameters[work.at],
                    grad: &work.grad,
                    state: &work.state,
                    step: work.step,
                })
                .collect();
            // Rules of a whole matrix compute in 32 bits: short types are converted for them, one parameter at a time.
            let rule = self.options.rule();
            let converted = |slot: &Slot<'_>| {
                rule.is_whole() && !matches!(slot.parameter.dtype(), DType::F32 | DType::F64)
            };
            let (apart, together): (Vec<_>, Vec<_>) = slots.into_iter().partition(converted);
            optimizer_step(&rule, &together)?;
            apart.iter().try_for_each(|slot| optimizer_step(&rule, std::slice::from_ref(slot)))?;
        }
        // Stored only now: the next step must not find state that this one did not fill.
        for work in &work {
            self.states[work.at].steps += 1;
        }
        for (at, name, tensor) in fresh {
            self.states[*at].tensors.push((name, tensor.clone()));
        }
        Ok(())
    }
}

impl<O: Algorithm> OptimizerOf<O> {
    /// An optimizer of these parameters, in one group. State is allocated at the first step.
    pub fn new(parameters: Vec<Tensor>, options: O) -> OptimizerOf<O> {
        OptimizerOf { param_groups: vec![ParamGroup::new(parameters, options)] }
    }

    /// Adds parameters with options of their own. As `Optimizer.add_param_group`.
    ///
    /// # Errors
    /// A parameter that is in another group, or twice in this one.
    pub fn add_param_group(&mut self, parameters: Vec<Tensor>, options: O) -> Result<()> {
        let mut seen: BTreeSet<usize> = self.parameters().iter().map(Tensor::id).collect();
        if let Some(twice) = parameters.iter().find(|parameter| !seen.insert(parameter.id())) {
            let message = format!("the parameter {} is in two places of the groups", twice.label());
            return Err(Error::Argument { op: O::NAME, message });
        }
        self.param_groups.push(ParamGroup::new(parameters, options));
        Ok(())
    }
}

impl<O: Algorithm> Optimizer for OptimizerOf<O> {
    fn step(&mut self) -> Result<()> {
        for group in &self.param_groups {
            group.options.check()?;
            group.parameters.iter().try_for_each(|parameter| group.options.check_parameter(parameter))?;
        }
        let fresh: Vec<Vec<Fresh>> =
            self.param_groups.iter().map(ParamGroup::missing).collect::<Result<_>>()?;
        self.param_groups.iter_mut().zip(&fresh).try_for_each(|(group, fresh)| group.step(fresh))
    }

    fn lrs(&self) -> Vec<f64> {
        self.param_groups.iter().map(|group| group.options.lr()).collect()
    }

    fn set_lrs(&mut self, lrs: &[f64]) {
        self.param_groups.iter_mut().zip(lrs).for_each(|(group, &lr)| group.options.set_lr(lr));
    }

    fn initial_lrs(&mut self) -> Vec<f64> {
        let noted = |group: &mut ParamGroup<O>| *group.initial_lr.get_or_insert(group.options.lr());
        self.param_groups.iter_mut().map(noted).collect()
    }

    fn momenta(&self) -> Option<Vec<f64>> {
        self.param_groups.iter().map(|group| group.options.momentum()).collect()
    }

    fn set_momenta(&mut self, momenta: &[f64]) {
        self.param_groups.iter_mut().zip(momenta).for_each(|(group, &it)| group.options.set_momentum(it));
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.param_groups.iter().flat_map(|group| group.parameters.iter().cloned()).collect()
    }

    fn state_dict(&self) -> OptimizerState {
        state_dict::save(self)
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        state_dict::load(self, state)
    }
}

/// Allocates one tensor of a parameter's state, named after both: `conv2.weight exp_avg`.
pub(super) fn allocate(parameter: &Tensor, wanted: &StateTensor) -> Result<Tensor> {
    let label = label::intern(&format!("{} {}", parameter.label(), wanted.name));
    let _owner = Span::of(Category::OptimizerState, label);
    let tensor = match wanted.shape == parameter.shape() {
        true => parameter.empty_like()?,
        false => Tensor::empty(&wanted.shape, parameter.dtype(), parameter.device())?,
    };
    wanted.start.map_or(Ok(()), |start| tensor.fill_(start))?;
    Ok(tensor)
}
