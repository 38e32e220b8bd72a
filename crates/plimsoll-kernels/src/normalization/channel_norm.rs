//! Batch normalization: scales each channel to mean 0 and standard deviation 1, or by given statistics, optionally followed by
//! a ReLU.
//!
//! Elements are `[outer, channels, inner]`: for row-major images, `inner` is the number of pixels; for channels-last
//! images, it is 1. Sums are in `f64` and divided by channels, so that none depends on the number of threads. Every pass
//! follows the memory order: runs of one channel's pixels, or blocks of channels in one row after another.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece, for_each_pieces};
use crate::simd::vectorize;

/// The sizes of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    pub outer: usize,
    pub channels: usize,
    pub inner: usize,
}

/// The factor and the offset for the elements of each channel.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a, T> {
    pub mean: &'a [T],
    pub rstd: &'a [T],
    pub weight: Option<&'a [T]>,
    pub bias: Option<&'a [T]>,
    /// Whether negative results become 0.
    pub relu: bool,
}

impl<T: Float> Affine<'_, T> {
    #[inline(always)]
    fn of(&self, channel: usize) -> [T; 2] {
        let mul = self.rstd[channel] * self.weight.map_or(T::of(1.0), |weight| weight[channel]);
        [mul, self.bias.map_or(T::default(), |bias| bias[channel]) - self.mean[channel] * mul]
    }
}

/// The number of adjacent channels that are processed together, and the number of partial sums of a single channel.
pub(super) const LANES: usize = 16;

/// Two sums for each lane.
pub(super) type Sums = [[f64; LANES]; 2];

impl Channels {
    /// The number of channels that one thread sums.
    fn block(self) -> usize {
        if self.inner == 1 || self.outer * self.inner < 4096 { LANES } else { 1 }
    }
}

/// The element of each tensor at one position. This is a separate function because a closure in `array::from_fn` may remain a
/// call for each element.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several tensors are walked together")]
fn at<T: Copy + Default, const N: usize>(streams: &[&[T]; N], place: usize) -> [T; N] {
    let mut elements = [T::default(); N];
    for k in 0..N {
        elements[k] = streams[k][place];
    }
    elements
}

/// [`at`] for a position in a block of each tensor.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several tensors are walked together")]
fn at_lane<T: Copy + Default, const N: usize>(
    streams: &[&[[T; LANES]]; N],
    block: usize,
    lane: usize,
) -> [T; N] {
    let mut elements = [T::default(); N];
    for k in 0..N {
        elements[k] = streams[k][block][lane];
    }
    elements
}

/// Adds `f(lane, elements)`, for contiguous elements of several tensors, to the sums of their lanes.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several tensors are walked together")]
fn add_lanes<T: Float, const N: usize>(
    streams: [&[T]; N],
    sums: &mut Sums,
    f: impl Fn(usize, [T; N]) -> [f64; 2],
) {
    let (count, rest) = (streams[0].len() / LANES, streams[0].len() % LANES);
    let blocks = streams.map(|stream| &stream.as_chunks::<LANES>().0[..count]);
    for block in 0..count {
        for lane in 0..LANES {
            let [a, b] = f(lane, at_lane(&blocks, block, lane));
            sums[0][lane] += a;
            sums[1][lane] += b;
        }
    }
    for lane in 0..rest {
        let [a, b] = f(lane, at(&streams, count * LANES + lane));
        sums[0][lane] += a;
        sums[1][lane] += b;
    }
}

/// Writes `f(lane, elements)` for contiguous elements of several tensors.
#[inline(always)]
pub(super) fn write_lanes<T: Float, const N: usize>(
    out: &mut [T],
    streams: [&[T]; N],
    f: impl Fn(usize, [T; N]) -> T,
) {
    let streams = streams.map(|stream| &stream[..out.len()]);
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let (blocks, first) = (streams.map(|stream| stream.as_chunks::<LANES>().0), out.len() * LANES);
    for (block, out) in out.iter_mut().enumerate() {
        for (lane, out) in out.iter_mut().enumerate() {
            *out = f(lane, at_lane(&blocks, block, lane));
        }
    }
    for (lane, out) in out_rest.iter_mut().enumerate() {
        *out = f(lane, at(&streams, first + lane));
    }
}

