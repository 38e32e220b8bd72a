//! Optimizer steps in a captured graph: the data with which a replay runs the following steps.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cpu::kernels::optim::Rule;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::tensor::Tensor;

thread_local! {
    /// The optimizer steps of this thread's capture, in order.
    static NOTED: RefCell<Vec<CapturedStep>> = const { RefCell::new(Vec::new()) };
}

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

/// Returns the recorded steps and clears the list.
pub(crate) fn take() -> Vec<CapturedStep> {
    NOTED.take()
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
