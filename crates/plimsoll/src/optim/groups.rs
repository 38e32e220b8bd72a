//! An optimizer of any algorithm: parameter groups, each with options of its own, and the state of each parameter.

use std::collections::BTreeSet;

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::op::{Slot, optimizer_step, optimizer_step_rounded};
use plimsoll_tensor::{DType, Device, Error, Graph, Result, Tensor};

use super::algorithm::{Algorithm, StateTensor};
use super::state_dict::{self, OptimizerState};
use super::{Optimizer, replay};
use crate::nn::{check_current, check_listed};

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
    /// Whether a step has asked that the model lists all its parameters.
    is_checked: bool,
}

/// Parameters with options in common.
#[derive(Debug)]
pub struct ParamGroup<O> {
    /// Their options.
    pub options: O,
    pub(super) parameters: Vec<Tensor>,
    pub(super) states: Vec<State>,
    /// Whether short parameters move in 32 bits.
    pub(super) master_weights: bool,
    pub(super) initial_lr: Option<f64>,
}

/// What is kept of one parameter.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) steps: u64,
    pub(super) tensors: Vec<(&'static str, Tensor)>,
}

impl State {
    /// The number of the next step. Where PyTorch counts no steps, the first is the one that makes the state.
    pub(super) fn next_step<O: Algorithm>(&self, is_new: bool) -> u64 {
        if O::COUNTS_STEPS { self.steps + 1 } else { 1 + u64::from(!is_new) }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|(at, _)| *at == name).map(|(_, tensor)| tensor)
    }
}

/// The 32-bit copy of a parameter in 16 bits.
pub(super) const MASTER: &str = "master_weight";

/// State of a parameter, by number, that its first step needs.
type Fresh = (usize, &'static str, Tensor);

/// One parameter's part of a step.
struct ParameterStep {
    /// Its number in the group.
    at: usize,
    grad: Tensor,
    state: Vec<Tensor>,
    master: Option<Tensor>,
    step: u64,
}

impl ParameterStep {
    fn slot<'a>(&'a self, parameters: &'a [Tensor]) -> Slot<'a> {
        let parameter = self.master.as_ref().unwrap_or(&parameters[self.at]);
        Slot { parameter, grad: &self.grad, state: &self.state, step: self.step }
    }
}

impl<O: Algorithm> ParamGroup<O> {
    pub(super) fn new(parameters: Vec<Tensor>, options: O) -> ParamGroup<O> {
        let states = vec![State::default(); parameters.len()];
        ParamGroup { options, parameters, states, master_weights: false, initial_lr: None }
    }

    /// What is kept of a parameter, and its type.
    pub(super) fn wanted(&self, parameter: &Tensor) -> (Vec<StateTensor>, DType) {
        let mut wanted = self.options.state(parameter.shape());
        let short = matches!(parameter.dtype(), DType::F16 | DType::BF16);
        if !self.master_weights || !short {
            return (wanted, parameter.dtype());
        }
        wanted.push(StateTensor { name: MASTER, shape: parameter.shape().to_vec(), start: None });
        (wanted, DType::F32)
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
            let (wanted, dtype) = self.wanted(parameter);
            for wanted in wanted.iter().filter(|wanted| state.get(wanted.name).is_none()) {
                if parameter.device().is_capturing() {
                    let why = "the first step makes the optimizer's state, which each replay would make again: take a step before";
                    return Err(Error::Captured { op: O::NAME, why });
                }
                let tensor = allocate(parameter, wanted, dtype)?;
                if wanted.name == MASTER {
                    tensor.copy_(parameter)?;
                }
                fresh.push((i, wanted.name, tensor));
            }
        }
        Ok(fresh)
    }

    /// Steps every parameter that has a gradient: one call for each device.
    fn step(&mut self, fresh: &[Fresh]) -> Result<()> {
        let mut work = Vec::new();
        for (at, (parameter, state)) in self.parameters.iter().zip(&self.states).enumerate() {
            let Some(grad) = parameter.grad() else { continue };
            let is_new = fresh.binary_search_by_key(&at, |(i, ..)| *i).is_ok();
            let new = |name| fresh.iter().find(|(i, n, _)| (*i, *n) == (at, name)).map(|(.., tensor)| tensor);
            let (wanted, _) = self.wanted(parameter);
            let find = |name| state.get(name).or_else(|| new(name)).cloned();
            let is_master = |wanted: &&StateTensor| wanted.name == MASTER;
            let master = wanted.iter().find(is_master).and_then(|wanted| find(wanted.name));
            let kept = wanted.iter().filter(|wanted| !is_master(wanted));
            let state_tensors = kept.filter_map(|wanted| find(wanted.name)).collect();
            let step = state.next_step::<O>(is_new);
            work.push(ParameterStep { at, grad, state: state_tensors, master, step });
        }
        let mut devices: Vec<&Device> = Vec::new();
        for parameter in work.iter().map(|work| &self.parameters[work.at]) {
            if !devices.contains(&parameter.device()) {
                devices.push(parameter.device());
            }
        }
        for device in devices {
            let here = work.iter().filter(|work| self.parameters[work.at].device() == device);
            let (masters, direct): (Vec<&ParameterStep>, Vec<&ParameterStep>) =
                here.partition(|work| work.master.is_some());
            let rule = self.options.rule();
            let rounded: Vec<&Tensor> = masters.iter().map(|work| &self.parameters[work.at]).collect();
            let slots: Vec<Slot<'_>> = masters.iter().map(|work| work.slot(&self.parameters)).collect();
            optimizer_step_rounded(&rule, &slots, &rounded)?;
            // Rules of a whole matrix compute in 32 bits: short types are converted for them, one parameter at a time.
            let converted = |slot: &Slot<'_>| {
                rule.is_whole() && !matches!(slot.parameter.dtype(), DType::F32 | DType::F64)
            };
            let slots = direct.iter().map(|work| work.slot(&self.parameters));
            let (apart, together): (Vec<_>, Vec<_>) = slots.partition(converted);
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
        OptimizerOf { param_groups: vec![ParamGroup::new(parameters, options)], is_checked: false }
    }

    /// The same, with 32-bit copies of parameters in 16 bits, and their state in 32 bits: a step moves the copy and rounds it
    /// into the parameter, so that what a step changes is not lost in rounding. The copies are state, called `master_weight`.
    /// They are made at the first step: what changes a parameter later by other means is overwritten by the next step.
    ///
    /// ```
    /// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
    /// use plimsoll::{DType, Device, Tensor};
    /// let w = Tensor::ones(&[2], &Device::cpu())?.to_dtype(DType::BF16)?.requires_grad_(true)?;
    /// let mut sgd = Sgd::new(vec![w.clone()], SgdOptions { lr: 1e-3, ..SgdOptions::default() }).with_master_weights();
    /// for _ in 0..10 {
    ///     w.set_grad(Some(Tensor::ones(&[2], &Device::cpu())?.to_dtype(DType::BF16)?))?;
    ///     sgd.step()?;
    /// }
    /// // A step of 0.001 alone would be rounded away: 1 is followed by 0.996.
    /// assert_eq!(w.to_dtype(DType::F32)?.to_vec::<f32>()?, [0.98828125; 2]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    #[must_use]
    pub fn with_master_weights(mut self) -> OptimizerOf<O> {
        self.param_groups.iter_mut().for_each(|group| group.master_weights = true);
        self
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
        let master_weights = self.param_groups.iter().any(|group| group.master_weights);
        self.param_groups.push(ParamGroup { master_weights, ..ParamGroup::new(parameters, options) });
        Ok(())
    }
}

