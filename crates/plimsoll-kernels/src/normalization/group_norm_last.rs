//! Group normalization of channels-last images: elements are `[batch, inner, channels]`, and each group is a block of
//! every row.
//!
//! One thread processes an image; its passes go along rows, over blocks of channels (`channel_norm.rs`).

use super::channel_norm::{Channels, LANES, sums_of, write_lanes};
use super::group_norm::Groups;
use crate::number::Float;
use crate::parallel::{Pieces, for_each_cut};
use crate::simd::vectorize;

impl Groups {
    /// The rows of one image.
    fn rows(&self) -> Channels {
        Channels { outer: self.inner, channels: self.channels, inner: 1 }
    }

    /// The group of a channel.
    fn group(&self, channel: usize) -> usize {
        channel * self.groups / self.channels
    }

    /// Blocks of channels: the first channel of each, and their number.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let channels = self.channels;
        (0..channels).step_by(LANES).map(move |from| (from, LANES.min(channels - from)))
    }
}

/// The parameters of a block's channels, one for each lane.
#[inline(always)]
fn by_lane<T: Float>((from, count): (usize, usize), of: impl Fn(usize) -> T) -> [T; LANES] {
    std::array::from_fn(|lane| if lane < count { of(from + lane) } else { T::default() })
}

/// Like [`super::group_norm::group_norm`].
pub fn group_norm_last<T: Float>(
    size: &Groups,
    eps: f64,
    x: &[T],
    [weight, bias]: [Option<&[T]>; 2],
    out: &mut [T],
    [mean, rstd]: [&mut [T]; 2],
) {
    let (image_len, groups) = (size.channels * size.inner, size.groups);
    let n = (size.channels / groups * size.inner) as f64;
    let cut = (Pieces::of(out, image_len), Pieces::of(mean, groups), Pieces::of(rstd, groups));
    for_each_cut(size.batch, cut, |image, (out, mean, rstd)| {
        vectorize(
            #[inline(always)]
            || {
                let x = &x[image * image_len..][..image_len];
                mean.fill(T::default());
                each_sum(size, x, |_| 0.0, |group, [sum, _]| mean[group] += T::of(sum / n));
                rstd.fill(T::default());
                let level = &*mean;
                each_sum(
                    size,
                    x,
                    |group| level[group].wide(),
                    |group, [_, squares]| {
                        rstd[group] += T::of(squares / n);
                    },
                );
                rstd.iter_mut().for_each(|rstd| *rstd = T::of(1.0 / (rstd.wide() + eps).sqrt()));
                for block in size.blocks() {
                    let level = by_lane(block, |channel| mean[size.group(channel)]);
                    let scale = by_lane(block, |channel| rstd[size.group(channel)]);
                    let mul = by_lane(block, |channel| weight.map_or(T::of(1.0), |weight| weight[channel]));
                    let add = by_lane(block, |channel| bias.map_or(T::default(), |bias| bias[channel]));
                    let rows = out.chunks_exact_mut(size.channels).zip(x.chunks_exact(size.channels));
                    for (out, x) in rows {
                        write_lanes(
                            &mut out[block.0..block.0 + block.1],
                            [&x[block.0..]],
                            #[inline(always)]
                            |lane, [x]| (x - level[lane]) * scale[lane] * mul[lane] + add[lane],
                        );
                    }
                }
            },
        );
    });
}

/// For each channel, its group and the sums of its elements and of their squares, both relative to a value of the group.
#[inline(always)]
fn each_sum<T: Float>(
    size: &Groups,
    x: &[T],
    around: impl Fn(usize) -> f64,
    mut add: impl FnMut(usize, [f64; 2]),
) {
    for (from, count) in size.blocks() {
        let mut level = [0.0; LANES];
        level.iter_mut().take(count).enumerate().for_each(|(i, level)| *level = around(size.group(from + i)));
        let sums = sums_of(
            size.rows(),
            (from, count),
            [x],
            #[inline(always)]
            |lane, [x]| {
                let off = x.wide() - level[lane];
                [off, off * off]
            },
        );
        (0..count).for_each(|lane| add(size.group(from + lane), [sums[0][lane], sums[1][lane]]));
    }
}

/// Like [`super::group_norm::group_norm_backward`], for the gradient of `x`; the sums for the gradients of weight and bias
/// are written to `slopes` and `levels`, for each channel of each image.
#[allow(clippy::needless_range_loop, reason = "a lane is a channel's, too")]
pub fn group_norm_backward_last<T: Float>(
    size: &Groups,
    [x, grad]: [&[T]; 2],
    [mean, rstd]: [&[T]; 2],
    weight: Option<&[T]>,
    out: &mut [T],
    [slopes, levels]: [&mut [T]; 2],
) {
    let (image_len, channels, groups) = (size.channels * size.inner, size.channels, size.groups);
    let n = (channels / groups * size.inner) as f64;
    let cut = (Pieces::of(out, image_len), Pieces::of(slopes, channels), Pieces::of(levels, channels));
    for_each_cut(size.batch, cut, |image, (out, slopes, levels)| {
        vectorize(
            #[inline(always)]
            || {
                let [x, grad] = [x, grad].map(|tensor| &tensor[image * image_len..][..image_len]);
                let [mean, rstd] = [mean, rstd].map(|numbers| &numbers[image * groups..][..groups]);
                let scale = |channel: usize| weight.map_or(T::of(1.0), |weight| weight[channel]);
                for block in size.blocks() {
                    let level = by_lane(block, |channel| mean[size.group(channel)]);
                    let sums = sums_of(
                        size.rows(),
                        block,
                        [x, grad],
                        #[inline(always)]
                        |lane, [x, g]| [(g * (x - level[lane])).wide(), g.wide()],
                    );
                    for lane in 0..block.1 {
                        let channel = block.0 + lane;
                        slopes[channel] = T::of(sums[0][lane] * rstd[size.group(channel)].wide());
                        levels[channel] = T::of(sums[1][lane]);
                    }
                }
                // For each group, the mean of its gradients, and of their products with the normalized elements.
                let of_group = |sums: &[T], channel: usize| {
                    let (first, width) = (size.group(channel) * (channels / groups), channels / groups);
                    let products = (first..first + width).map(|i| (sums[i] * scale(i)).wide());
                    T::of(products.sum::<f64>() / n)
                };
                for block in size.blocks() {
                    let centre = by_lane(block, |channel| mean[size.group(channel)]);
                    let narrow = by_lane(block, |channel| rstd[size.group(channel)]);
                    let mul = by_lane(block, scale);
                    let slope = by_lane(block, |channel| of_group(slopes, channel));
                    let level = by_lane(block, |channel| of_group(levels, channel));
                    for (row, out) in out.chunks_exact_mut(channels).enumerate() {
                        let at = row * channels + block.0;
                        write_lanes(
                            &mut out[block.0..block.0 + block.1],
                            [&x[at..], &grad[at..]],
                            #[inline(always)]
                            |lane, [x, g]| {
                                let normal = (x - centre[lane]) * narrow[lane];
                                narrow[lane] * (g * mul[lane] - level[lane] - normal * slope[lane])
                            },
                        );
                    }
                }
            },
        );
    });
}
