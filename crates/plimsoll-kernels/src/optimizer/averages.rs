//! Rules that divide by running averages, or use the sign of one: RMSprop, Adagrad, Lion.

use super::super::number::Float;
use super::super::parallel::{PIECE, for_each_piece2, for_each_pieces};
use super::super::simd::vectorize;
use super::direction::sign;

/// One step of RMSprop on one parameter, as `torch.optim.RMSprop` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean square.
    pub alpha: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Momentum factor; 0 keeps no buffer.
    pub momentum: f64,
    /// Whether the square of the mean is subtracted from the mean square.
    pub centered: bool,
    /// Whether to step along the gradient instead of against it.
    pub maximize: bool,
}

/// One step of Adagrad on one parameter, as `torch.optim.Adagrad` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradStep {
    /// Learning rate.
    pub lr: f64,
    /// The decay of the learning rate over the steps.
    pub lr_decay: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Whether to step along the gradient instead of against it.
    pub maximize: bool,
}

/// One step of Lion on one parameter (Chen and others, 2023, algorithm 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionStep {
    /// Learning rate.
    pub lr: f64,
    /// Weight of the mean in the update.
    pub beta1: f64,
    /// Decay of the mean.
    pub beta2: f64,
    /// Decay of the parameter itself.
    pub weight_decay: f64,
}

/// The elementwise rule of RMSprop.
#[derive(Clone, Copy)]
struct Rms<T> {
    alpha: T,
    fresh: T,
    eps: T,
    decay: T,
    sign: T,
}

impl<T: Float> Rms<T> {
    /// The gradient divided by the root.
    #[inline(always)]
    fn scaled(self, p: T, g: T, square: &mut T, mean: Option<&mut T>) -> T {
        let g = self.sign * g + self.decay * p;
        *square = self.alpha * *square + self.fresh * g * g;
        let variance = match mean {
            Some(mean) => {
                *mean = *mean + self.fresh * (g - *mean);
                *square - *mean * *mean
            }
            None => *square,
        };
        g / (variance.sqrt() + self.eps)
    }
}

/// Moves `param` against `grad` divided by the root of its running mean square, or of its running variance with
/// `grad_avg`.
pub(super) fn rmsprop_step<T: Float>(
    options: &RmsPropStep,
    (param, grad): (&mut [T], &[T]),
    square_avg: &mut [T],
    buffer: Option<&mut [T]>,
    grad_avg: Option<&mut [T]>,
) {
    assert_eq!(param.len(), grad.len(), "rmsprop: parameter and gradient differ in length");
    let [lr, alpha, fresh, eps, decay, momentum] =
        [options.lr, options.alpha, 1.0 - options.alpha, options.eps, options.weight_decay, options.momentum]
            .map(T::of);
    let rule = Rms { alpha, fresh, eps, decay, sign: sign(options.maximize) };
    // Each optional part of the state is a separate case, so that all are vectorised.
    match (buffer, grad_avg) {
        (None, None) => for_each_pieces([param, square_avg], PIECE, |at, [param, square]| {
            let grad = &grad[at..];
            vectorize(
                #[inline(always)]
                || {
                    for ((p, square), g) in param.iter_mut().zip(square).zip(grad) {
                        *p = *p - lr * rule.scaled(*p, *g, square, None);
                    }
                },
            );
        }),
        (Some(buffer), None) => {
            for_each_pieces([param, square_avg, buffer], PIECE / 2, |at, [param, square, buffer]| {
                let grad = &grad[at..];
                vectorize(
                    #[inline(always)]
                    || {
                        for (((p, square), buffer), g) in param.iter_mut().zip(square).zip(buffer).zip(grad) {
                            *buffer = momentum * *buffer + rule.scaled(*p, *g, square, None);
                            *p = *p - lr * *buffer;
                        }
                    },
                );
            });
        }
        (None, Some(mean)) => {
            for_each_pieces([param, square_avg, mean], PIECE / 2, |at, [param, square, mean]| {
                let grad = &grad[at..];
                vectorize(
                    #[inline(always)]
                    || {
                        for (((p, square), mean), g) in param.iter_mut().zip(square).zip(mean).zip(grad) {
                            *p = *p - lr * rule.scaled(*p, *g, square, Some(mean));
                        }
                    },
                );
            });
        }
        (Some(buffer), Some(mean)) => for_each_pieces(
            [param, square_avg, buffer, mean],
            PIECE / 2,
            |at, [param, square, buffer, mean]| {
                let grad = &grad[at..];
                vectorize(
                    #[inline(always)]
                    || {
                        let both = buffer.iter_mut().zip(mean);
                        for (((p, square), (buffer, mean)), g) in
                            param.iter_mut().zip(square).zip(both).zip(grad)
                        {
                            *buffer = momentum * *buffer + rule.scaled(*p, *g, square, Some(mean));
                            *p = *p - lr * *buffer;
                        }
                    },
                );
            },
        ),
    }
}

/// Moves `param` against `grad` divided by the root of the sum of all its squares.
pub(super) fn adagrad_step<T: Float>(
    options: &AdagradStep,
    step: u64,
    (param, grad): (&mut [T], &[T]),
    sum: &mut [T],
) {
    assert_eq!(param.len(), grad.len(), "adagrad: parameter and gradient differ in length");
    let lr = options.lr / (1.0 + (step as f64 - 1.0) * options.lr_decay);
    let [lr, eps, decay] = [lr, options.eps, options.weight_decay].map(T::of);
    let sign: T = sign(options.maximize);
    for_each_piece2((param, sum), PIECE, |at, param, sum| {
        let grad = &grad[at..];
        vectorize(
            #[inline(always)]
            || {
                for ((p, sum), &g) in param.iter_mut().zip(sum).zip(grad) {
                    let g = sign * g + decay * *p;
                    *sum += g * g;
                    *p = *p - lr * (g / (sum.sqrt() + eps));
                }
            },
        );
    });
}

/// Moves `param` by one learning rate against the sign of a running mean of `grad`.
pub(super) fn lion_step<T: Float>(options: &LionStep, (param, grad): (&mut [T], &[T]), mean: &mut [T]) {
    assert_eq!(param.len(), grad.len(), "lion: parameter and gradient differ in length");
    let shrink = T::of(1.0 - options.lr * options.weight_decay);
    let [lr, beta1, fresh1, beta2, fresh2] =
        [options.lr, options.beta1, 1.0 - options.beta1, options.beta2, 1.0 - options.beta2].map(T::of);
    let (zero, one) = (T::of(0.0), T::of(1.0));
    for_each_piece2((param, mean), PIECE, |at, param, mean| {
        let grad = &grad[at..];
        vectorize(
            #[inline(always)]
            || {
                for ((p, mean), &g) in param.iter_mut().zip(mean).zip(grad) {
                    let update = beta1 * *mean + fresh1 * g;
                    // The sign, which is 0 for 0, as in PyTorch; `signum` never returns 0.
                    let sign = if update > zero {
                        one
                    } else if update < zero {
                        -one
                    } else {
                        zero
                    };
                    *p = shrink * *p - lr * sign;
                    *mean = beta2 * *mean + fresh2 * g;
                }
            },
        );
    });
}
