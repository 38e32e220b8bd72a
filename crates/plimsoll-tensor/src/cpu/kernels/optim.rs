//! Optimizer steps in place: SGD with momentum, Adam and AdamW, by PyTorch's formulas in their order.
//!
//! One pass over parameter, gradient and state, without temporaries. The gradient is read only: weight decay
//! is added on the fly.

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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const LENS: [usize; 3] = [1, 37, 100_003];

    #[test]
    fn three_sgd_steps_match_the_formula_in_double_precision() {
        for (momentum, dampening, weight_decay, nesterov) in [
            (0.0, 0.0, 0.0, false),
            (0.0, 0.0, 0.1, false),
            (0.9, 0.0, 0.01, false),
            (0.9, 0.3, 0.0, false),
            (0.9, 0.0, 0.01, true),
        ] {
            let options = SgdStep { lr: 0.1, momentum, dampening, weight_decay, nesterov, first: false };
            for len in LENS {
                let start = random(len, 1);
                let mut reference: Vec<[f64; 2]> = start.iter().map(|&p| [f64::from(p), 0.0]).collect();
                for step in 0..3 {
                    for ([p, buffer], g) in reference.iter_mut().zip(random(len, 5 + step)) {
                        let g = f64::from(g) + weight_decay * *p;
                        *buffer = if step == 0 { g } else { momentum * *buffer + (1.0 - dampening) * g };
                        *p -= 0.1
                            * if nesterov {
                                g + momentum * *buffer
                            } else if momentum == 0.0 {
                                g
                            } else {
                                *buffer
                            };
                    }
                }
                let found = on_any_threads(|| {
                    let (mut param, mut buffer) = (start.clone(), vec![f32::NAN; len]);
                    for step in 0..3 {
                        let buffer = (momentum != 0.0).then_some(&mut buffer[..]);
                        let options = SgdStep { first: step == 0, ..options };
                        sgd_step(&options, &mut param, &random(len, 5 + step), buffer);
                    }
                    param
                });
                assert_close(&found, &reference.iter().map(|r| r[0] as f32).collect::<Vec<_>>(), 1e-6);
            }
        }
    }

    #[test]
    fn three_adam_steps_match_the_formula_in_double_precision() {
        for decay in [Decay::InGradient, Decay::Decoupled] {
            let options =
                AdamStep { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, decay, step: 0 };
            for len in LENS {
                let start = random(len, 1);
                let mut reference: Vec<[f64; 3]> = start.iter().map(|&p| [f64::from(p), 0.0, 0.0]).collect();
                for step in 1..=3 {
                    for ([p, m, v], g) in reference.iter_mut().zip(random(len, 5 + step)) {
                        let mut g = f64::from(g);
                        match decay {
                            Decay::InGradient => g += 0.1 * *p,
                            Decay::Decoupled => *p *= 1.0 - 0.1 * 0.1,
                        }
                        *m = 0.9 * *m + 0.1 * g;
                        *v = 0.999 * *v + 0.001 * g * g;
                        let root = (*v / (1.0 - 0.999f64.powf(step as f64))).sqrt() + 1e-8;
                        *p -= 0.1 * (*m / (1.0 - 0.9f64.powf(step as f64))) / root;
                    }
                }
                let found = on_any_threads(|| {
                    let (mut param, mut m, mut v) = (start.clone(), vec![0.0; len], vec![0.0; len]);
                    for step in 1..=3 {
                        adam_step(
                            &AdamStep { step, ..options },
                            &mut param,
                            &random(len, 5 + step),
                            &mut m,
                            &mut v,
                        );
                    }
                    param
                });
                assert_close(&found, &reference.iter().map(|r| r[0] as f32).collect::<Vec<_>>(), 2e-5);
            }
        }
    }
}
