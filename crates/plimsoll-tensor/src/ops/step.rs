//! Optimizer steps: one pass over parameter, gradient and state, in place, without temporaries.

use smallvec::{SmallVec, smallvec};

use super::want_dtype;
use crate::autograd::no_grad;
use crate::cpu::kernels::optim::{AdamStep, SgdStep, adam_step, sgd_step};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};
use crate::road::call;
use crate::suite::Case;
use crate::tensor::Tensor;

/// `grad -> param, state…` in place. The inputs are `param, state…, grad`.
#[derive(Clone, Copy, Debug)]
enum Step {
    Sgd(SgdStep),
    Adam(AdamStep),
}

impl Kernel for Step {
    fn name(&self) -> &'static str {
        match self {
            Step::Sgd(_) => "sgd",
            Step::Adam(_) => "adam",
        }
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        match self {
            Step::Sgd(step) if step.momentum == 0.0 => {
                let ([grad], [param]) = call.split();
                sgd_step(step, param.elements(), grad.elements(), None);
            }
            Step::Sgd(step) => {
                let ([grad], [param, buffer]) = call.split();
                sgd_step(step, param.elements(), grad.elements(), Some(buffer.elements()));
            }
            Step::Adam(step) => {
                let ([grad], [param, mean, square]) = call.split();
                adam_step(step, param.elements(), grad.elements(), mean.elements(), square.elements());
            }
        }
        Ok(())
    }
}

impl Operator for Step {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let (name, [param, ..]) = (self.name(), ins) else {
            return Err(Error::argument(self.name(), "needs a parameter"));
        };
        for meta in ins {
            want_dtype(name, meta.dtype, DType::F32)?;
            if meta.shape() != param.shape() {
                let message =
                    format!("a parameter of {:?} with a tensor of {:?}", param.shape(), meta.shape());
                return Err(Error::shape(name, message));
            }
        }
        let changed = &ins[..ins.len() - 1];
        if let Some(meta) = changed.iter().find(|meta| !meta.layout.is_contiguous()) {
            let message = format!("a parameter or its state has strides {:?}", meta.layout.strides());
            return Err(Error::shape(name, message));
        }
        Ok(changed.iter().enumerate().map(|(i, meta)| Output::in_place(i, meta)).collect())
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let per_element = if matches!(self, Step::Adam(_)) { 12 } else { 4 };
        Cost::streaming(per_element * outs[0].layout.len() as u64, ins, outs)
    }
}

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
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self];
        ins.extend(momentum_buffer);
        ins.push(grad);
        no_grad(|| call(Step::Sgd(step), &ins)).map(drop)
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
        no_grad(|| call(Step::Adam(step), &[self, exp_avg, exp_avg_sq, grad])).map(drop)
    }
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let sgd =
        SgdStep { lr: 0.5, momentum: 0.5, dampening: 0.0, weight_decay: 0.0, nesterov: false, first: false };
    let naive = |ins: &[Vec<f64>]| {
        let buffer: Vec<f64> = ins[1].iter().zip(&ins[2]).map(|(b, g)| 0.5 * b + g).collect();
        vec![ins[0].iter().zip(&buffer).map(|(p, b)| p - 0.5 * b).collect(), buffer]
    };
    // A parameter and its state are made contiguous, as an optimizer's are.
    let own = |ins: &[&Tensor]| ins.iter().map(|x| x.copy()).collect::<Result<Vec<_>>>();
    let step = move |ins: &[&Tensor]| call(Step::Sgd(sgd), &own(ins)?.iter().collect::<Vec<_>>());
    vec![Case::new("sgd", &[&[3, 4], &[3, 4], &[3, 4]], step).expect(naive).without_derivative()]
}
