//! Optimizer steps in a captured graph: the data with which a replay runs the following steps.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use crate::capturing;
use crate::cpu::kernels::optim::Rule;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::tensor::Tensor;

thread_local! {
    /// The optimizer steps of this thread's capture, in order.
    static NOTED: RefCell<Vec<CapturedStep>> = const { RefCell::new(Vec::new()) };
    /// The steps of this thread's capture that are made of other operations, in order.
    static UPDATES: RefCell<Vec<CapturedUpdate>> = const { RefCell::new(Vec::new()) };
}

/// An optimizer's own record of a step that is made of operations on tensors: [`op::capture_update`](capture_update).
pub type CapturedUpdate = Arc<dyn Any + Send + Sync>;

/// Builds the same step with new hyperparameters of the rule and each parameter's step number.
type Rebuild = dyn Fn(&Rule, &[u64]) -> Arc<dyn Kernel> + Send + Sync;

/// An optimizer step that was called during a capture.
pub(crate) struct CapturedStep {
    rule: &'static str,
    parameters: Vec<Tensor>,
    rebuild: Box<Rebuild>,
}

/// Records a step of this thread's capture.
pub(super) fn note(step: CapturedStep) {
    NOTED.with_borrow_mut(|noted| noted.push(step));
}

/// Returns the recorded steps of both kinds and clears the lists.
pub(crate) fn take() -> (Vec<CapturedStep>, Vec<CapturedUpdate>) {
    (NOTED.take(), UPDATES.take())
}

/// Adds an optimizer step that is made of operations on tensors to the graph that this thread captures. `update` is whatever the
/// optimizer needs before each replay; [`Graph::updates`](crate::Graph::updates) lists it.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_tensor::testing::LateConfig;
/// use plimsoll_tensor::{Device, Graph, Tensor, op};
/// let device = Device::late(LateConfig::default());
/// let w = Tensor::zeros(&[2], &device)?;
/// let (graph, ()) = Graph::capture(&device, None, || {
///     w.add_scalar_(1.0)?;
///     op::capture_update(Arc::new("an update of w"));
///     Ok(())
/// })?;
/// assert_eq!(graph.updates()[0].downcast_ref(), Some(&"an update of w"));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn capture_update(update: CapturedUpdate) {
    if capturing::is_any() {
        UPDATES.with_borrow_mut(|updates| updates.push(update));
    }
}

/// The steps that [`capture_update`] has added to this thread's capture so far.
pub fn captured_updates() -> Vec<CapturedUpdate> {
    UPDATES.with_borrow(Clone::clone)
}

impl CapturedStep {
    pub(in crate::ops) fn new(
        rule: &'static str,
        parameters: Vec<Tensor>,
        rebuild: impl Fn(&Rule, &[u64]) -> Arc<dyn Kernel> + Send + Sync + 'static,
    ) -> CapturedStep {
        CapturedStep { rule, parameters, rebuild: Box::new(rebuild) }
    }

    /// The parameters that it updates, in order.
    #[track_caller]
    pub(crate) fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// The same step with new hyperparameters and step numbers.
    ///
    /// # Errors
    /// A rule of another kind; not exactly one step number per parameter.
    pub(crate) fn rebuild(&self, rule: &Rule, steps: &[u64]) -> Result<Arc<dyn Kernel>> {
        let name = self.rule;
        if rule.name() != name || steps.len() != self.parameters.len() {
            let (parameters, rule) = (self.parameters.len(), rule.name());
            let message = format!(
                "a step captured for {parameters} parameters of {name} cannot be replayed for {} parameters of {rule}",
                steps.len()
            );
            return Err(Error::argument(name, message));
        }
        Ok((self.rebuild)(rule, steps))
    }
}
