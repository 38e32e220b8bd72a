//! An optimizer of any algorithm: [`OptimizerOf`].

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::offload::OffloadQueue;
use plimsoll_tensor::{Error, Graph, Result, Tensor};

use super::algorithm::Algorithm;
use super::groups::{Fresh, ParamGroup};
use super::rounding::Rounding;
use super::state_dict::{self, OptimizerState};
use super::{Optimizer, replay};
use crate::nn::{check_current, check_listed, check_whole};

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
    /// Whether a step has already checked that the model lists all its parameters.
    is_checked: bool,
}

impl<O: Algorithm> OptimizerOf<O> {
    /// An optimizer of these parameters, in one group. State is allocated at the first step.
    pub fn new(parameters: Vec<Tensor>, options: O) -> OptimizerOf<O> {
        OptimizerOf { param_groups: vec![ParamGroup::new(parameters, options)], is_checked: false }
    }

    /// Returns the optimizer with 32-bit master copies of 16-bit parameters, and their state in 32 bits. A step updates the copy
    /// and rounds it into the parameter, so that small updates are not lost in rounding. The copies are part of the state, under
    /// the name `master_weight`. They are made at the first step: if something else changes a parameter later, the next step
    /// overwrites the change.
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

    /// Returns the optimizer with stochastic rounding of `bfloat16` parameters, and of their state in that type: up or down at
    /// random, so that the mean of many roundings is the value itself. Updates below half a unit of a parameter, which rounding to
    /// nearest loses, then arrive on average, without the 4 bytes for each element of [`OptimizerOf::with_master_weights`]. Other
    /// parameters are stepped as usual.
    ///
    /// The random bits follow from `seed`, the parameter's name, the number of the step and the position of the element: they are the
    /// same on every device, on all replicas, in captured steps and, if the state counts steps (not SGD's or Lion's), after loading it.
    ///
    /// ```
    /// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
    /// use plimsoll::{DType, Device, Tensor};
    /// let ones = Tensor::ones(&[4096], &Device::cpu())?.to_dtype(DType::BF16)?;
    /// let w = ones.copy()?.requires_grad_(true)?;
    /// let mut sgd = Sgd::new(vec![w.clone()], SgdOptions { lr: 1e-3, ..SgdOptions::default() }).with_stochastic_rounding(7);
    /// for _ in 0..10 {
    ///     w.set_grad(Some(ones.clone()))?;
    ///     sgd.step()?;
    /// }
    /// // A step of 0.001 alone would be rounded away: 1 is followed by 0.996.
    /// let mean = w.to_dtype(DType::F32)?.mean()?.item::<f32>()?;
    /// assert!((mean - 0.99).abs() < 3e-4);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// A step is refused for `float16` parameters, with master weights, and for optimizers without an elementwise kernel (Muon,
    /// Adafactor, and those made of operations on tensors). For sharded parameters, the bits depend on the number of
    /// ranks.
    #[must_use]
    pub fn with_stochastic_rounding(mut self, seed: u64) -> OptimizerOf<O> {
        for group in &mut self.param_groups {
            group.rounding = Some(Rounding::new(seed, &group.parameters));
        }
        self
    }

    /// Returns the optimizer with its state, including master weights, in pinned host memory between steps. A step
    /// copies the state of 64 MiB of parameters at a time to the device and back, while others are updated. It
    /// takes as long as these copies: for AdamW, 8 bytes for each parameter in each direction, and 12 with master
    /// weights. To hide them behind a backward pass, use
    /// [`StepInBackward::with_offloaded_state`](super::StepInBackward::with_offloaded_state). Numbers are
    /// bit-identical. State of host devices stays where it is.
    ///
    /// ```
    /// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
    /// use plimsoll::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::like("H200")?);
    /// let weights: Vec<Tensor> = (0..8)
    ///     .map(|_| Tensor::ones(&[64 << 20], &device)?.requires_grad_(true)) // 256 MiB
    ///     .collect::<Result<_, _>>()?;
    /// let mut adamw = AdamW::new(weights.clone(), AdamWOptions::default()).with_offloaded_state();
    /// for weight in &weights {
    ///     weight.set_grad(Some(Tensor::ones(&[64 << 20], &device)?))?;
    /// }
    /// adamw.step()?;
    /// assert!(device.max_memory_allocated() < 7 << 30); // 8 with all moments on the device
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// A step is refused for sharded parameters, and in a capture.
    #[must_use]
    pub fn with_offloaded_state(mut self) -> OptimizerOf<O> {
        self.offload_state(&Arc::default());
        self
    }

