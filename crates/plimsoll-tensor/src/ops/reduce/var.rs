//! Variance and standard deviation.

use smallvec::smallvec;

use super::reduced::{Keep, Over};
use crate::cpu::kernels::fold::fold;
use crate::cpu::kernels::folds::{MomentState, Moments};
use crate::cpu::kernels::number::by_float;
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

/// `x -> out`: the variance over some dimensions, or its square root.
#[derive(Clone, Debug)]
struct Variance {
    over: Over,
    /// The divisor is the number of elements minus this.
    correction: f64,
    root: bool,
}

impl Kernel for Variance {
    fn name(&self) -> &'static str {
        if self.root { "std" } else { "var" }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let Variance { over, correction, root } = self;
        fold::fold(call, &over.marks, Fold::Variance { correction: *correction, root: *root })
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        by_float!(x.dtype(), T => {
            let src = (x.elements::<T>(), x.strides());
            fold(x.shape(), src, &self.over.marks, &Moments, out.elements::<T>(), |state: MomentState| {
                let variance = state.variance(self.correction);
                (if self.root { variance.sqrt() } else { variance }) as T
            });
        });
        Ok(())
    }
}

impl Operator for Variance {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        want_float(self.name(), x.dtype)?;
        Ok(smallvec![Output::new(&self.over.shape(x.shape()), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(4 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0).only_if(self.root))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let (x, shape) = (at.input(0)?, at.shape(0));
        let grad = match self.root {
            false => grad.clone(),
            true => {
                let std = at.output(0)?;
                // If all elements are equal, the gradient is 0.
                (grad / &std.mul_scalar(2.0)?)?.masked_fill(&std.detach().eq_scalar(0.0)?, 0.0)?
            }
        };
        let divisor = self.over.count(shape) as f64 - self.correction;
        let scaled = self.over.broadcastable(&grad, shape)?.mul_scalar(2.0 / divisor)?;
        let mean = match self.over.named() {
            dims if dims.is_empty() => x.clone(),
            dims => x.mean_keepdim(&dims)?,
        };
        Ok(smallvec![Some((&scaled * &(&x - &mean)?)?)])
    }
}

macro_rules! variance {
    ($all:ident, $dims:ident, $kept:ident, $root:literal, $what:literal) => {
        impl Tensor {
            #[doc = concat!("The ", $what, " of all elements, a scalar. `correction` is 1 for a sample and 0 for the complete population. As `torch.", stringify!($all), "(correction=…)`.")]
            ///
            /// # Errors
            /// If the dtype is not floating-point, or memory runs out.
            #[track_caller]
            pub fn $all(&self, correction: f64) -> Result<Tensor> {
                call_one(Variance { over: Over::all(self.rank()), correction, root: $root }, &[self])
            }

            #[doc = concat!("The ", $what, " over some dimensions, which are removed. As [`Tensor::", stringify!($all), "`].")]
            ///
            /// # Errors
            /// If a dimension is out of range or listed twice, the dtype is not floating-point, or memory runs out.
            #[track_caller]
            pub fn $dims(&self, dims: &[isize], correction: f64) -> Result<Tensor> {
                let over = Over::dims(stringify!($all), self.rank(), dims, Keep::Dropped)?;
                call_one(Variance { over, correction, root: $root }, &[self])
            }

            #[doc = concat!("The ", $what, " over some dimensions, which are kept with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($dims), "`].")]
            #[track_caller]
            pub fn $kept(&self, dims: &[isize], correction: f64) -> Result<Tensor> {
                let over = Over::dims(stringify!($all), self.rank(), dims, Keep::Kept)?;
                call_one(Variance { over, correction, root: $root }, &[self])
            }
        }
    };
}
variance!(var, var_dims, var_keepdim, false, "variance");
variance!(std, std_dims, std_keepdim, true, "standard deviation");

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let of = |row: &[f64], correction: f64| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (row.len() as f64 - correction)
    };
    let rows = move |ins: &[Vec<f64>]| vec![ins[0].chunks(4).map(|row| of(row, 1.0)).collect()];
    let all = move |ins: &[Vec<f64>]| vec![vec![of(&ins[0], 0.0).sqrt()]];
    let one = |x: Result<Tensor>| Ok(smallvec![x?]);
    vec![
        Case::new("var", &[&[3, 4]], move |ins| one(ins[0].var_dims(&[1], 1.0))).expect(rows),
        Case::new("var of columns", &[&[2, 3, 20]], move |ins| one(ins[0].var_keepdim(&[0, 1], 0.0))),
        Case::new("std", &[&[3, 4]], move |ins| one(ins[0].std(0.0))).expect(all),
    ]
}
