//! In-place optimizer steps, with PyTorch's formulas in PyTorch's order of operations.
//!
//! One pass over parameter, gradient and state, without temporaries. The gradient is only read: weight decay is added on
//! the fly. This file has SGD, Adam and AdamW, and [`Rule`], which is any of the rules. `averages.rs` has those that
//! divide by running averages, `adafactor.rs` and `muon.rs` those that use the complete matrix, `adamw_8bit.rs` AdamW with
//! moments in 8 bits, `clip.rs` the norm of all gradients, and `short.rs` steps of 16-bit types.

use super::adafactor::AdafactorStep;
use super::adamw_8bit::AdamW8bitStep;
use super::averages::{AdagradStep, LionStep, RmsPropStep};
use super::direction::sign;
use super::muon::MuonStep;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece, for_each_piece2, for_each_piece3, for_each_pieces};
use crate::simd::vectorize;

/// One step of stochastic gradient descent on one parameter, as `torch.optim.SGD` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Momentum factor; 0 keeps no buffer.
    pub momentum: f64,
    /// Dampening of the gradient that enters the momentum buffer.
    pub dampening: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Whether the momentum buffer is new. It is then set to the gradient.
    pub first: bool,
    /// Whether to step along the gradient instead of against it.
    pub maximize: bool,
}

/// The kind of Adam's weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Added to the gradient: `torch.optim.Adam`.
    InGradient,
    /// Shrinks the parameter: `torch.optim.AdamW`.
    Decoupled,
}

/// One step of Adam on one parameter, as `torch.optim.Adam` or `AdamW` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty, or decay of the parameter itself.
    pub weight_decay: f64,
    /// The kind of weight decay.
    pub decay: Decay,
    /// Whether the divisor is the largest second moment so far, which is a third tensor of state.
    pub amsgrad: bool,
    /// Whether to step along the gradient instead of against it.
    pub maximize: bool,
    /// Number of this step, from 1.
    pub step: u64,
}

/// Moves `param` against `grad`. `momentum_buffer` is needed when momentum is not 0; on its `first` step it is set to the
/// gradient, and its old values are ignored.
pub fn sgd_step<T: Float>(options: &SgdStep, param: &mut [T], grad: &[T], momentum_buffer: Option<&mut [T]>) {
    assert_eq!(param.len(), grad.len(), "sgd: parameter and gradient differ in length");
    let [lr, momentum, undamped, decay] =
        [options.lr, options.momentum, 1.0 - options.dampening, options.weight_decay].map(T::of);
    let (nesterov, first, sign) = (options.nesterov, options.first, sign::<T>(options.maximize));
    let Some(buffer) = momentum_buffer else {
        assert!(options.momentum == 0.0, "sgd: momentum {} without a buffer", options.momentum);
        return for_each_piece(param, PIECE, |at, param| {
            let grad = &grad[at..];
            vectorize(
                #[inline(always)]
                || {
                    for (p, &g) in param.iter_mut().zip(grad) {
                        *p = *p - lr * (sign * g + decay * *p);
                    }
                },
            );
        });
    };
    for_each_piece2((param, buffer), PIECE, |at, param, buffer| {
        let grad = &grad[at..];
        vectorize(
            #[inline(always)]
            || {
                for ((p, buffer), &g) in param.iter_mut().zip(buffer).zip(grad) {
                    let g = sign * g + decay * *p;
                    *buffer = if first { g } else { momentum * *buffer + undamped * g };
                    *p = *p - lr * if nesterov { g + momentum * *buffer } else { *buffer };
                }
            },
        );
    });
}

/// The elementwise rule of Adam.
#[derive(Clone, Copy)]
struct Moments<T> {
    sign: T,
    in_grad: T,
    fresh1: T,
    beta2: T,
    fresh2: T,
    shrink: T,
    step_size: T,
    root_correction2: T,
    eps: T,
}

impl<T: Float> Moments<T> {
    /// Updates both moments with a gradient.
    #[inline(always)]
    fn update(self, p: T, g: T, mean: &mut T, square: &mut T) {
        let g = self.sign * g + self.in_grad * p;
        *mean = *mean + self.fresh1 * (g - *mean);
        *square = self.beta2 * *square + self.fresh2 * g * g;
    }

    /// The parameter after a step with these moments.
    #[inline(always)]
    fn moved(self, p: T, mean: T, square: T) -> T {
        let root = square.sqrt() / self.root_correction2 + self.eps;
        self.shrink * p - self.step_size * mean / root
    }
}

