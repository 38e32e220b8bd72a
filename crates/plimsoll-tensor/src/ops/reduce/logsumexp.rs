//! Log-sum-exp, without overflow.

use smallvec::smallvec;

use super::reduced::{Keep, Over};
use crate::cpu::kernels::fold::fold;
use crate::cpu::kernels::folds::Exponentials;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cuda::CudaCall;
use crate::cuda::reduce::fold::{self, Fold};
use crate::dispatch::call_one;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::want_float;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> out`, over some dimensions.
#[derive(Clone, Debug)]
struct LogSumExp(Over);

impl Kernel for LogSumExp {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        fold::fold(call, &self.0.marks, Fold::LogSumExp)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        by_float!(x.dtype(), T => {
            let src = (x.elements::<T>(), x.strides());
            fold(x.shape(), src, &self.0.marks, &Exponentials, out.elements::<T>(), |(largest, sum): (T, f64)| {
                // The sum of no exponentials, or of those of minus infinity only, is 0.
                if largest == T::NEG_INFINITY { largest } else { (largest.wide() + sum.ln()) as T }
            });
        });
        Ok(())
    }
}

impl Operator for LogSumExp {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("logsumexp", ins)?;
        want_float("logsumexp", x.dtype)?;
        Ok(smallvec![Output::new(&self.0.shape(x.shape()), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(3 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let shape = at.shape(0);
        let share = (&at.input(0)? - &self.0.broadcastable(&at.output(0)?, shape)?)?.exp()?;
        Ok(smallvec![Some((&share * &self.0.broadcastable(grad, shape)?)?)])
    }
}

impl Tensor {
    /// `log(sum(exp(x)))` over some dimensions, which are removed. Like `torch.logsumexp`.
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice, the dtype is not floating-point, or memory
    /// runs out.
    #[track_caller]
    pub fn logsumexp(&self, dims: &[isize]) -> Result<Tensor> {
        let x = if self.dtype().is_float() { self.clone() } else { self.float()? };
        call_one(LogSumExp(Over::dims("logsumexp", self.rank(), dims, Keep::Dropped)?), &[&x])
    }

    /// `log(sum(exp(x)))` over some dimensions, which are kept with size 1.
    ///
    /// # Errors
    /// The same errors as [`Tensor::logsumexp`].
    #[track_caller]
    pub fn logsumexp_keepdim(&self, dims: &[isize]) -> Result<Tensor> {
        let x = if self.dtype().is_float() { self.clone() } else { self.float()? };
        call_one(LogSumExp(Over::dims("logsumexp", self.rank(), dims, Keep::Kept)?), &[&x])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let rows = |ins: &[Vec<f64>]| {
        vec![ins[0].chunks(40).map(|row| row.iter().map(|x| x.exp()).sum::<f64>().ln()).collect()]
    };
    let one = |x: Result<Tensor>| Ok(smallvec![x?]);
    vec![
        Case::new("logsumexp", &[&[3, 40]], move |ins| one(ins[0].logsumexp(&[1]))).expect(rows),
        Case::new("logsumexp_keepdim", &[&[2, 3, 4]], move |ins| one(ins[0].logsumexp_keepdim(&[0, 2]))),
    ]
}
