//! Batch normalization: each channel to mean 0 and deviation 1, or by given statistics; perhaps cut at 0.
//!
//! Elements are `[outer, channels, inner]`: an image row-major has its pixels as `inner`, channels-last has `inner` 1.
//! Sums are in `f64`, cut by channels, so that none depends on the number of threads.

use super::number::Float;
use super::parallel::{PIECE, for_each_piece, for_each_pieces};
use super::simd::vectorize;

/// Sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) outer: usize,
    pub(crate) channels: usize,
    pub(crate) inner: usize,
}

/// What an element is multiplied with and what is added, by channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine<'a, T> {
    pub(crate) mean: &'a [T],
    pub(crate) rstd: &'a [T],
    pub(crate) weight: Option<&'a [T]>,
    pub(crate) bias: Option<&'a [T]>,
    /// Whether negative results become 0.
    pub(crate) relu: bool,
}

impl<T: Float> Affine<'_, T> {
    #[inline(always)]
    fn of(&self, channel: usize) -> [T; 2] {
        let mul = self.rstd[channel] * self.weight.map_or(T::of(1.0), |weight| weight[channel]);
        [mul, self.bias.map_or(T::default(), |bias| bias[channel]) - self.mean[channel] * mul]
    }
}

/// Channels that are summed together where they are side by side.
const BLOCK: usize = 16;

/// Sums `f(channel, element's index)` over all elements of each channel, two sums at a time.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the number is a channel's, too")]
fn sums<T: Float>(size: Channels, out: [&mut [T]; 2], f: impl Fn(usize, usize) -> [T; 2] + Sync) {
    let Channels { outer, channels, inner } = size;
    for_each_pieces(out, BLOCK, |from, [first, second]| {
        let count = BLOCK.min(channels - from);
        let mut totals = [[0f64; BLOCK]; 2];
        vectorize(
            #[inline(always)]
            || {
                if inner == 1 {
                    for row in 0..outer {
                        for i in 0..count {
                            let [a, b] = f(from + i, row * channels + from + i);
                            totals[0][i] += a.wide();
                            totals[1][i] += b.wide();
                        }
                    }
                    return;
                }
                for (row, i) in (0..outer).flat_map(|row| (0..count).map(move |i| (row, i))) {
                    let start = (row * channels + from + i) * inner;
                    let mut lanes = [[0f64; 16]; 2];
                    for at in (0..inner).step_by(16) {
                        let width = 16.min(inner - at);
                        for lane in 0..width {
                            let [a, b] = f(from + i, start + at + lane);
                            lanes[0][lane] += a.wide();
                            lanes[1][lane] += b.wide();
                        }
                    }
                    for (total, lanes) in totals.iter_mut().zip(lanes) {
                        total[i] += lanes.iter().sum::<f64>();
                    }
                }
            },
        );
        for i in 0..count {
            (first[i], second[i]) = (T::of(totals[0][i]), T::of(totals[1][i]));
        }
    });
}

/// Runs `f(channel, first index, elements)` for runs of one channel, or `f(0, …)` for rows of all channels.
#[inline(always)]
fn for_each_run<T: Float>(size: Channels, out: &mut [T], f: impl Fn(usize, usize, &mut [T]) + Sync) {
    let run = if size.inner == 1 { size.channels } else { size.inner };
    if out.is_empty() {
        return;
    }
    for_each_piece(out, (PIECE / run).max(1) * run, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out) in piece.chunks_exact_mut(run).enumerate() {
                    let channel = if size.inner == 1 { 0 } else { (start / run + i) % size.channels };
                    f(channel, start + i * run, out);
                }
            },
        );
    });
}

/// Writes each channel's mean, variance, and one over its deviation.
pub(crate) fn statistics<T: Float>(size: Channels, eps: f64, x: &[T], [mean, variance, rstd]: [&mut [T]; 3]) {
    let n = T::of((size.outer * size.inner) as f64);
    sums(
        size,
        [mean, variance],
        #[inline(always)]
        |_, at| [x[at], T::default()],
    );
    mean.iter_mut().for_each(|mean| *mean = *mean / n);
    let level = &*mean;
    sums(
        size,
        [variance, rstd],
        #[inline(always)]
        |channel, at| [(x[at] - level[channel]) * (x[at] - level[channel]), T::default()],
    );
    for (variance, rstd) in variance.iter_mut().zip(rstd) {
        *variance = *variance / n;
        *rstd = T::of(1.0 / (variance.wide() + eps).sqrt());
    }
}

