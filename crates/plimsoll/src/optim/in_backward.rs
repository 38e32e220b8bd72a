//! An optimizer that steps during the backward pass: a gradient is freed as soon as its parameter has been updated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::{Error, HookHandle, Result, Tensor};

use super::algorithm::Algorithm;
use super::optimizer_of::OptimizerOf;
use super::state_dict::{self, GroupState, OptimizerState};
use super::{Optimizer, ParamGroup};

/// Updates each of these parameters during the backward pass, as soon as its gradient is complete, then frees the gradient, so
/// that the gradients of all parameters never exist at once. There is no need to call `step` or `zero_grad`. As the hooks of
/// PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass".
///
/// Techniques that need all gradients at once, such as clipping by their norm or accumulation over several passes, need an
/// ordinary optimizer. If a step fails, its error ends the backward pass. The state dict is that of an ordinary optimizer of
/// the same parameters, in one group, so each loads the other's.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::optim::{SgdOptions, step_in_backward};
/// use plimsoll::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let model = (0..8).try_fold(Sequential::new(&Scope::new(&device, 1)), |model, i| {
///     model.add(&format!("fc{i}"), |s| Linear::without_bias(s, 1024, 1024))
/// })?;
/// let steps = step_in_backward(&model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
/// model.forward(&Tensor::ones(&[1, 1024], &device)?)?.sum()?.backward()?;
/// assert!(model.parameters().iter().all(|parameter| parameter.grad().is_none()));
/// assert!(device.max_memory_allocated() < (8 + 2) << 22); // eight weights, never eight gradients
/// # drop(steps);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// No parameters; sharded ones; one that does not require a gradient; options that PyTorch rejects.
#[allow(clippy::needless_pass_by_value, reason = "as every optimizer takes its options")]
pub fn step_in_backward<O: Algorithm>(parameters: &[Tensor], options: O) -> Result<StepInBackward<O>> {
    options.check()?;
    if parameters.is_empty() {
        let message = "there are no parameters to step: give it those of a model, `model.parameters()`";
        return Err(Error::argument(O::NAME, message));
    }
    if parameters.iter().any(|parameter| parameter.is_lent() || parameter.is_shard()) {
        let message = "a sharded parameter cannot be stepped in the backward pass: use an ordinary optimizer of \
                       `FullyShardedDataParallel::parameters`";
        return Err(Error::argument(O::NAME, message));
    }
    let mut steps = StepInBackward { optimizers: Vec::new(), hooks: Vec::new() };
    for parameter in parameters {
        options.check_parameter(parameter)?;
        let optimizer = Arc::new(Mutex::new(OptimizerOf::new(vec![parameter.clone()], options.clone())));
        steps.optimizers.push(optimizer.clone());
        steps.hooks.push(parameter.register_post_accumulate_grad_hook(move |parameter| {
            locked(&optimizer).step()?;
            parameter.clear_grad();
            Ok(())
        })?);
    }
    Ok(steps)
}

type Shared<O> = Arc<Mutex<OptimizerOf<O>>>;

fn locked<O>(optimizer: &Shared<O>) -> MutexGuard<'_, OptimizerOf<O>> {
    optimizer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps [`step_in_backward`] active until it is dropped.
#[derive(Debug)]
pub struct StepInBackward<O> {
    optimizers: Vec<Shared<O>>,
    hooks: Vec<HookHandle>,
}

impl<O: Algorithm> StepInBackward<O> {
    /// Keeps the optimizer's state, including master weights, in pinned host memory between steps. A parameter's state
    /// is copied to the device while the backward pass computes the gradients of others, in the order of the last pass.
    /// The backward pass is not slower if it takes longer than the copies: for AdamW, 8 bytes for each parameter in
    /// each direction, and 12 with master weights. Numbers are bit-identical.
    ///
    /// ```
    /// use plimsoll::nn::{Linear, Module, Scope, Sequential};
    /// use plimsoll::optim::{AdamWOptions, step_in_backward};
    /// use plimsoll::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::like("H200")?);
    /// let model = (0..16).try_fold(Sequential::new(&Scope::new(&device, 1)), |model, i| {
    ///     model.add(&format!("fc{i}"), |s| Linear::without_bias(s, 2048, 2048)) // 16 MiB
    /// })?;
    /// let steps = step_in_backward(&model.parameters(), AdamWOptions::default())?.with_offloaded_state();
    /// for _step in 0..2 {
    ///     model.forward(&Tensor::ones(&[1, 2048], &device)?)?.sum()?.backward()?;
    /// }
    /// assert!(device.max_memory_allocated() < (16 + 8) << 24); // not 16 weights and 32 moments
    /// # drop(steps);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    #[must_use]
    pub fn with_offloaded_state(self) -> StepInBackward<O> {
        let queue = Arc::default();
        self.optimizers.iter().for_each(|optimizer| locked(optimizer).offload_state(&queue));
        self
    }

