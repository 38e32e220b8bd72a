//! Optimizers, with PyTorch's names, formulas and defaults. A step updates parameters and state in place. Most optimizers have
//! a kernel, which steps all parameters of a group in one call, in one pass without temporaries. [`Lamb`], [`NAdam`], [`RAdam`],
//! [`Adamax`] and [`Adadelta`] are made of operations on tensors (`numbers.rs`): several for each parameter, with temporaries.
//!
//! An optimizer is defined by its options (`sgd.rs`, `lamb.rs`, …), which implement [`Algorithm`]. [`OptimizerOf`] has everything
//! else, which is the same for all: parameter groups, state, state dicts (`state_dict.rs`). [`lr_scheduler`] changes learning
//! rates, `clip.rs` gradients; [`swa_utils`] averages parameters.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod adamw_8bit;
mod algorithm;
mod clip;
mod groups;
mod in_backward;
mod lamb;
mod lion;
pub mod lr_scheduler;
mod muon;
mod nadam;
mod numbers;
mod optimizer_of;
mod radam;
mod replay;
mod rmsprop;
mod rounding;
mod sgd;
mod state_dict;
pub mod swa_utils;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adafactor::{Adafactor, AdafactorOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions, AdamW, AdamWOptions};
pub use adamax::{Adamax, AdamaxOptions};
pub use adamw_8bit::{AdamW8bit, AdamW8bitOptions};
pub use algorithm::{Algorithm, StateTensor, Updating};
pub use clip::{clip_grad_norm_, clip_grad_value_};
pub use groups::ParamGroup;
pub(crate) use groups::with_state_pool;
pub use in_backward::{StepInBackward, step_in_backward};
pub use lamb::{Lamb, LambOptions};
pub use lion::{Lion, LionOptions};
pub use muon::{AdjustLr, Muon, MuonOptions};
pub use nadam::{NAdam, NAdamOptions};
pub use optimizer_of::OptimizerOf;
pub use radam::{RAdam, RAdamOptions};
pub use rmsprop::{RmsProp, RmsPropOptions};
pub use sgd::{Sgd, SgdOptions};
pub use state_dict::{GroupState, OptimizerState, ParamState};

use plimsoll_tensor::{Graph, Result, Tensor};

/// Updates parameters from their gradients. Like `torch.optim.Optimizer`.
pub trait Optimizer {
    /// Updates every parameter that has a gradient. Missing state is allocated for all of
    /// them first, so running out of memory leaves every parameter unchanged.
    ///
    /// # Errors
    /// All errors occur before anything changes: no parameters; an option that PyTorch rejects; a parameter whose tensor was
    /// replaced after the optimizer was made; at the first step, a parameter of the same model that no
    /// [`members!`](crate::members) lists, and out of memory.
    fn step(&mut self) -> Result<()>;

    /// Whether the backward pass already updates parameters and frees their gradients, which can then be neither clipped nor
    /// accumulated: see [`step_in_backward`].
    fn steps_in_backward(&self) -> bool {
        false
    }

    /// Sets the learning rate of the next step in every group.
    fn set_lr(&mut self, lr: f64) {
        let lrs = vec![lr; self.lrs().len()];
        self.set_lrs(&lrs);
    }

    /// The learning rate of each group.
    fn lrs(&self) -> Vec<f64>;

    /// Sets the learning rate of each group, in their order.
    fn set_lrs(&mut self, lrs: &[f64]);

    /// The learning rates of the groups before their first scheduler, recorded at the first call.
    fn initial_lrs(&mut self) -> Vec<f64>;

    /// The momentum, or the first beta, of each group; `None` if the algorithm has neither.
    fn momenta(&self) -> Option<Vec<f64>> {
        None
    }

    /// Sets the momentum, or the first beta, of each group.
    fn set_momenta(&mut self, momenta: &[f64]) {
        let _ = momenta;
    }

    /// The parameters that the optimizer updates, group by group.
    fn parameters(&self) -> Vec<Tensor>;

    /// The optimizer's state and options, in PyTorch's layout: parameters are numbered group by group. The tensors are the
    /// optimizer's, not copies.
    fn state_dict(&self) -> OptimizerState;

    /// Loads the state and options of another optimizer with the same parameters in the same groups.
    ///
    /// # Errors
    /// Groups or state that do not match, options that are missing or that PyTorch rejects, out of memory. On an error nothing
    /// has changed.
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()>;

    /// The names of the state tensors that have the same shape for each parameter, such as `mu_product` of NAdam. Ranks that have
    /// parts of a parameter have copies of them.
    fn unsharded_state(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// How many steps each parameter has taken, in the order of [`Optimizer::parameters`].
    fn steps(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Sets how many steps each parameter has taken.
    fn set_steps(&mut self, steps: &[u64]) {
        let _ = steps;
    }

    /// Counts the steps that the replay of a captured graph is about to take, and passes their numbers and the current options to
    /// the graph. Returns how many of the graph's steps and updates belong to this optimizer. An optimizer that does not implement this
    /// method cannot be captured.
    ///
    /// # Errors
    /// An option that PyTorch rejects; options that need kernels other than the captured ones.
    fn replay(&mut self, graph: &mut Graph) -> Result<usize> {
        let _ = graph;
        Ok(0)
    }

    /// Drops every gradient, like PyTorch's `zero_grad(set_to_none=True)`.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Tensor::clear_grad);
    }
}
