//! Group normalization: scales each group of channels of an image to mean 0 and standard deviation 1.
//!
//! Elements are `[batch, channels, inner]`; a group has `channels / groups` adjacent channels. `group_norm_last.rs` is for
//! channels-last images.

use super::softmax::row_sum;
use crate::number::Float;
use crate::parallel::{Pieces, for_each_cut};
use crate::simd::vectorize;

/// The sizes of the elements and the number of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    pub batch: usize,
    pub channels: usize,
    pub inner: usize,
    pub groups: usize,
}

impl Groups {
    /// The number of channels in a group.
    fn width(&self) -> usize {
        self.channels / self.groups
    }

    /// The number of elements in a group.
    fn len(&self) -> usize {
        self.width() * self.inner
    }
}

/// Writes each normalized group, times its channels' weight plus bias, and its mean and reciprocal standard deviation.
pub fn group_norm<T: Float>(
    size: &Groups,
    eps: f64,
    x: &[T],
    [weight, bias]: [Option<&[T]>; 2],
    out: &mut [T],
    [mean, rstd]: [&mut [T]; 2],
) {
    if x.is_empty() {
        mean.fill(T::of(f64::NAN));
        rstd.fill(T::of(f64::NAN));
        return;
    }
    let len = size.len();
    let (groups, cut) = (mean.len(), (Pieces::of(out, len), Pieces::of(mean, 1), Pieces::of(rstd, 1)));
    for_each_cut(groups, cut, |row, (out, mean, rstd)| {
        vectorize(
            #[inline(always)]
            || {
                let x = &x[row * len..][..len];
                let level = row_sum(x) / T::of(len as f64);
                // `out` first contains the squares.
                out.iter_mut().zip(x).for_each(|(out, &x)| *out = (x - level) * (x - level));
                let scale = T::of(1.0 / (row_sum(out).wide() / len as f64 + eps).sqrt());
                (mean[0], rstd[0]) = (level, scale);
                for (i, (out, x)) in
                    out.chunks_exact_mut(size.inner).zip(x.chunks_exact(size.inner)).enumerate()
                {
                    let channel = row % size.groups * size.width() + i;
                    let mul = weight.map_or(T::of(1.0), |weight| weight[channel]);
                    let add = bias.map_or(T::default(), |bias| bias[channel]);
                    out.iter_mut().zip(x).for_each(|(out, &x)| *out = (x - level) * scale * mul + add);
                }
            },
        );
    });
}

/// Floats of scratch memory that [`group_norm_backward`] needs.
pub fn group_norm_backward_scratch_len(size: &Groups) -> usize {
    2 * size.batch * size.channels
}

/// Writes the gradients of `x`, of the weight and of the bias.
pub fn group_norm_backward<T: Float>(
    size: &Groups,
    [x, grad]: [&[T]; 2],
    [mean, rstd]: [&[T]; 2],
    weight: Option<&[T]>,
    out: &mut [T],
    [to_weight, to_bias]: [&mut [T]; 2],
    scratch: &mut [T],
) {
    to_weight.fill(T::default());
    to_bias.fill(T::default());
    if x.is_empty() {
        return;
    }
    let (len, width, inner) = (size.len(), size.width(), size.inner);
    // For each channel of each image, the sums of the gradient times the normalized elements, and of the gradient.
    let (slopes, levels) = scratch[..2 * size.batch * size.channels].split_at_mut(size.batch * size.channels);
    {
        let cut = (Pieces::of(slopes, width), Pieces::of(levels, width), Pieces::of(out, len));
        for_each_cut(size.batch * size.groups, cut, |row, (slopes, levels, out)| {
            let start = row * len;
            vectorize(
                #[inline(always)]
                || {
                    let (mean, rstd) = (mean[row], rstd[row]);
                    let (mut slope, mut level) = (0f64, 0f64);
                    let scale =
                        |i: usize| weight.map_or(T::of(1.0), |weight| weight[row % size.groups * width + i]);
                    for i in 0..width {
                        let range = start + i * inner..start + (i + 1) * inner;
                        let (x, grad) = (&x[range.clone()], &grad[range]);
                        let out = &mut out[i * inner..][..inner];
                        for ((out, &x), &g) in out.iter_mut().zip(x).zip(grad) {
                            *out = g * ((x - mean) * rstd);
                        }
                        (slopes[i], levels[i]) = (row_sum(out), row_sum(grad));
                        slope += (slopes[i] * scale(i)).wide();
                        level += (levels[i] * scale(i)).wide();
                    }
                    let (slope, level) = (T::of(slope / len as f64), T::of(level / len as f64));
                    for i in 0..width {
                        let range = start + i * inner..start + (i + 1) * inner;
                        let (x, grad, mul) = (&x[range.clone()], &grad[range], scale(i));
                        for ((out, &x), &g) in out[i * inner..][..inner].iter_mut().zip(x).zip(grad) {
                            *out = rstd * (g * mul - level - (x - mean) * rstd * slope);
                        }
                    }
                },
            );
        });
    }
    sum_images(size.channels, [slopes, levels], [to_weight, to_bias]);
}

/// Adds up the sums of all images.
pub fn sum_images<T: Float>(
    channels: usize,
    [slopes, levels]: [&[T]; 2],
    [to_weight, to_bias]: [&mut [T]; 2],
) {
    for (slopes, levels) in slopes.chunks_exact(channels).zip(levels.chunks_exact(channels)) {
        to_weight.iter_mut().zip(slopes).for_each(|(sum, &x)| *sum += x);
        to_bias.iter_mut().zip(levels).for_each(|(sum, &x)| *sum += x);
    }
}
