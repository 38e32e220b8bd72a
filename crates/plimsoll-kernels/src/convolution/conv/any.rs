//! The three passes of a convolution as plain loops, for any type, layout, stride, dilation and number of groups.

use super::shape::{ConvShape, Format, Formats, Strides};
use crate::number::Number;
use crate::parallel::for_each_piece;
use crate::simd::vectorize;

/// Calls `body(window, position of the tap, count)` for each row of windows in which a tap is inside the image. The arguments
/// are the offsets of the first window and of its tap in the image, and the number of windows.
#[inline(always)]
fn for_each_row(
    s: &ConvShape,
    tap: [usize; 3],
    (outer, inner): (Strides, Strides),
    mut body: impl FnMut(usize, usize, usize),
) {
    let offset =
        |strides: [usize; 3], at: [usize; 3]| at.iter().zip(strides).map(|(i, n)| i * n).sum::<usize>();
    let across = s.inside(2, tap[2]);
    if across.is_empty() {
        return;
    }
    for z in s.inside(0, tap[0]) {
        for y in s.inside(1, tap[1]) {
            let x = across.start;
            let place = [s.seen(0, z, tap[0]), s.seen(1, y, tap[1]), s.seen(2, x, tap[2])];
            body(offset(outer.at, [z, y, x]), offset(inner.at, place), across.len());
        }
    }
}

/// `to[i * to_step] += from[i * from_step] * by` for `count` elements.
#[inline(always)]
fn add_scaled<T: Number>(
    (to, to_step): (&mut [T], usize),
    (from, from_step): (&[T], usize),
    by: T,
    count: usize,
) {
    if (to_step, from_step) == (1, 1) {
        let (to, from) = (&mut to[..count], &from[..count]);
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.times_plus(by, *to));
        return;
    }
    for i in 0..count {
        let to = &mut to[i * to_step];
        *to = from[i * from_step].times_plus(by, *to);
    }
}

/// The number of separate sums, so that several elements are multiplied at a time.
const LANES: usize = 16;

/// The sum of `a[i * a_step] * b[i * b_step]` for `count` elements.
#[inline(always)]
fn dot<T: Number>(
    (a, a_step): (&[T], usize),
    (b, b_step): (&[T], usize),
    count: usize,
    sums: &mut [T; LANES],
) {
    if (a_step, b_step) == (1, 1) {
        let (a, b) = (a[..count].chunks_exact(LANES), b[..count].chunks_exact(LANES));
        for ((sum, &a), &b) in sums.iter_mut().zip(a.remainder()).zip(b.remainder()) {
            *sum = a.times_plus(b, *sum);
        }
        for (a, b) in a.zip(b) {
            for i in 0..LANES {
                sums[i] = a[i].times_plus(b[i], sums[i]);
            }
        }
        return;
    }
    for i in 0..count {
        let sum = &mut sums[i % LANES];
        *sum = a[i * a_step].times_plus(b[i * b_step], *sum);
    }
}

/// All taps of a window, with their offsets in the weights.
fn taps(s: &ConvShape, weight: Strides) -> impl Iterator<Item = ([usize; 3], usize)> + use<> {
    let [_, height, width] = s.kernel;
    (0..s.taps()).map(move |tap| {
        let at = [tap / width / height, tap / width % height, tap % width];
        (at, at.iter().zip(weight.at).map(|(i, n)| i * n).sum())
    })
}

/// Runs `body(image, first channel, part)` on the parts of `images`, which are first set to the bias of their channels. A part
/// is a plane if planes are contiguous, else an image.
fn for_each_part<T: Number>(
    (format, channels, plane): (Format, usize, usize),
    bias: Option<&[T]>,
    images: &mut [T],
    body: impl Fn(usize, std::ops::Range<usize>, &mut [T]) + Sync,
) {
    let per_part = match format {
        Format::ChannelsFirst => 1,
        Format::ChannelsLast => channels,
    };
    for_each_piece(images, (per_part * plane).max(1), |start, part| {
        let (image, first) = (start / plane / channels, start / plane % channels);
        for pixel in part.chunks_exact_mut(per_part) {
            match bias {
                Some(bias) => pixel.copy_from_slice(&bias[first..first + per_part]),
                None => pixel.fill(T::default()),
            }
        }
        body(image, first..first + per_part, part);
    });
}