    pub(super) fn offload_state(&mut self, queue: &Arc<OffloadQueue>) {
        self.param_groups.iter_mut().for_each(|group| group.offload = Some(queue.clone()));
    }

    /// Adds a group of parameters with its own options. Like `Optimizer.add_param_group`.
    ///
    /// # Errors
    /// A parameter that is in another group, or twice in this one.
    pub fn add_param_group(&mut self, parameters: Vec<Tensor>, options: O) -> Result<()> {
        let mut seen: BTreeSet<usize> = self.parameters().iter().map(Tensor::id).collect();
        if let Some(twice) = parameters.iter().find(|parameter| !seen.insert(parameter.id())) {
            let message = format!("the parameter {} appears twice in the groups", twice.label());
            return Err(Error::Argument { op: O::NAME, message });
        }
        let master_weights = self.param_groups.iter().any(|group| group.master_weights);
        let rounding = self.param_groups.iter().find_map(|group| group.rounding.as_ref());
        let rounding = rounding.map(|rounding| Rounding::new(rounding.seed, &parameters));
        let offload = self.param_groups.iter().find_map(|group| group.offload.clone());
        let group = ParamGroup { master_weights, rounding, offload, ..ParamGroup::new(parameters, options) };
        self.param_groups.push(group);
        Ok(())
    }
}

impl<O: Algorithm> OptimizerOf<O> {
    /// Returns an error if a step would silently leave a parameter untrained.
    fn check_parameters(&mut self) -> Result<()> {
        let all = || self.param_groups.iter().flat_map(|group| &group.parameters);
        if all().next().is_none() {
            let message = "the optimizer has no parameters: give it those of a model, `model.parameters()`";
            return Err(Error::argument(O::NAME, message));
        }
        check_current(O::NAME, all())?;
        if let Some(parameter) = all().find(|parameter| parameter.is_lent()) {
            let message = format!(
                "the parameters of {} are sharded, and the complete ones get no gradients: make the optimizer from \
                 `FullyShardedDataParallel::parameters`",
                parameter.label()
            );
            return Err(Error::argument(O::NAME, message));
        }
        if !self.is_checked {
            check_listed(O::NAME, all())?;
            self.is_checked = true;
        }
        Ok(())
    }
}

impl<O: Algorithm> Optimizer for OptimizerOf<O> {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        let _entry = Entry::here();
        self.check_parameters()?;
        for group in &self.param_groups {
            group.options.check()?;
            if group.rounding.is_some() {
                Rounding::check(&group.options, &group.parameters, group.master_weights)?;
            }
            let is_whole = O::WHOLE || group.options.rule().is_some_and(|rule| rule.is_whole());
            if is_whole {
                check_whole(O::NAME, group.parameters.iter())?;
            }
            if is_whole
                && let Some(parameter) = group.parameters.iter().find(|parameter| parameter.is_shard())
            {
                let message = format!(
                    "{} is sharded, and this optimizer needs complete parameters: use AdamW, or `Shard::Nothing`",
                    parameter.label()
                );
                return Err(Error::argument(O::NAME, message));
            }
            group.parameters.iter().try_for_each(|parameter| group.options.check_parameter(parameter))?;
        }
        let missing = |group: &ParamGroup<O>| match group.offload {
            None => group.missing(0..group.parameters.len()),
            Some(_) => Ok(Vec::new()), // allocated when its turn comes
        };
        let fresh: Vec<Vec<Fresh>> = self.param_groups.iter().map(missing).collect::<Result<_>>()?;
        self.param_groups.iter_mut().zip(&fresh).try_for_each(|(group, fresh)| match group.offload.clone() {
            None => group.step(0..group.parameters.len(), fresh),
            Some(queue) => group.step_in_turns(&queue),
        })
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

    fn unsharded_state(&self) -> Vec<&'static str> {
        let Some(group) = self.param_groups.first() else { return Vec::new() };
        // Two shapes without a common size: whatever agrees for both does not depend on the parameter.
        let (some, other) = (group.options.state(&[2, 3]), group.options.state(&[5, 7]));
        let other = |name: &str| other.iter().find(|state| state.name == name).map(|state| &state.shape);
        let same = some.iter().filter(|state| other(state.name) == Some(&state.shape));
        same.map(|state| state.name).collect()
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
        state_dict::save(&self.param_groups)
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        state_dict::load(&mut self.param_groups, state)
    }
}
