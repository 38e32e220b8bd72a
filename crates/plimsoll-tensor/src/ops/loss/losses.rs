//! Losses of an input and a target with the same shape. Each row consists of a function of both and its two gradients.
//! With a reduction, only the scalar is allocated. Both inputs are saved.

use smallvec::smallvec;

use crate::cpu::kernels::loss::Reduction;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::pair_loss::{each, scale, sum};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::elementwise::real::Real;
use crate::ops::elementwise::slope::{self, Expression};
use crate::ops::elementwise::traced::Text;
use crate::ops::{want_float, want_same};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// A loss of one input and one target element.
trait Row: Copy + std::fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;
    const BACKWARD: &'static str;
    /// Whether the inputs must be probabilities.
    const OF_PROBABILITIES: bool;
    fn value<R: Real>(self, x: R, t: R) -> R;
    /// The derivative with respect to the input.
    fn left<R: Real>(self, x: R, t: R) -> R;
    /// The derivative with respect to the target.
    fn right<R: Real>(self, x: R, t: R) -> R;
}

/// `x, target -> loss`.
#[derive(Clone, Copy, Debug)]
struct PairLoss<F>(F, Reduction);

impl<F: Row> Kernel for PairLoss<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let text = Text::of_expression(["a", "b"], |[x, t]| self.0.value(x, t));
        match self.1 {
            Reduction::None => cuda::elementwise::of_operator(call, &text, None),
            Reduction::Sum | Reduction::Mean => {
                let weight = self.1.weight(call.ins[0].len());
                cuda::loss::pair_loss::sum(call, &text, weight)
            }
        }
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, target], [out]) = call.split();
        by_float!(out.dtype(), T => {
            let (x, target) = (x.elements::<T>(), target.elements::<T>());
            if F::OF_PROBABILITIES {
                want_probabilities(F::NAME, x)?;
            }
            let f = |x: T, t: T| self.0.value(x, t);
            match self.1 {
                Reduction::None => each(x, target, out.elements(), f),
                Reduction::Sum => out.elements()[0] = <T as Float>::of(sum(x, target, f)),
                Reduction::Mean => out.elements()[0] = <T as Float>::of(sum(x, target, f) / x.len() as f64),
            }
        });
        Ok(())
    }
}

impl<F: Row> Operator for PairLoss<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, target] = operands::inputs(F::NAME, ins)?;
        want_float(F::NAME, x.dtype)?;
        want_same(F::NAME, &[x, target])?;
        operands::equal_shapes(F::NAME, &[x, target])?;
        let shape = if self.1 == Reduction::None { x.shape() } else { &[] };
        Ok(smallvec![Output::new(shape, x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, _: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let sums = device.kind == DeviceKind::Cuda && self.1 != Reduction::None;
        if sums { cuda::loss::pair_loss::SCRATCH_BYTES } else { 0 }
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::input(1))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let (x, target) = (at.input(0)?, at.input(1)?);
        // The weight of each element.
        let weight = if self.1 == Reduction::Mean { 1.0 / x.numel() as f64 } else { 1.0 };
        let side =
            |left: bool| call_one(PairLossBackward { row: self.0, weight, left }, &[grad, &x, &target]);
        Ok(smallvec![
            at.wants(0).then(|| side(true)).transpose()?,
            at.wants(1).then(|| side(false)).transpose()?
        ])
    }
}

/// `grad, x, target -> grad of x`, or of the target.
#[derive(Clone, Copy, Debug)]
struct PairLossBackward<F> {
    row: F,
    weight: f64,
    left: bool,
}

impl<F: Row> Kernel for PairLossBackward<F> {
    fn name(&self) -> &'static str {
        F::BACKWARD
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (row, weight) = (self.row, self.weight);
        let text = Text::of_expression(["b", "c"], |[x, t]| match self.left {
            true => row.left(x, t),
            false => row.right(x, t),
        });
        cuda::loss::pair_loss::gradient(call, &text, weight)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, x, target], [out]) = call.split();
        by_float!(out.dtype(), T => {
            let (x, target, out) = (x.elements::<T>(), target.elements::<T>(), out.elements::<T>());
            match self.left {
                true => each(x, target, out, |x, t| self.row.left(x, t)),
                false => each(x, target, out, |x, t| self.row.right(x, t)),
            }
            scale(out, grad.elements(), self.weight);
        });
        Ok(())
    }
}