/// `input, weight[, bias] -> output`.
pub fn forward<T: Number>(
    s: &ConvShape,
    formats: Formats,
    (input, weight): (&[T], &[T]),
    bias: Option<&[T]>,
    output: &mut [T],
) {
    s.check(input.len(), weight.len(), output.len());
    let (inner, outer) = (s.input_strides(formats), s.output_strides(formats));
    let filters = s.weight_strides(formats);
    for_each_part((formats.output, s.out_channels, s.out_plane()), bias, output, |image, channels, part| {
        for (o, c) in channels.clone().flat_map(|o| (0..s.group_in()).map(move |c| (o, c))) {
            let part = &mut part[(o - channels.start) * outer.channel..];
            let from = image * inner.batch + (o / s.group_out() * s.group_in() + c) * inner.channel;
            let (x, w) = (&input[from..], &weight[o * filters.batch + c * filters.channel..]);
            for (tap, at) in taps(s, filters) {
                let w = w[at];
                let from_step = s.stride[2] * inner.at[2];
                vectorize(
                    #[inline(always)]
                    || {
                        for_each_row(s, tap, (outer, inner), |to, from, count| {
                            add_scaled((&mut part[to..], outer.at[2]), (&x[from..], from_step), w, count);
                        });
                    },
                );
            }
        }
    });
}

/// `grad of output, weight[, bias] -> grad of input`, plus a bias for each input channel.
pub fn backward_input<T: Number>(
    s: &ConvShape,
    formats: Formats,
    (grad, weight): (&[T], &[T]),
    bias: Option<&[T]>,
    input: &mut [T],
) {
    s.check(input.len(), weight.len(), grad.len());
    let (inner, outer) = (s.input_strides(formats), s.output_strides(formats));
    let filters = s.weight_strides(formats);
    for_each_part((formats.input, s.in_channels, s.in_plane()), bias, input, |image, channels, part| {
        for (c, o) in channels.clone().flat_map(|c| (0..s.group_out()).map(move |o| (c, o))) {
            let part = &mut part[(c - channels.start) * inner.channel..];
            let (o, c) = (c / s.group_in() * s.group_out() + o, c % s.group_in());
            let from = image * outer.batch + o * outer.channel;
            let w = &weight[o * filters.batch + c * filters.channel..];
            for (tap, at) in taps(s, filters) {
                let w = w[at];
                let (to_step, grad) = (s.stride[2] * inner.at[2], &grad[from..]);
                vectorize(
                    #[inline(always)]
                    || {
                        for_each_row(s, tap, (outer, inner), |window, to, count| {
                            add_scaled((&mut part[to..], to_step), (&grad[window..], outer.at[2]), w, count);
                        });
                    },
                );
            }
        }
    });
}

/// `input, grad of output -> grad of weight`.
pub fn backward_weight<T: Number>(
    s: &ConvShape,
    formats: Formats,
    (input, grad): (&[T], &[T]),
    weight: &mut [T],
) {
    s.check(input.len(), weight.len(), grad.len());
    let (inner, outer) = (s.input_strides(formats), s.output_strides(formats));
    let filters = s.weight_strides(formats);
    let filter = s.group_in() * s.taps();
    for_each_piece(weight, filter.max(1), |start, part| {
        let o = start / filter;
        for c in 0..s.group_in() {
            let channel = (o / s.group_out() * s.group_in() + c) * inner.channel;
            for (tap, at) in taps(s, filters) {
                let mut sums = [T::default(); LANES];
                let step = s.stride[2] * inner.at[2];
                for image in 0..s.batch {
                    let x = &input[image * inner.batch + channel..];
                    let grad = &grad[image * outer.batch + o * outer.channel..];
                    vectorize(
                        #[inline(always)]
                        || {
                            for_each_row(s, tap, (outer, inner), |window, place, count| {
                                dot((&x[place..], step), (&grad[window..], outer.at[2]), count, &mut sums);
                            });
                        },
                    );
                }
                let sum = sums.iter().fold(T::default(), |total, sum| sum.times_plus(T::ONE, total));
                part[c * filters.channel + at] = sum;
            }
        }
    });
}