/// The sums of `f(lane, elements)` over the elements of the channels from `from` onward. If channels are contiguous, there are
/// `count` channels, each in its lane; otherwise there is one channel, whose lanes must be added.
#[inline(always)]
pub(super) fn sums_of<T: Float, const N: usize>(
    size: Channels,
    (from, count): (usize, usize),
    streams: [&[T]; N],
    f: impl Fn(usize, [T; N]) -> [f64; 2],
) -> Sums {
    if size.inner == 1 && count == LANES {
        return sums_of_lanes(size, from, streams, f);
    }
    let mut sums = [[0.0; LANES]; 2];
    let len = if size.inner == 1 { count } else { size.inner };
    for row in 0..size.outer {
        let start = (row * size.channels + from) * size.inner;
        let here: [&[T]; N] = std::array::from_fn(|k| &streams[k][start..start + len]);
        add_lanes(here, &mut sums, &f);
    }
    sums
}

/// [`sums_of`] for as many contiguous channels as there are lanes: the sums stay in registers.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several tensors are walked together")]
fn sums_of_lanes<T: Float, const N: usize>(
    size: Channels,
    from: usize,
    streams: [&[T]; N],
    f: impl Fn(usize, [T; N]) -> [f64; 2],
) -> Sums {
    let mut sums = [[0.0; LANES]; 2];
    for row in 0..size.outer {
        let start = row * size.channels + from;
        let here: [&[T]; N] = std::array::from_fn(|k| &streams[k][start..start + LANES]);
        for lane in 0..LANES {
            let [a, b] = f(lane, at(&here, lane));
            sums[0][lane] += a;
            sums[1][lane] += b;
        }
    }
    sums
}

/// The total of a channel: its lane, or the sum of all lanes.
#[inline(always)]
fn total(size: Channels, sums: &[f64; LANES], lane: usize) -> f64 {
    if size.inner == 1 { sums[lane] } else { sums.iter().sum() }
}

/// The number of contiguous channels whose parameters are computed together.
const BLOCK: usize = 256;

/// Writes `f(elements of several tensors, parameters of their channel)`.
#[inline(always)]
fn write<T: Float, const N: usize, const M: usize>(
    size: Channels,
    out: &mut [T],
    streams: [&[T]; N],
    numbers: impl Fn(usize) -> [T; M] + Sync,
    f: impl Fn([T; N], [T; M]) -> T + Sync,
) {
    let run = if size.inner == 1 { size.channels } else { size.inner };
    if out.is_empty() {
        return;
    }
    for_each_piece(out, (PIECE / run).max(1) * run, |start, piece| {
        let streams = streams.map(|stream| &stream[start..start + piece.len()]);
        vectorize(
            #[inline(always)]
            || match size.inner {
                1 => write_rows(size.channels, piece, streams, &numbers, &f),
                _ => {
                    for (i, out) in piece.chunks_exact_mut(run).enumerate() {
                        let of_channel = numbers((start / run + i) % size.channels);
                        let here = streams.map(|stream| &stream[i * run..][..run]);
                        for (j, out) in out.iter_mut().enumerate() {
                            *out = f(at(&here, j), of_channel);
                        }
                    }
                }
            },
        );
    });
}

/// Writes rows whose elements belong to one channel each.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several tensors are walked together")]
fn write_rows<T: Float, const N: usize, const M: usize>(
    channels: usize,
    piece: &mut [T],
    streams: [&[T]; N],
    numbers: &impl Fn(usize) -> [T; M],
    f: &impl Fn([T; N], [T; M]) -> T,
) {
    for from in (0..channels).step_by(BLOCK) {
        let count = BLOCK.min(channels - from);
        let mut of_block = [[T::default(); BLOCK]; M];
        for i in 0..count {
            let here = numbers(from + i);
            (0..M).for_each(|k| of_block[k][i] = here[k]);
        }
        for (row, out) in piece.chunks_exact_mut(channels).enumerate() {
            let out = &mut out[from..from + count];
            let here = streams.map(|stream| &stream[row * channels + from..][..count]);
            let numbers: [&[T]; M] = std::array::from_fn(|k| &of_block[k][..count]);
            for i in 0..count {
                out[i] = f(at(&here, i), at(&numbers, i));
            }
        }
    }
}