impl<F: Row> Operator for PairLossBackward<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(ins[1].shape(), ins[1].dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        slope::saves(self, wanted, &[1, 2])
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        slope::backward(self, at, &[1, 2], |grad| {
            slope::slope_of(self, 0, grad, &[grad.clone(), at.input(1)?, at.input(2)?])
        })
    }
}

impl<F: Row> Expression for PairLossBackward<F> {
    const NAME: &'static str = F::BACKWARD;

    fn of<R: Real>(&self, [g, x, t]: [R; 3]) -> R {
        g * R::of(self.weight) * if self.left { self.row.left(x, t) } else { self.row.right(x, t) }
    }
}

macro_rules! losses {
    ($($name:literal => $row:ident $({ $field:ident })? $(of $inputs:ident)? {
        |$x:ident, $t:ident| $value:expr,
        left $left:expr,
        right $right:expr
    })*) => {$(
        #[derive(Clone, Copy, Debug)]
        struct $row { $($field: f64)? }

        #[allow(unused_variables, reason = "a gradient need not read everything")]
        impl Row for $row {
            const NAME: &'static str = $name;
            const BACKWARD: &'static str = concat!($name, "_backward");
            const OF_PROBABILITIES: bool = !concat!($(stringify!($inputs))?).is_empty();
            #[inline(always)]
            fn value<R: Real>(self, $x: R, $t: R) -> R {
                $(let $field = R::of(self.$field);)?
                $value
            }
            #[inline(always)]
            fn left<R: Real>(self, $x: R, $t: R) -> R {
                $(let $field = R::of(self.$field);)?
                $left
            }
            #[inline(always)]
            fn right<R: Real>(self, $x: R, $t: R) -> R {
                $(let $field = R::of(self.$field);)?
                $right
            }
        }
    )*};
}

/// `|x|`.
#[inline(always)]
fn magnitude<R: Real>(x: R) -> R {
    x.at_most(R::of(0.0), -x, x)
}

/// -1, 0 or 1.
#[inline(always)]
fn sign<R: Real>(x: R) -> R {
    x.at_most(R::of(0.0), (-x).at_most(R::of(0.0), R::of(0.0), R::of(-1.0)), R::of(1.0))
}

/// A logarithm clamped to at least -100, as in PyTorch's binary cross entropy.
#[inline(always)]
fn bounded_log<R: Real>(x: R) -> R {
    let log = x.at_most(R::of(1e-44), R::of(1e-44), x).ln();
    x.at_most(R::of(1e-44), R::of(-100.0), log.at_most(R::of(-100.0), R::of(-100.0), log))
}

/// The derivative of a loss that is `d²/2` up to `limit` and linear beyond.
#[inline(always)]
fn bounded<R: Real>(d: R, limit: R) -> R {
    magnitude(d).at_most(limit, d, sign(d) * limit)
}

