//! The steps of optimizers in a capture: what a replay needs to take the next ones.

use std::cell::RefCell;
use std::sync::Arc;

use crate::cpu::kernels::optim::Rule;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::tensor::Tensor;

thread_local! {
    /// The steps of this thread's capture, in their order.
    static NOTED: RefCell<Vec<CapturedStep>> = const { RefCell::new(Vec::new()) };
}

/// The same step by a rule with other numbers, with the number of the step of each parameter.
type Rebuild = dyn Fn(&Rule, &[u64]) -> Arc<dyn Kernel> + Send + Sync;

/// One call of an optimizer's step in a capture.
pub(crate) struct CapturedStep {
    rule: &'static str,
    parameters: Vec<Tensor>,
    rebuild: Box<Rebuild>,
}

/// Notes a step of this thread's capture.
pub(super) fn note(step: CapturedStep) {
    NOTED.with_borrow_mut(|noted| noted.push(step));
}

/// The steps that were noted.
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

    /// What is stepped, in its order.
    pub(crate) fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// The same step by a rule with other numbers.
    ///
    /// # Errors
    /// Another rule; another number of steps than parameters.
    pub(crate) fn rebuild(&self, rule: &Rule, steps: &[u64]) -> Result<Arc<dyn Kernel>> {
        let name = self.rule;
        if rule.name() != name || steps.len() != self.parameters.len() {
            let (parameters, rule) = (self.parameters.len(), rule.name());
            let message = format!(
                "a captured step of {parameters} parameters by {name} cannot be one of {} by {rule}",
                steps.len()
            );
            return Err(Error::argument(name, message));
        }
        Ok((self.rebuild)(rule, steps))
    }
}