/// Moves `param` against `grad` by its running mean divided by the root of its running mean square, or of the largest mean
/// square so far, which `largest` keeps. `step` counts from 1.
pub fn adam_step<T: Float>(
    options: &AdamStep,
    param: &mut [T],
    grad: &[T],
    exp_avg: &mut [T],
    exp_avg_sq: &mut [T],
    largest: Option<&mut [T]>,
) {
    assert_eq!(param.len(), grad.len(), "adam: parameter and gradient differ in length");
    let step = options.step;
    assert!(step > 0, "adam: steps count from 1, not {step}");
    // PyTorch also computes these scalars in double precision.
    let root_correction2 = (1.0 - options.beta2.powf(step as f64)).sqrt();
    let step_size = options.lr / (1.0 - options.beta1.powf(step as f64));
    let (in_grad, shrink) = match options.decay {
        Decay::InGradient => (options.weight_decay, 1.0),
        Decay::Decoupled => (0.0, 1.0 - options.lr * options.weight_decay),
    };
    let [in_grad, shrink, step_size, root_correction2, eps] =
        [in_grad, shrink, step_size, root_correction2, options.eps].map(T::of);
    let [fresh1, beta2, fresh2] = [1.0 - options.beta1, options.beta2, 1.0 - options.beta2].map(T::of);
    let sign = sign::<T>(options.maximize);
    let rule = Moments { sign, in_grad, fresh1, beta2, fresh2, shrink, step_size, root_correction2, eps };
    let Some(largest) = largest else {
        return for_each_piece3((param, exp_avg, exp_avg_sq), PIECE / 2, |at, param, exp_avg, exp_avg_sq| {
            let grad = &grad[at..];
            vectorize(
                #[inline(always)]
                || {
                    for (((p, mean), square), &g) in param.iter_mut().zip(exp_avg).zip(exp_avg_sq).zip(grad) {
                        rule.update(*p, g, mean, square);
                        *p = rule.moved(*p, *mean, *square);
                    }
                },
            );
        });
    };
    for_each_pieces(
        [param, exp_avg, exp_avg_sq, largest],
        PIECE / 2,
        |at, [param, exp_avg, exp_avg_sq, largest]| {
            let grad = &grad[at..];
            vectorize(
                #[inline(always)]
                || {
                    let state = exp_avg.iter_mut().zip(exp_avg_sq).zip(largest);
                    for ((p, ((mean, square), largest)), &g) in param.iter_mut().zip(state).zip(grad) {
                        rule.update(*p, g, mean, square);
                        // NaN stays NaN, as in PyTorch.
                        *largest = if *square > *largest || square.is_nan() { *square } else { *largest };
                        *p = rule.moved(*p, *mean, *largest);
                    }
                },
            );
        },
    );
}

/// An update rule for parameters, with its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `torch.optim.SGD`; with momentum, the state is the momentum buffer, which the first step overwrites.
    Sgd(SgdStep),
    /// `torch.optim.Adam` and `AdamW`; the state is both moments, with `amsgrad` also the largest second moment so far.
    Adam(AdamStep),
    /// `bitsandbytes.optim.AdamW8bit`; the state is both moments, and for moments in 8 bits the largest size in each block of both.
    AdamW8bit(AdamW8bitStep),
    /// `torch.optim.RMSprop`; the state is the mean square, then the momentum buffer and the mean, if they are used.
    RmsProp(RmsPropStep),
    /// `torch.optim.Adagrad`; the state is the sum of squares.
    Adagrad(AdagradStep),
    /// `torch.optim.Adafactor`; the state is the variances of rows and of columns, or of the elements of a vector.
    Adafactor(AdafactorStep),
    /// Lion; the state is the mean.
    Lion(LionStep),
    /// `torch.optim.Muon`; the state is the momentum buffer.
    Muon(MuonStep),
}