losses! {
    "l1_loss" => L1 {
        |x, t| magnitude(x - t),
        left sign(x - t),
        right sign(t - x)
    }
    "smooth_l1_loss" => SmoothL1 { beta } {
        |x, t| magnitude(x - t).at_most(beta, (x - t) * (x - t) / (beta + beta), magnitude(x - t) - beta * R::of(0.5)),
        left bounded(x - t, beta) / beta,
        right bounded(t - x, beta) / beta
    }
    "huber_loss" => Huber { delta } {
        |x, t| magnitude(x - t).at_most(delta, (x - t) * (x - t) * R::of(0.5), delta * (magnitude(x - t) - delta * R::of(0.5))),
        left bounded(x - t, delta),
        right bounded(t - x, delta)
    }
    "binary_cross_entropy" => BinaryCrossEntropy of probabilities {
        |x, t| -(t * bounded_log(x) + (R::of(1.0) - t) * bounded_log(R::of(1.0) - x)),
        left {
            let product = (R::of(1.0) - x) * x;
            (x - t) / product.at_most(R::of(1e-12), R::of(1e-12), product)
        },
        right bounded_log(R::of(1.0) - x) - bounded_log(x)
    }
    "binary_cross_entropy_with_logits" => BinaryCrossEntropyWithLogits {
        |x, t| x.at_most(R::of(0.0), R::of(0.0), x) - x * t + (-magnitude(x)).exp().ln_1p(),
        left x.sigmoid() - t,
        right -x
    }
    "kl_div" => KlDiv {
        |x, t| t.at_most(R::of(0.0), R::of(0.0), t * t.at_most(R::of(0.0), R::of(1.0), t).ln()) - t * x,
        left -t,
        right t.at_most(R::of(0.0), R::of(0.0), t.at_most(R::of(0.0), R::of(1.0), t).ln() + R::of(1.0)) - x
    }
    "kl_div_log_target" => KlDivLogTarget {
        |x, t| t.exp() * (t - x),
        left -t.exp(),
        right t.exp() * (t - x + R::of(1.0))
    }
}

/// Fails unless all inputs are between 0 and 1. PyTorch has the same check, but none for the targets.
fn want_probabilities<T: Float>(op: &'static str, inputs: &[T]) -> Result<()> {
    match inputs.iter().position(|x| !(0.0..=1.0).contains(&x.wide())) {
        None => Ok(()),
        Some(at) => {
            let message = format!(
                "input {} (element {at}) is not a probability: needs 0 to 1; for logits, use binary_cross_entropy_with_logits",
                inputs[at].wide()
            );
            Err(Error::argument(op, message))
        }
    }
}

/// Reduces losses whose elements are already weighted.
#[track_caller]
fn weighed(losses: &Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(losses.clone()),
        Reduction::Sum => losses.sum(),
        Reduction::Mean => losses.mean(),
    }
}

fn positive(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value > 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} is {value}: it must be greater than 0")))
}

impl Tensor {
    /// `|self - target|`, reduced. Like `torch.nn.functional.l1_loss`.
    ///
    /// # Errors
    /// If the shapes or dtypes differ, or memory runs out.
    #[track_caller]
    pub fn l1_loss(&self, target: impl AsRef<Tensor>, reduction: Reduction) -> Result<Tensor> {
        let target = target.as_ref();
        call_one(PairLoss(L1 {}, reduction), &[self, target])
    }

    /// `d² / (2 beta)` where the distance `d` is less than `beta`, otherwise `d - beta / 2`, reduced. Like
    /// `torch.nn.functional.smooth_l1_loss`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::l1_loss`], or if `beta` is negative.
    #[track_caller]
    pub fn smooth_l1_loss(
        &self,
        target: impl AsRef<Tensor>,
        beta: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        if beta == 0.0 {
            return self.l1_loss(target, reduction);
        }
        positive("smooth_l1_loss", "beta", beta)?;
        call_one(PairLoss(SmoothL1 { beta }, reduction), &[self, target])
    }

    /// `d² / 2` where the distance `d` is at most `delta`, otherwise `delta · (d - delta / 2)`, reduced. Like
    /// `torch.nn.functional.huber_loss`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::l1_loss`], or if `delta` is not positive.
    #[track_caller]
    pub fn huber_loss(&self, target: impl AsRef<Tensor>, delta: f64, reduction: Reduction) -> Result<Tensor> {
        let target = target.as_ref();
        positive("huber_loss", "delta", delta)?;
        call_one(PairLoss(Huber { delta }, reduction), &[self, target])
    }