/// Writes one over the deviation of each variance.
pub(crate) fn inverse_deviation<T: Float>(variance: &[T], eps: f64, rstd: &mut [T]) {
    for (variance, rstd) in variance.iter().zip(rstd) {
        *rstd = T::of(1.0 / (variance.wide() + eps).sqrt());
    }
}

/// Writes `(x - mean) · rstd · weight + bias`, cut at 0 if so.
pub(crate) fn normalize<T: Float>(size: Channels, affine: &Affine<'_, T>, x: &[T], out: &mut [T]) {
    let value = |x: T, [mul, add]: [T; 2]| {
        let y = x * mul + add;
        if affine.relu && y <= T::default() { T::default() } else { y }
    };
    for_each_run(
        size,
        out,
        #[inline(always)]
        |channel, at, out| {
            let x = &x[at..][..out.len()];
            if size.inner == 1 {
                for (channel, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                    *out = value(x, affine.of(channel));
                }
            } else {
                let coefficients = affine.of(channel);
                out.iter_mut().zip(x).for_each(|(out, &x)| *out = value(x, coefficients));
            }
        },
    );
}

/// [`normalize`] of `x`, plus `residual`, cut at 0.
pub(crate) fn normalize_add<T: Float>(
    size: Channels,
    affine: &Affine<'_, T>,
    [x, residual]: [&[T]; 2],
    out: &mut [T],
) {
    let value = |x: T, residual: T, [mul, add]: [T; 2]| {
        let y = x * mul + add + residual;
        if y <= T::default() { T::default() } else { y }
    };
    for_each_run(
        size,
        out,
        #[inline(always)]
        |channel, at, out| {
            let pairs = x[at..][..out.len()].iter().zip(&residual[at..][..out.len()]);
            if size.inner == 1 {
                for (channel, (out, (&x, &residual))) in out.iter_mut().zip(pairs).enumerate() {
                    *out = value(x, residual, affine.of(channel));
                }
            } else {
                let coefficients = affine.of(channel);
                for (out, (&x, &residual)) in out.iter_mut().zip(pairs) {
                    *out = value(x, residual, coefficients);
                }
            }
        },
    );
}

/// Writes the gradient where the output of ReLU is positive, else 0.
pub(crate) fn cut_where_not_positive<T: Float>(relu: &[T], grad: &[T], out: &mut [T]) {
    for_each_piece(out, PIECE, |start, out| {
        vectorize(
            #[inline(always)]
            || {
                let pairs = relu[start..].iter().zip(&grad[start..]);
                for (out, (&y, &g)) in out.iter_mut().zip(pairs) {
                    *out = if y <= T::default() { T::default() } else { g };
                }
            },
        );
    });
}

/// Writes the gradients of `x`, of the weight and of the bias. `batch` says whether the statistics were those of `x`.
pub(crate) fn normalize_backward<T: Float>(
    size: Channels,
    affine: &Affine<'_, T>,
    batch: bool,
    [x, grad]: [&[T]; 2],
    out: &mut [T],
    [to_weight, to_bias]: [&mut [T]; 2],
) {
    // The gradient where the forward pass did not cut at 0.
    let passed = |at: usize, [mul, add]: [T; 2]| {
        if affine.relu && x[at] * mul + add <= T::default() { T::default() } else { grad[at] }
    };
    sums(
        size,
        [&mut *to_weight, &mut *to_bias],
        #[inline(always)]
        |channel, at| {
            let g = passed(at, affine.of(channel));
            [g * (x[at] - affine.mean[channel]) * affine.rstd[channel], g]
        },
    );
    let n = T::of((size.outer * size.inner) as f64);
    let (to_weight, to_bias) = (&*to_weight, &*to_bias);
    let slope = |at: usize, channel: usize, coefficients: [T; 2]| {
        let g = passed(at, coefficients);
        if !batch {
            return g * coefficients[0];
        }
        let normal = (x[at] - affine.mean[channel]) * affine.rstd[channel];
        coefficients[0] * (g - to_bias[channel] / n - normal * (to_weight[channel] / n))
    };
    for_each_run(
        size,
        out,
        #[inline(always)]
        |channel, at, out| {
            if size.inner == 1 {
                for (channel, out) in out.iter_mut().enumerate() {
                    *out = slope(at + channel, channel, affine.of(channel));
                }
            } else {
                let coefficients = affine.of(channel);
                out.iter_mut().enumerate().for_each(|(i, out)| *out = slope(at + i, channel, coefficients));
            }
        },
    );
}
