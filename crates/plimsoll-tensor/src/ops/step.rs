//! Optimizer steps: one pass over parameter, gradient and state, in place, without temporaries.

use super::want_float;
use crate::autograd::no_grad;
use crate::dispatch::{self, Data};
use crate::error::{Error, Result};
use crate::op::{AdamStep, Op, SgdStep};
use crate::tensor::Tensor;

impl Tensor {
    /// One step of stochastic gradient descent on this parameter. `momentum_buffer` is there exactly when
    /// the momentum is not 0.
    ///
    /// # Errors
    /// Shapes or types that differ; tensors that are not contiguous.
    pub fn sgd_step_(&self, grad: &Tensor, momentum_buffer: Option<&Tensor>, step: SgdStep) -> Result<()> {
        if momentum_buffer.is_some() != (step.momentum != 0.0) {
            let message = format!(
                "momentum {} with{} a buffer",
                step.momentum,
                if momentum_buffer.is_some() { "" } else { "out" }
            );
            return Err(Error::argument("sgd", message));
        }
        let mut outs = vec![self];
        outs.extend(momentum_buffer);
        self.step(&Op::Sgd(step), grad, &outs)
    }

    /// One step of Adam on this parameter, with its first and second moments.
    ///
    /// # Errors
    /// Shapes or types that differ; tensors that are not contiguous; a step number of 0.
    pub fn adam_step_(
        &self,
        grad: &Tensor,
        exp_avg: &Tensor,
        exp_avg_sq: &Tensor,
        step: AdamStep,
    ) -> Result<()> {
        if step.step == 0 {
            return Err(Error::argument("adam", "steps are counted from 1"));
        }
        self.step(&Op::Adam(step), grad, &[self, exp_avg, exp_avg_sq])
    }

    fn step(&self, op: &Op, grad: &Tensor, outs: &[&Tensor]) -> Result<()> {
        for tensor in outs.iter().chain([&grad]) {
            want_float(op.name(), tensor)?;
            if tensor.shape() != self.shape() {
                let message =
                    format!("a parameter of {:?} with a tensor of {:?}", self.shape(), tensor.shape());
                return Err(Error::shape(op.name(), message));
            }
        }
        if let Some(tensor) = outs.iter().find(|tensor| !tensor.is_contiguous()) {
            let message = format!("a parameter or its state has strides {:?}", tensor.strides());
            return Err(Error::shape(op.name(), message));
        }
        let storage = |tensor: &Tensor| tensor.data().storage.id();
        let shared = |i: usize| outs[..i].iter().any(|other| storage(other) == storage(outs[i]));
        if (1..outs.len()).any(shared) {
            // The kernel writes each of them through a slice of its own.
            return Err(Error::argument(
                op.name(),
                "a parameter and its state, or two of its states, share memory",
            ));
        }
        no_grad(|| {
            let grad = grad.contiguous()?;
            let outs: Vec<&Data> = outs.iter().map(|tensor| tensor.data()).collect();
            dispatch::run_in_place(op, &[grad.data()], &outs)
        })
    }
}