    /// Keeps 32-bit master copies of 16-bit parameters: see [`OptimizerOf::with_master_weights`].
    #[must_use]
    pub fn with_master_weights(self) -> StepInBackward<O> {
        self.optimizers.iter().for_each(|optimizer| {
            locked(optimizer).param_groups.iter_mut().for_each(|group| group.master_weights = true);
        });
        self
    }

    /// Sets the learning rate of the next steps.
    pub fn set_lr(&self, lr: f64) {
        self.optimizers.iter().for_each(|optimizer| locked(optimizer).set_lr(lr));
    }

    /// What `of` returns for the first parameter: all parameters have the same options.
    fn first<T>(&self, of: impl FnOnce(&mut OptimizerOf<O>) -> T) -> Option<T> {
        self.optimizers.first().map(|optimizer| of(&mut locked(optimizer)))
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.optimizers.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.optimizers.is_empty()
    }
}

impl<O: Algorithm> Optimizer for StepInBackward<O> {
    /// Steps the parameters that have a gradient: none after a backward pass, which has stepped them.
    fn step(&mut self) -> Result<()> {
        self.optimizers.iter().try_for_each(|optimizer| {
            let mut optimizer = locked(optimizer);
            let has_gradient = optimizer.parameters().iter().any(|parameter| parameter.grad().is_some());
            if has_gradient { optimizer.step() } else { Ok(()) }
        })
    }

    fn steps_in_backward(&self) -> bool {
        true
    }

    fn lrs(&self) -> Vec<f64> {
        self.first(|optimizer| optimizer.lrs()).unwrap_or_default()
    }

    fn set_lrs(&mut self, lrs: &[f64]) {
        self.optimizers.iter().for_each(|optimizer| locked(optimizer).set_lrs(lrs));
    }

    fn initial_lrs(&mut self) -> Vec<f64> {
        let each = self.optimizers.iter().map(|optimizer| locked(optimizer).initial_lrs());
        each.fold(None, |first, lrs| first.or(Some(lrs))).unwrap_or_default()
    }

    fn momenta(&self) -> Option<Vec<f64>> {
        self.first(|optimizer| optimizer.momenta())?
    }

    fn set_momenta(&mut self, momenta: &[f64]) {
        self.optimizers.iter().for_each(|optimizer| locked(optimizer).set_momenta(momenta));
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.optimizers.iter().flat_map(|optimizer| locked(optimizer).parameters()).collect()
    }

    fn state_dict(&self) -> OptimizerState {
        let mut all = OptimizerState::default();
        for (number, optimizer) in self.optimizers.iter().enumerate() {
            let OptimizerState { state, param_groups } = locked(optimizer).state_dict();
            all.state.extend(state.into_values().map(|state| (number, state)));
            if number == 0 {
                all.param_groups = param_groups;
            }
        }
        all.param_groups.iter_mut().for_each(|group| group.params = (0..self.optimizers.len()).collect());
        all
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        // One group for each parameter, so that all of them are loaded or none.
        let each = |group: &GroupState| {
            let alone = |number: &usize| GroupState { params: vec![*number], ..group.clone() };
            group.params.iter().map(alone).collect::<Vec<_>>()
        };
        let param_groups = state.param_groups.iter().flat_map(each).collect();
        let state = OptimizerState { state: state.state.clone(), param_groups };
        let mut optimizers: Vec<_> = self.optimizers.iter().map(locked).collect();
        let mut groups: Vec<ParamGroup<O>> =
            optimizers.iter_mut().flat_map(|optimizer| optimizer.param_groups.drain(..)).collect();
        let outcome = state_dict::load(&mut groups, &state);
        optimizers.iter_mut().zip(groups).for_each(|(optimizer, group)| optimizer.param_groups.push(group));
        outcome
    }

    fn steps(&self) -> Vec<u64> {
        self.optimizers.iter().flat_map(|optimizer| locked(optimizer).steps()).collect()
    }

    fn set_steps(&mut self, steps: &[u64]) {
        let each = self.optimizers.iter().zip(steps);
        each.for_each(|(optimizer, &steps)| locked(optimizer).set_steps(&[steps]));
    }
}

impl<O> Drop for StepInBackward<O> {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
    }
}