impl<O: Algorithm> OptimizerOf<O> {
    /// An error where a step would silently not train what it should.
    fn check_parameters(&mut self) -> Result<()> {
        let all = || self.param_groups.iter().flat_map(|group| &group.parameters);
        if all().next().is_none() {
            let message = "the optimizer has no parameters: give it those of a model, `model.parameters()`";
            return Err(Error::argument(O::NAME, message));
        }
        check_current(O::NAME, all())?;
        if !self.is_checked {
            check_listed(O::NAME, all())?;
            self.is_checked = true;
        }
        Ok(())
    }
}

impl<O: Algorithm> Optimizer for OptimizerOf<O> {
    fn step(&mut self) -> Result<()> {
        self.check_parameters()?;
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

    fn steps(&self) -> Vec<u64> {
        self.param_groups.iter().flat_map(|group| group.states.iter().map(|state| state.steps)).collect()
    }

    fn set_steps(&mut self, steps: &[u64]) {
        let states = self.param_groups.iter_mut().flat_map(|group| &mut group.states);
        states.zip(steps).for_each(|(state, &steps)| state.steps = steps);
    }

    fn replay(&mut self, graph: &mut Graph) -> Result<usize> {
        replay::replay(&mut self.param_groups, graph)
    }

    fn state_dict(&self) -> OptimizerState {
        state_dict::save(self)
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        state_dict::load(self, state)
    }
}

/// Allocates one tensor of a parameter's state, named after both: `conv2.weight exp_avg`.
pub(super) fn allocate(parameter: &Tensor, wanted: &StateTensor, dtype: DType) -> Result<Tensor> {
    let label = label::intern(&format!("{} {}", parameter.label(), wanted.name));
    let _owner = Span::of(Category::OptimizerState, label);
    let tensor = match wanted.shape == parameter.shape() {
        true => parameter.empty_like_of(dtype)?,
        false => Tensor::empty(&wanted.shape, dtype, parameter.device())?,
    };
    wanted.start.map_or(Ok(()), |start| tensor.fill_(start))?;
    Ok(tensor)
}
