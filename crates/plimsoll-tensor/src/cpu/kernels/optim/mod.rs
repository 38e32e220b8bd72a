//! Optimizer steps in place, by PyTorch's formulas in their order.
//!
//! One pass over parameter, gradient and state, without temporaries. The gradient is read only: weight decay
//! is added on the fly. Here are SGD, Adam and AdamW, and [`Rule`], which is any of the rules; `averages.rs` has those
//! that divide by running averages, `adafactor.rs` and `muon.rs` those that look at a whole matrix, `clip.rs` the norm of
//! all gradients.

mod adafactor;
mod averages;
pub(crate) mod clip;
mod muon;
#[cfg(test)]
mod tests;

pub use adafactor::AdafactorStep;
pub use averages::{AdagradStep, LionStep, RmsPropStep};
pub use muon::{LrAdjustment, MuonStep};

use smallvec::SmallVec;

use super::parallel::{PIECE, for_each_piece, for_each_piece2, for_each_piece3};
use super::simd::vectorize;

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
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Whether the momentum buffer is new: it then becomes the gradient itself.
    pub first: bool,
}

/// How Adam's weight decay acts.
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
    /// How weight decay acts.
    pub decay: Decay,
    /// Number of this step, from 1.
    pub step: u64,
}

/// Moves `param` against `grad`. `momentum_buffer` is needed when momentum is not 0; on its `first` step it is
/// set to the gradient, whatever it held.
pub(crate) fn sgd_step(
    options: &SgdStep,
    param: &mut [f32],
    grad: &[f32],
    momentum_buffer: Option<&mut [f32]>,
) {
    assert_eq!(param.len(), grad.len(), "sgd: parameter against gradient");
    let [lr, momentum, undamped, decay] =
        [options.lr, options.momentum, 1.0 - options.dampening, options.weight_decay].map(|x| x as f32);
    let (nesterov, first) = (options.nesterov, options.first);
    let Some(buffer) = momentum_buffer else {
        assert!(momentum == 0.0, "sgd: momentum {momentum} without a buffer");
        return for_each_piece(param, PIECE, |at, param| {
            let grad = &grad[at..];
            vectorize(
                #[inline(always)]
                || {
                    for (p, g) in param.iter_mut().zip(grad) {
                        *p -= lr * (g + decay * *p);
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
                for ((p, buffer), g) in param.iter_mut().zip(buffer).zip(grad) {
                    let g = g + decay * *p;
                    *buffer = if first { g } else { momentum * *buffer + undamped * g };
                    *p -= lr * if nesterov { g + momentum * *buffer } else { *buffer };
                }
            },
        );
    });
}

/// Moves `param` against `grad` by its running mean over the root of its running mean square. `step` counts
/// from 1.
pub(crate) fn adam_step(
    options: &AdamStep,
    param: &mut [f32],
    grad: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
) {
    assert_eq!(param.len(), grad.len(), "adam: parameter against gradient");
    let step = options.step;
    assert!(step > 0, "adam: steps count from 1, not {step}");
    // PyTorch computes these scalars in double precision too.
    let root_correction2 = (1.0 - options.beta2.powf(step as f64)).sqrt();
    let step_size = options.lr / (1.0 - options.beta1.powf(step as f64));
    let (in_grad, shrink) = match options.decay {
        Decay::InGradient => (options.weight_decay, 1.0),
        Decay::Decoupled => (0.0, 1.0 - options.lr * options.weight_decay),
    };
    let [in_grad, shrink, step_size, root_correction2, eps] =
        [in_grad, shrink, step_size, root_correction2, options.eps].map(|x| x as f32);
    let [fresh1, beta2, fresh2] = [1.0 - options.beta1, options.beta2, 1.0 - options.beta2].map(|x| x as f32);
    for_each_piece3((param, exp_avg, exp_avg_sq), PIECE / 2, |at, param, exp_avg, exp_avg_sq| {
        let grad = &grad[at..];
        vectorize(
            #[inline(always)]
            || {
                for (((p, mean), square), g) in param.iter_mut().zip(exp_avg).zip(exp_avg_sq).zip(grad) {
                    let g = g + in_grad * *p;
                    *mean += fresh1 * (g - *mean);
                    *square = beta2 * *square + fresh2 * g * g;
                    let root = square.sqrt() / root_correction2 + eps;
                    *p = shrink * *p - step_size * *mean / root;
                }
            },
        );
    });
}

/// A rule by which parameters change, with its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `torch.optim.SGD`; with momentum, the state is the momentum buffer, which the first step overwrites.
    Sgd(SgdStep),
    /// `torch.optim.Adam` and `AdamW`; the state is both moments.
    Adam(AdamStep),
    /// `torch.optim.RMSprop`; the state is the mean square, then the momentum buffer and the mean, where they are used.
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
            Rule::RmsProp(_) => "rmsprop",
            Rule::Adagrad(_) => "adagrad",
            Rule::Adafactor(_) => "adafactor",
            Rule::Lion(_) => "lion",
            Rule::Muon(_) => "muon",
        }
    }

    /// The shapes of the state of a parameter of this shape.
    pub(crate) fn state_shapes(&self, shape: &[usize]) -> SmallVec<[SmallVec<[usize; 4]>; 3]> {
        let like = |count: usize| (0..count).map(|_| SmallVec::from_slice(shape)).collect();
        match self {
            Rule::Sgd(step) => like(usize::from(step.momentum != 0.0)),
            Rule::Adam(_) => like(2),
            Rule::RmsProp(step) => like(1 + usize::from(step.momentum > 0.0) + usize::from(step.centered)),
            Rule::Adagrad(_) | Rule::Lion(_) | Rule::Muon(_) => like(1),
            Rule::Adafactor(_) => adafactor::state_shapes(shape),
        }
    }

    /// Floats of scratch for a parameter of this shape.
    pub(crate) fn scratch_len(&self, shape: &[usize]) -> usize {
        if matches!(self, Rule::Muon(_)) { muon::scratch_len(shape) } else { 0 }
    }

    /// Floating-point operations for a parameter of this shape.
    pub(crate) fn flops(&self, shape: &[usize]) -> u64 {
        let elements = shape.iter().product::<usize>() as u64;
        match self {
            Rule::Sgd(_) => 4 * elements,
            Rule::Muon(step) => muon::flops(step, shape),
            _ => 12 * elements,
        }
    }

    /// Step number `step` of one parameter, counted from 1. The state is as [`Rule::state_shapes`] says.
    pub(crate) fn run(
        &self,
        step: u64,
        shape: &[usize],
        (param, grad): (&mut [f32], &[f32]),
        state: SmallVec<[&mut [f32]; 3]>,
        scratch: &mut [f32],
    ) {
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
                adam_step(&AdamStep { step, ..*options }, param, grad, mean, square);
            }
            Rule::RmsProp(options) => {
                let square = next();
                let buffer = (options.momentum > 0.0).then(&mut next);
                let mean = options.centered.then(&mut next);
                averages::rmsprop_step(options, (param, grad), square, buffer, mean);
            }
            Rule::Adagrad(options) => averages::adagrad_step(options, step, (param, grad), next()),
            Rule::Lion(options) => averages::lion_step(options, (param, grad), next()),
            Rule::Adafactor(options) => {
                let first = next();
                adafactor::adafactor_step(options, step, shape, (param, grad), first, state.next());
            }
            Rule::Muon(options) => muon::muon_step(options, shape, (param, grad), next(), scratch),
        }
    }
}