    /// Binary cross entropy of each probability against a target probability, times `weight`, reduced. Like
    /// `torch.nn.functional.binary_cross_entropy`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::l1_loss`]; also if the weight does not broadcast or, on the host, if an input is
    /// outside 0 to 1.
    #[track_caller]
    pub fn binary_cross_entropy<'a>(
        &self,
        target: impl AsRef<Tensor>,
        weight: impl Into<Option<&'a Tensor>>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let (target, weight) = (target.as_ref(), weight.into());
        let first = if weight.is_some() { Reduction::None } else { reduction };
        let losses = call_one(PairLoss(BinaryCrossEntropy {}, first), &[self, target])?;
        weight.map_or(Ok(losses.clone()), |weight| weighed(&losses.mul(weight)?, reduction))
    }

    /// `binary_cross_entropy(sigmoid(self))`, computed from the logits without overflow. `pos_weight` is a factor of the
    /// positive part of each target. Like `torch.nn.functional.binary_cross_entropy_with_logits`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::binary_cross_entropy`].
    #[track_caller]
    pub fn binary_cross_entropy_with_logits<'a>(
        &self,
        target: impl AsRef<Tensor>,
        weight: impl Into<Option<&'a Tensor>>,
        pos_weight: impl Into<Option<&'a Tensor>>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let (target, weight, pos_weight) = (target.as_ref(), weight.into(), pos_weight.into());
        let plain = weight.is_none() && pos_weight.is_none();
        let losses = match pos_weight {
            None => {
                let first = if plain { reduction } else { Reduction::None };
                call_one(PairLoss(BinaryCrossEntropyWithLogits {}, first), &[self, target])?
            }
            Some(pos_weight) => {
                let scale = pos_weight.add_scalar(-1.0)?.mul(target)?.add_scalar(1.0)?;
                self.sub(&self.mul(target)?)?.sub(&self.log_sigmoid()?.mul(&scale)?)?
            }
        };
        let losses = weight.map_or(Ok(losses.clone()), |weight| losses.mul(weight))?;
        if plain { Ok(losses) } else { weighed(&losses, reduction) }
    }

    /// `target · (ln target - self)` for log-probabilities `self`, reduced. `log_target` says that the target contains
    /// log-probabilities too. PyTorch's `batchmean` is the sum divided by the batch size. Like
    /// `torch.nn.functional.kl_div`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::l1_loss`].
    #[track_caller]
    pub fn kl_div(
        &self,
        target: impl AsRef<Tensor>,
        log_target: bool,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let target = target.as_ref();
        match log_target {
            false => call_one(PairLoss(KlDiv {}, reduction), &[self, target]),
            true => call_one(PairLoss(KlDivLogTarget {}, reduction), &[self, target]),
        }
    }
}

fn case<F: Row>(row: F, reduction: Reduction, domain: Domain) -> Case {
    let op = PairLoss(row, reduction);
    let naive = move |ins: &[Vec<f64>]| {
        let values: Vec<f64> = ins[0].iter().zip(&ins[1]).map(|(&x, &t)| row.value(x, t)).collect();
        let sum = values.iter().sum::<f64>();
        vec![match reduction {
            Reduction::None => values,
            Reduction::Sum => vec![sum],
            Reduction::Mean => vec![sum / 12.0],
        }]
    };
    Case::new(format!("{}, {reduction:?}", F::NAME), &[&[3, 4], &[3, 4]], move |ins| call(op, ins))
        .over(domain)
        .expect(naive)
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        case(L1 {}, Reduction::Mean, Domain::Positive).without_derivative(),
        case(SmoothL1 { beta: 0.5 }, Reduction::Sum, Domain::Any),
        case(Huber { delta: 0.5 }, Reduction::None, Domain::Any),
        case(BinaryCrossEntropyWithLogits {}, Reduction::Mean, Domain::Any),
        Case::new("binary_cross_entropy", &[&[3, 4], &[3, 4]], |ins| {
            let op = PairLoss(BinaryCrossEntropy {}, Reduction::Sum);
            call(op, &[&ins[0].sigmoid()?, &ins[1].sigmoid()?])
        }),
        case(KlDiv {}, Reduction::Mean, Domain::Positive),
        case(KlDivLogTarget {}, Reduction::None, Domain::Any),
    ]
}