/// The parameters of the channels of a run, one for each lane.
#[inline(always)]
fn by_lane<T: Float, const N: usize>(
    size: Channels,
    from: usize,
    len: usize,
    of: &impl Fn(usize) -> [T; N],
) -> [[T; LANES]; N] {
    let mut numbers = of(from).map(|number| [number; LANES]);
    if size.inner == 1 {
        for lane in 1..len.min(LANES) {
            let here = of(from + lane);
            numbers.iter_mut().zip(here).for_each(|(numbers, number)| numbers[lane] = number);
        }
    }
    numbers
}

/// Writes each channel's mean, variance, and reciprocal standard deviation.
pub fn statistics<T: Float>(size: Channels, eps: f64, x: &[T], [mean, variance, rstd]: [&mut [T]; 3]) {
    let n = (size.outer * size.inner) as f64;
    for_each_pieces([mean, variance, rstd], size.block(), |start, [mean, variance, rstd]| {
        vectorize(
            #[inline(always)]
            || {
                let step = if size.inner == 1 { mean.len() } else { 1 };
                for at in (0..mean.len()).step_by(step.max(1)) {
                    let block = (start + at, step);
                    let first =
                        |lane: usize| x.get((block.0 + lane) * size.inner).copied().unwrap_or_default();
                    // Squares are summed relative to a value of the channel, which is near enough to the mean to lose no
                    // precision in 64 bits. For 64-bit elements, they are summed relative to the mean.
                    let mut around: [f64; LANES] =
                        std::array::from_fn(|lane| if lane < step { first(lane).wide() } else { 0.0 });
                    if size.inner != 1 {
                        around = [around[0]; LANES];
                    }
                    if size_of::<T>() == 8 {
                        let level = around;
                        let sums = sums_of(
                            size,
                            block,
                            [x],
                            #[inline(always)]
                            |lane, [x]| [x.wide() - level[lane], 0.0],
                        );
                        for (lane, around) in around.iter_mut().enumerate() {
                            *around += total(size, &sums[0], lane) / n;
                        }
                    }
                    let level = around;
                    let sums = sums_of(
                        size,
                        block,
                        [x],
                        #[inline(always)]
                        |lane, [x]| {
                            let off = x.wide() - level[lane];
                            [off, off * off]
                        },
                    );
                    for lane in 0..step {
                        let off = total(size, &sums[0], lane) / n;
                        let squares = total(size, &sums[1], lane) / n - off * off;
                        mean[at + lane] = T::of(level[lane] + off);
                        // Rounding may make the variance negative. NaN stays NaN.
                        variance[at + lane] = T::of(if squares < 0.0 { 0.0 } else { squares });
                        rstd[at + lane] = T::of(1.0 / (variance[at + lane].wide() + eps).sqrt());
                    }
                }
            },
        );
    });
}

/// Writes the reciprocal standard deviation for each variance.
pub fn inverse_deviation<T: Float>(variance: &[T], eps: f64, rstd: &mut [T]) {
    for (variance, rstd) in variance.iter().zip(rstd) {
        *rstd = T::of(1.0 / (variance.wide() + eps).sqrt());
    }
}

/// `max(y, 0)`; NaN stays NaN.
#[inline(always)]
fn relu<T: Float>(y: T) -> T {
    if y <= T::default() { T::default() } else { y }
}

