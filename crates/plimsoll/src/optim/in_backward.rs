//! An optimizer that steps during the backward pass: a gradient is freed as soon as its parameter has been updated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::{Error, HookHandle, Result, Tensor};

use super::Optimizer;
use super::algorithm::Algorithm;
use super::optimizer_of::OptimizerOf;

/// Updates each of these parameters during the backward pass, as soon as its gradient is complete, then frees the gradient, so
/// that the gradients of all parameters never exist at once. There is no need to call `step` or `zero_grad`. As the hooks of
/// PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass".
///
/// Techniques that need all gradients at once, such as clipping by their norm or accumulation over several passes, need an
/// ordinary optimizer. If a step fails, its error ends the backward pass.
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

    /// The learning rate of each parameter's next step.
    pub fn lrs(&self) -> Vec<f64> {
        self.optimizers.iter().flat_map(|optimizer| locked(optimizer).lrs()).collect()
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

impl<O> Drop for StepInBackward<O> {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
    }
}
