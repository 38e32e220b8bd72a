//! Negative log-likelihood.

use smallvec::smallvec;

use crate::cpu::kernels::loss::{BadTarget, IGNORED, Reduction, nll_loss, nll_loss_backward};
use crate::cpu::kernels::number::by_float;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::want_float;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// `log_probabilities, target -> loss`.
#[derive(Clone, Copy, Debug)]
struct NllLoss(Reduction);

fn bad_target(bad: BadTarget) -> Error {
    Error::Target { op: "nll_loss", row: bad.row, value: bad.value, classes: bad.cols }
}

impl Kernel for NllLoss {
    fn name(&self) -> &'static str {
        "nll_loss"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::loss::nll::nll(call, self.0 == Reduction::Mean)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, target], [out]) = call.split();
        let cols = x.shape()[1];
        by_float!(out.dtype(), T => {
            let value = nll_loss::<T>(cols, x.elements(), target.elements(), self.0);
            out.elements()[0] = value.map_err(bad_target)?;
        });
        Ok(())
    }
}

impl Operator for NllLoss {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, target] = operands::inputs("nll_loss", ins)?;
        want_float("nll_loss", x.dtype)?;
        if !matches!(target.dtype, DType::I64 | DType::U8) {
            return Err(Error::DType {
                op: "nll_loss",
                expected: "int64 or uint8 targets",
                got: target.dtype,
            });
        }
        if x.rank() != 2 || target.shape() != &x.shape()[..1] {
            let message = format!(
                "log-probabilities {:?} with targets {:?}: needs [batch, classes] and [batch]",
                x.shape(),
                target.shape()
            );
            return Err(Error::shape("nll_loss", message));
        }
        Ok(smallvec![Output::new(&[], x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let rows = ins[1].layout.len() as u64;
        let read = rows * ins[0].dtype.size() as u64 + ins[1].bytes();
        Cost { flops: rows, bytes_read: read, bytes_written: outs[0].bytes(), ..Cost::default() }
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let op = NllLossBackward { reduction: self.0, classes: at.shape(0)[1] };
        Ok(smallvec![Some(call_one(op, &[grad, &at.input(1)?])?), None])
    }
}

/// `grad, target -> grad of log_probabilities`: linear in the gradient.
#[derive(Clone, Copy, Debug)]
struct NllLossBackward {
    reduction: Reduction,
    classes: usize,
}

impl Kernel for NllLossBackward {
    fn name(&self) -> &'static str {
        "nll_loss_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::loss::nll::nll_backward(call, self.reduction == Reduction::Mean)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, target], [out]) = call.split();
        by_float!(out.dtype(), T => {
            let grad = grad.elements::<T>()[0];
            nll_loss_backward(self.classes, grad, target.elements(), self.reduction, out.elements())
        })
        .map_err(bad_target)
    }
}

impl Operator for NllLossBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, target] = operands::inputs("nll_loss_backward", ins)?;
        Ok(smallvec![Output::new(&[target.layout.len(), self.classes], grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        Ok(smallvec![Some(grad.nll_loss(&at.input(1)?, self.reduction)?), None])
    }
}

impl Tensor {
    /// Negative log-likelihood of the classes `target` (`int64 [batch]`) under log-probabilities `[batch, classes]`, a scalar.
    /// A target of -100 is ignored, also in the divisor of a mean. Like `torch.nn.functional.nll_loss`.
    ///
    /// # Errors
    /// If the sizes or dtypes are incompatible, a target is neither a class nor -100, or memory runs out.
    #[track_caller]
    pub fn nll_loss(&self, target: impl AsRef<Tensor>, reduction: Reduction) -> Result<Tensor> {
        let target = target.as_ref();
        if reduction == Reduction::None {
            let ignored = target.eq_scalar(IGNORED)?;
            let class = target.masked_fill(&ignored, 0.0)?.unsqueeze(1)?;
            return self.gather(1, &class)?.squeeze(1)?.neg()?.masked_fill(&ignored, 0.0);
        }
        call_one(NllLoss(reduction), &[self, target])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |reduction: Reduction| {
        let naive = move |ins: &[Vec<f64>]| {
            let sum: f64 = ins[1].iter().enumerate().map(|(row, &t)| -ins[0][row * 5 + t as usize]).sum();
            vec![vec![if reduction == Reduction::Mean { sum / 4.0 } else { sum }]]
        };
        Case::new(format!("nll_loss, {reduction:?}"), &[&[4, 5]], move |ins| call(NllLoss(reduction), ins))
            .and(&[4], DType::I64, Domain::Below(5))
            .expect(naive)
    };
    let back = NllLossBackward { reduction: Reduction::Mean, classes: 5 };
    let back = Case::new("nll_loss_backward", &[&[]], move |ins| call(back, ins)).and(
        &[4],
        DType::I64,
        Domain::Below(5),
    );
    let ignoring = |reduction: Reduction| {
        Case::new(format!("nll_loss of one row of three, {reduction:?}"), &[&[3, 5]], move |ins| {
            let target = Tensor::from_slice(&[IGNORED, 2, IGNORED], &[3], ins[0].device())?;
            call(NllLoss(reduction), &[ins[0], &target])
        })
        .expect(|ins: &[Vec<f64>]| vec![vec![-ins[0][7]]])
    };
    vec![
        case(Reduction::Mean),
        case(Reduction::Sum),
        ignoring(Reduction::Mean),
        ignoring(Reduction::Sum),
        back,
    ]
}