impl Rule {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Sgd(_) => "sgd",
            Rule::Adam(AdamStep { decay: Decay::InGradient, .. }) => "adam",
            Rule::Adam(AdamStep { decay: Decay::Decoupled, .. }) => "adamw",
            Rule::AdamW8bit(_) => "adamw8bit",
            Rule::RmsProp(_) => "rmsprop",
            Rule::Adagrad(_) => "adagrad",
            Rule::Adafactor(_) => "adafactor",
            Rule::Lion(_) => "lion",
            Rule::Muon(_) => "muon",
        }
    }

    /// The shapes of the state of a parameter of this shape.
    pub fn state_shapes(&self, shape: &[usize]) -> SmallVec<[SmallVec<[usize; 4]>; 3]> {
        let like = |count: usize| (0..count).map(|_| SmallVec::from_slice(shape)).collect();
        match self {
            Rule::Sgd(step) => like(usize::from(step.momentum != 0.0)),
            Rule::Adam(step) => like(2 + usize::from(step.amsgrad)),
            Rule::AdamW8bit(step) => step.state_shapes(shape),
            Rule::RmsProp(step) => like(1 + usize::from(step.momentum > 0.0) + usize::from(step.centered)),
            Rule::Adagrad(_) | Rule::Lion(_) | Rule::Muon(_) => like(1),
            Rule::Adafactor(_) => super::adafactor::state_shapes(shape),
        }
    }

    /// The type of a tensor of the state of a parameter of this shape; `None` for any floating-point type.
    pub fn state_dtype(&self, nth: usize, shape: &[usize]) -> Option<DType> {
        match self {
            Rule::AdamW8bit(step) => {
                Some(if nth < 2 && step.is_8bit(shape) { DType::U8 } else { DType::F32 })
            }
            _ => None,
        }
    }

    /// Floats of scratch memory for a parameter of this shape.
    pub fn scratch_len(&self, shape: &[usize]) -> usize {
        if matches!(self, Rule::Muon(_)) { super::muon::scratch_len(shape) } else { 0 }
    }

    /// Floating-point operations for a parameter of this shape.
    pub fn flops(&self, shape: &[usize]) -> u64 {
        let elements = shape.iter().product::<usize>() as u64;
        match self {
            Rule::Sgd(_) => 4 * elements,
            Rule::Muon(step) => super::muon::flops(step, shape),
            _ => 12 * elements,
        }
    }

    /// Runs step number `step` of one parameter, counted from 1. [`Rule::state_shapes`] describes the state, which is not in 8 bits.
    pub fn run<T: Float>(&self, step: u64, (param, grad): (&mut [T], &[T]), state: SmallVec<[&mut [T]; 3]>) {
        let mut state = state.into_iter();
        let mut next = || state.next().unwrap_or_else(|| unreachable!("inferred"));
        match self {
            Rule::Sgd(options) => {
                let options = SgdStep { first: step == 1, ..*options };
                let buffer = (options.momentum != 0.0).then(&mut next);
                sgd_step(&options, param, grad, buffer);
            }
            Rule::Adam(options) => {
                let (mean, square) = (next(), next());
                let largest = options.amsgrad.then(&mut next);
                adam_step(&AdamStep { step, ..*options }, param, grad, mean, square, largest);
            }
            Rule::AdamW8bit(options) => {
                super::adamw_8bit::small_step(options, step, (param, grad), next(), next());
            }
            Rule::RmsProp(options) => {
                let square = next();
                let buffer = (options.momentum > 0.0).then(&mut next);
                let mean = options.centered.then(&mut next);
                super::averages::rmsprop_step(options, (param, grad), square, buffer, mean);
            }
            Rule::Adagrad(options) => super::averages::adagrad_step(options, step, (param, grad), next()),
            Rule::Lion(options) => super::averages::lion_step(options, (param, grad), next()),
            Rule::Adafactor(_) | Rule::Muon(_) => unreachable!("rules of whole matrices"),
        }
    }

    /// The same for the rules that use the complete matrix.
    pub fn run_whole<T: Float>(
        &self,
        step: u64,
        shape: &[usize],
        (param, grad): (&mut [T], &[T]),
        state: SmallVec<[&mut [T]; 3]>,
        scratch: &mut [f32],
    ) {
        let mut state = state.into_iter();
        let mut next = || state.next().unwrap_or_else(|| unreachable!("inferred"));
        match self {
            Rule::Adafactor(options) => {
                let first = next();
                super::adafactor::adafactor_step(options, step, shape, (param, grad), first, state.next());
            }
            Rule::Muon(options) => super::muon::muon_step(options, shape, (param, grad), next(), scratch),
            _ => unreachable!("rules of one element"),
        }
    }

    /// Whether the rule reads elements in row-major order, so that a parameter in another order is copied for it.
    pub fn is_ordered(&self) -> bool {
        self.is_whole() || matches!(self, Rule::AdamW8bit(_))
    }

    /// Whether the rule uses the complete matrix.
    pub fn is_whole(&self) -> bool {
        matches!(self, Rule::Adafactor(_) | Rule::Muon(_))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
