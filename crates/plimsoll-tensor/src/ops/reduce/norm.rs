//! Norms of vectors, of any order.

use smallvec::smallvec;

use super::reduced::{Keep, Over};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::elementwise::{Operand, zip3};
use crate::cpu::kernels::fold::fold;
use crate::cpu::kernels::folds::{CountOf, Extremes, Norm, PowersOf, SquaresOf, SumOf};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::reduce::fold::{self, Fold};
use crate::dispatch::call_one;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::want_float;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> out`: the norm over some dimensions.
#[derive(Clone, Debug)]
struct NormOver {
    norm: Norm,
    over: Over,
}

impl Kernel for NormOver {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let fold = match self.norm {
            Norm::Zero => Fold::Count,
            Norm::One => Fold::Norm { order: 1.0 },
            Norm::Two => Fold::Norm { order: 2.0 },
            Norm::Power(order) => Fold::Norm { order },
        };
        fold::fold(call, &self.over.marks, fold)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let (shape, marks) = (x.shape(), &self.over.marks);
        by_float!(x.dtype(), T => {
            let (src, out) = ((x.elements::<T>(), x.strides()), out.elements::<T>());
            let finish = |state: f64| self.norm.finish(state) as T;
            match self.norm {
                Norm::Zero => fold(shape, src, marks, &CountOf, out, finish),
                Norm::One => fold(shape, src, marks, &SumOf, out, finish),
                Norm::Two => fold(shape, src, marks, &SquaresOf, out, finish),
                Norm::Power(p) => fold(shape, src, marks, &PowersOf(p), out, finish),
            }
        });
        Ok(())
    }
}

impl Operator for NormOver {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("norm", ins)?;
        want_float("norm", x.dtype)?;
        Ok(smallvec![Output::new(&self.over.shape(x.shape()), x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(2 * ins[0].layout.len() as u64, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0).filter(|_| self.norm != Norm::Zero) else { return Ok(smallvec![None]) };
        let wide = |tensor: &Tensor| self.over.broadcastable(tensor, at.shape(0));
        let (x, out, grad) = (at.input(0)?, wide(&at.output(0)?)?, wide(grad)?);
        let exponent = match self.norm {
            Norm::Two => 2.0,
            Norm::Power(p) => p,
            Norm::Zero | Norm::One => 1.0,
        };
        if is_grad_enabled() && exponent != 1.0 {
            // The gradient is 0 at zero.
            let is_zero = out.detach().eq_scalar(0.0)?;
            let out = out.masked_fill(&is_zero, 1.0)?;
            let share = grad.div(&out.pow_scalar(exponent - 1.0)?)?.masked_fill(&is_zero, 0.0)?;
            return Ok(smallvec![Some(signed_power(&x, exponent - 1.0)?.mul(&share)?)]);
        }
        Ok(smallvec![Some(call_one(NormBackward(self.norm), &[&grad, &x, &out])?)])
    }
}

/// A power of the magnitude, with the sign of `x`. At 0, it and its derivative are 0.
#[track_caller]
fn signed_power(x: &Tensor, exponent: f64) -> Result<Tensor> {
    if exponent == 1.0 {
        return Ok(x.clone());
    }
    let is_zero = x.detach().eq_scalar(0.0)?;
    let magnitude = x.abs()?.masked_fill(&is_zero, 1.0)?.pow_scalar(exponent)?;
    magnitude.mul(&x.detach().sign()?)?.masked_fill(&is_zero, 0.0)
}

/// `grad, x, norm -> grad of x`.
#[derive(Clone, Copy, Debug)]
struct NormBackward(Norm);

impl Kernel for NormBackward {
    fn name(&self) -> &'static str {
        "norm_backward"
    }

    fn expression(&self) -> Option<String> {
        let sign = "(b > C(0.0) ? C(1.0) : C(-1.0))";
        Some(match self.0 {
            Norm::Zero => "C(0.0)".to_owned(),
            Norm::One => "b > C(0.0) ? a : b < C(0.0) ? -a : C(0.0)".to_owned(),
            Norm::Two => "c == C(0.0) ? C(0.0) : b * (a / c)".to_owned(),
            Norm::Power(p) => {
                let power = format!("C(pow(b < C(0.0) ? -b / c : b / c, C({:?})))", p - 1.0);
                format!("c == C(0.0) ? C(0.0) : b == C(0.0) ? c * C(0.0) : a * {sign} * {power}")
            }
        })
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, x, norm], [out]) = call.split();
        let shape = out.shape();
        let strides = [&grad, &x, &norm].map(|x| operands::expanded(x, shape));
        by_float!(x.dtype(), T => {
            let operands = std::array::from_fn(|i| {
                Operand { data: [&grad, &x, &norm][i].elements::<T>(), strides: &strides[i] }
            });
            let (out, sign) = (out.elements::<T>(), |x: T| if x == 0.0 { 0.0 } else { (1.0 as T).copysign(x) });
            match self.0 {
                Norm::Zero => out.fill(0.0),
                // As in PyTorch: the sign of NaN is 0.
                Norm::One => zip3(shape, operands, out, |g, x, _| if x.is_nan() { 0.0 } else { g * sign(x) }),
                Norm::Two => zip3(
                    shape,
                    operands,
                    out,
                    #[inline(always)]
                    |g, x, norm| if norm == 0.0 { 0.0 } else { x * (g / norm) },
                ),
                Norm::Power(p) => {
                    let q = (p - 1.0) as T;
                    zip3(shape, operands, out, |g, x: T, norm: T| {
                        match norm == 0.0 {
                            true => 0.0,
                            // If the norm is infinite or NaN, the gradient is NaN.
                            false if x == 0.0 => norm * 0.0,
                            false => g * sign(x) * (x.abs() / norm).powf(q),
                        }
                    });
                }
            }
        });
        Ok(())
    }
}

impl Operator for NormBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [_, x, _] = operands::inputs("norm_backward", ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1).and(Saves::input(2))
    }

    /// The derivative for the norms that are piecewise linear; `norm` composes the other norms from tensor
    /// operations.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let shared = call_one(*self, &[grad, &at.input(1)?, &at.input(2)?])?;
        Ok(smallvec![Some(shared.sum_to(at.shape(0))?), None, None])
    }
}

impl Tensor {
    /// The norm of order `p` of all elements, a scalar: 2 for the Euclidean norm, infinity for the largest magnitude, 0 for the
    /// number of nonzero elements. Like `torch.linalg.vector_norm`.
    ///
    /// # Errors
    /// If there are no elements, for an infinite or negative order; if the dtype is not floating-point; or if memory runs out.
    #[track_caller]
    pub fn norm(&self, p: f64) -> Result<Tensor> {
        self.norm_over(p, Over::all(self.rank()))
    }

    /// The norm over some dimensions, which are removed. Like [`Tensor::norm`].
    ///
    /// # Errors
    /// If a dimension is out of range or listed twice; also the errors of [`Tensor::norm`].
    #[track_caller]
    pub fn norm_dims(&self, p: f64, dims: &[isize]) -> Result<Tensor> {
        self.norm_over(p, Over::dims("norm", self.rank(), dims, Keep::Dropped)?)
    }

    /// The norm over some dimensions, which are kept with size 1.
    ///
    /// # Errors
    /// The same errors as [`Tensor::norm_dims`].
    #[track_caller]
    pub fn norm_keepdim(&self, p: f64, dims: &[isize]) -> Result<Tensor> {
        self.norm_over(p, Over::dims("norm", self.rank(), dims, Keep::Kept)?)
    }

    #[track_caller]
    fn norm_over(&self, p: f64, over: Over) -> Result<Tensor> {
        if p.is_infinite() {
            want_float("norm", self.dtype())?;
            return self.extreme("norm", Extremes { largest: p > 0.0, magnitude: true }, over);
        }
        if p.is_nan() {
            return Err(Error::argument("norm", "the order p is NaN"));
        }
        if p < 0.0 && over.shape(self.shape()).iter().all(|size| *size > 0) && self.numel() == 0 {
            let message = format!("{:?} has no elements, so it has no norm of order {p}", self.shape());
            return Err(Error::argument("norm", message));
        }
        call_one(NormOver { norm: Norm::of(p), over }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |p: f64| {
        let naive = move |ins: &[Vec<f64>]| {
            let power = |x: &f64| x.abs().powf(p);
            let of = |row: &[f64]| match p {
                0.0 => row.iter().filter(|&&x| x != 0.0).count() as f64,
                f64::INFINITY => row.iter().fold(0.0, |most, x| x.abs().max(most)),
                p => row.iter().map(power).sum::<f64>().powf(1.0 / p),
            };
            vec![ins[0].chunks(5).map(of).collect()]
        };
        Case::new(format!("norm of order {p}"), &[&[3, 5]], move |ins| {
            Ok(smallvec![ins[0].norm_dims(p, &[-1])?])
        })
        .over(crate::suite::Domain::Apart)
        .expect(naive)
    };
    vec![
        case(2.0),
        case(1.0),
        case(3.0),
        case(0.0),
        case(f64::INFINITY),
        Case::new("norm", &[&[2, 3]], |ins| Ok(smallvec![ins[0].norm(2.0)?])),
    ]
}