/// Writes `(x - mean) · rstd · weight + bias`, with a ReLU if `affine.relu`.
pub fn normalize<T: Float>(size: Channels, affine: &Affine<'_, T>, x: &[T], out: &mut [T]) {
    let numbers = |channel| affine.of(channel);
    match affine.relu {
        true => write(
            size,
            out,
            [x],
            numbers,
            #[inline(always)]
            |[x], [mul, add]| relu(x * mul + add),
        ),
        false => write(
            size,
            out,
            [x],
            numbers,
            #[inline(always)]
            |[x], [mul, add]| x * mul + add,
        ),
    }
}

/// [`normalize`] of `x`, plus `residual`, followed by a ReLU.
pub fn normalize_add<T: Float>(size: Channels, affine: &Affine<'_, T>, both: [&[T]; 2], out: &mut [T]) {
    write(
        size,
        out,
        both,
        |channel| affine.of(channel),
        #[inline(always)]
        |[x, residual], [mul, add]| relu(x * mul + add + residual),
    );
}

/// Writes the gradient where the output of the ReLU is positive, else 0.
pub fn cut_where_not_positive<T: Float>(relu: &[T], grad: &[T], out: &mut [T]) {
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
pub fn normalize_backward<T: Float>(
    size: Channels,
    affine: &Affine<'_, T>,
    batch: bool,
    [x, grad]: [&[T]; 2],
    out: &mut [T],
    [to_weight, to_bias]: [&mut [T]; 2],
) {
    for_each_pieces([&mut *to_weight, &mut *to_bias], size.block(), |start, [to_weight, to_bias]| {
        vectorize(
            #[inline(always)]
            || gradient_sums(size, affine, [x, grad], start, [to_weight, to_bias]),
        );
    });
    let n = T::of((size.outer * size.inner) as f64);
    let (to_weight, to_bias) = (&*to_weight, &*to_bias);
    // The gradient is `mul · g + level + slope · (x - mean)`.
    let numbers = |channel: usize| {
        let [mul, add] = affine.of(channel);
        let share = if batch { mul / n } else { T::default() };
        let slope = -(share * to_weight[channel] * affine.rstd[channel]);
        [mul, add, -(share * to_bias[channel]), slope, affine.mean[channel]]
    };
    match affine.relu {
        true => write(
            size,
            out,
            [x, grad],
            numbers,
            #[inline(always)]
            |[x, g], [mul, add, level, slope, mean]| {
                let g = if x * mul + add <= T::default() { T::default() } else { g };
                mul * g + (level + slope * (x - mean))
            },
        ),
        false => write(
            size,
            out,
            [x, grad],
            numbers,
            #[inline(always)]
            |[x, g], [mul, _, level, slope, mean]| mul * g + (level + slope * (x - mean)),
        ),
    }
}

/// For the channels from `start` onward, the sums of the gradient times the normalized elements, and of the gradient, over elements
/// that the ReLU of the forward pass did not set to 0.
#[inline(always)]
fn gradient_sums<T: Float>(
    size: Channels,
    affine: &Affine<'_, T>,
    streams: [&[T]; 2],
    start: usize,
    [to_weight, to_bias]: [&mut [T]; 2],
) {
    let step = if size.inner == 1 { to_weight.len() } else { 1 };
    for at in (0..to_weight.len()).step_by(step.max(1)) {
        let from = start + at;
        let [mul, add, mean] = by_lane(size, from, step, &|channel| {
            let [mul, add] = affine.of(channel);
            [mul, add, affine.mean[channel]]
        });
        let cuts = affine.relu;
        let sums = sums_of(
            size,
            (from, step),
            streams,
            #[inline(always)]
            |lane, [x, g]| {
                let cut = cuts && x * mul[lane] + add[lane] <= T::default();
                let g = if cut { T::default() } else { g };
                [(g * (x - mean[lane])).wide(), g.wide()]
            },
        );
        for lane in 0..step {
            to_weight[at + lane] = T::of(total(size, &sums[0], lane) * affine.rstd[from + lane].wide());
            to_bias[at + lane] = T::of(total(size, &sums[1], lane));
        }
    }
}
