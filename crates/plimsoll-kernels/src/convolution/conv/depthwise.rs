//! Depthwise convolution of channels-last images: each channel has one filter, and neighbouring channels are the lanes of
//! registers. Weights are first rearranged into rows `[tap][channel]`. Row-major images, whose rows have one channel, are
//! in `depthwise_planes.rs`.

use super::shape::{ConvShape, Format, Formats};
use crate::parallel::{SCRATCH_WORKERS, for_each_piece};
use crate::simd::vectorize;
use crate::transpose::transpose;

/// Whether these kernels support the shape and the layouts.
pub(super) fn suits(s: &ConvShape, formats: Formats) -> bool {
    let last = Format::ChannelsLast;
    s.groups > 1 && [s.group_in(), s.group_out()] == [1, 1] && formats.input == last && formats.output == last
}

/// Floats of scratch memory that [`forward`] and [`backward_input`] need.
pub(super) fn scratch_len(s: &ConvShape) -> usize {
    s.weight_len()
}

/// Floats of scratch memory that [`backward_weight`] needs.
pub(super) fn weight_scratch_len(s: &ConvShape) -> usize {
    SCRATCH_WORKERS * s.weight_len()
}

/// The position of a tap in each dimension.
fn place(s: &ConvShape, tap: usize) -> [usize; 3] {
    let [_, height, width] = s.kernel;
    [tap / width / height, tap / width % height, tap % width]
}

/// `to += from * weight`, channel by channel.
#[inline(always)]
fn add_product(to: &mut [f32], from: &[f32], weight: &[f32]) {
    for ((to, from), weight) in to.iter_mut().zip(from).zip(weight) {
        *to += from * weight;
    }
}

fn start(pixels: &mut [f32], bias: Option<&[f32]>, channels: usize) {
    match bias {
        None => pixels.fill(0.0),
        Some(bias) => pixels.chunks_exact_mut(channels).for_each(|pixel| pixel.copy_from_slice(bias)),
    }
}

/// The weights, rearranged so that those of one tap are contiguous.
fn by_taps<'a>(s: &ConvShape, weight: &[f32], scratch: &'a mut [f32]) -> &'a [f32] {
    let (channels, taps) = (s.groups, s.taps());
    let weights = &mut scratch[..s.weight_len()];
    transpose((channels, taps), (weight, taps), (weights, channels));
    weights
}

/// `input, weight[, bias] -> output`.
pub(super) fn forward(
    s: &ConvShape,
    (input, weight): (&[f32], &[f32]),
    bias: Option<&[f32]>,
    output: &mut [f32],
    scratch: &mut [f32],
) {
    let (channels, weights) = (s.groups, by_taps(s, weight, scratch));
    let ([in_d, in_h, in_w], [out_d, out_h, out_w]) = (s.input, s.output);
    for_each_piece(output, (out_w * channels).max(1), |at, row| {
        let at = at / row.len();
        let (image, z, y) = (at / out_h / out_d, at / out_h % out_d, at % out_h);
        start(row, bias, channels);
        vectorize(
            #[inline(always)]
            || {
                for (tap, weight) in weights.chunks_exact(channels).enumerate() {
                    let [tz, ty, tx] = place(s, tap);
                    if !s.inside(0, tz).contains(&z) || !s.inside(1, ty).contains(&y) {
                        continue;
                    }
                    let from = (image * in_d + s.seen(0, z, tz)) * in_h + s.seen(1, y, ty);
                    let from = &input[from * in_w * channels..][..in_w * channels];
                    for x in s.inside(2, tx) {
                        let pixel = &from[s.seen(2, x, tx) * channels..][..channels];
                        add_product(&mut row[x * channels..][..channels], pixel, weight);
                    }
                }
            },
        );
    });
}

/// `grad of output, weight[, bias] -> grad of input`, plus a bias for each channel.
pub(super) fn backward_input(
    s: &ConvShape,
    (grad, weight): (&[f32], &[f32]),
    bias: Option<&[f32]>,
    input: &mut [f32],
    scratch: &mut [f32],
) {
    let (channels, weights) = (s.groups, by_taps(s, weight, scratch));
    let ([in_d, in_h, in_w], [out_d, out_h, out_w]) = (s.input, s.output);
    // The window in which a position is at a given tap.
    let window = |dim: usize, at: usize, tap: usize| {
        let from = (at + s.padding[dim]).checked_sub(tap * s.dilation[dim])?;
        let window = from / s.stride[dim];
        (from % s.stride[dim] == 0 && window < s.output[dim]).then_some(window)
    };
    for_each_piece(input, (in_w * channels).max(1), |at, row| {
        let at = at / row.len();
        let (image, z, y) = (at / in_h / in_d, at / in_h % in_d, at % in_h);
        start(row, bias, channels);
        vectorize(
            #[inline(always)]
            || {
                for (tap, weight) in weights.chunks_exact(channels).enumerate() {
                    let [tz, ty, tx] = place(s, tap);
                    let Some((z, y)) = window(0, z, tz).zip(window(1, y, ty)) else { continue };
                    let from = &grad[((image * out_d + z) * out_h + y) * out_w * channels..];
                    for x in s.inside(2, tx) {
                        let to = &mut row[s.seen(2, x, tx) * channels..][..channels];
                        add_product(to, &from[x * channels..][..channels], weight);
                    }
                }
            },
        );
    });
}

/// `input, grad of output -> grad of weight`. Rows are summed in groups, whose sums are added in order.
pub(super) fn backward_weight(
    s: &ConvShape,
    (input, grad): (&[f32], &[f32]),
    weight: &mut [f32],
    scratch: &mut [f32],
) {
    let (channels, taps) = (s.groups, s.taps());
    let parts = &mut scratch[..weight_scratch_len(s)];
    let ([in_d, in_h, in_w], [out_d, out_h, out_w]) = (s.input, s.output);
    let rows = s.batch * out_d * out_h;
    let per_group = rows.div_ceil(SCRATCH_WORKERS);
    for_each_piece(parts, taps * channels, |at, sums| {
        let group = at / sums.len();
        sums.fill(0.0);
        vectorize(
            #[inline(always)]
            || {
                for row in (group * per_group).min(rows)..((group + 1) * per_group).min(rows) {
                    let (image, z, y) = (row / out_h / out_d, row / out_h % out_d, row % out_h);
                    let grad = &grad[row * out_w * channels..][..out_w * channels];
                    for (tap, sums) in sums.chunks_exact_mut(channels).enumerate() {
                        let [tz, ty, tx] = place(s, tap);
                        if !s.inside(0, tz).contains(&z) || !s.inside(1, ty).contains(&y) {
                            continue;
                        }
                        let from = (image * in_d + s.seen(0, z, tz)) * in_h + s.seen(1, y, ty);
                        let from = &input[from * in_w * channels..][..in_w * channels];
                        for x in s.inside(2, tx) {
                            let pixel = &from[s.seen(2, x, tx) * channels..][..channels];
                            add_product(sums, pixel, &grad[x * channels..][..channels]);
                        }
                    }
                }
            },
        );
    });
    let (first, others) = parts.split_at_mut(taps * channels);
    for other in others.chunks_exact(taps * channels) {
        first.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
    }
    transpose((taps, channels), (first, channels), (weight, taps));
}
