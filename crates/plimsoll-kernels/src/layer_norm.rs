//! Layer normalization of rows, and its gradients.
//!
//! Sums over a row are in `f64`, as those of softmax. The weight's gradient is cut by columns, so that no sum
//! depends on the number of threads.

use super::number::Float;
use super::parallel::{PIECE, for_each_piece, for_each_piece2};
use super::simd::vectorize;
use super::softmax::row_sum;

/// Writes each row's mean, one over its deviation, and the row normalized, times `scale[0]` plus `scale[1]`.
pub fn layer_norm<T: Float>(
    eps: f64,
    x: &[T],
    scale: [Option<&[T]>; 2],
    out: &mut [T],
    mean: &mut [T],
    rstd: &mut [T],
) {
    assert_eq!(x.len(), out.len(), "layer_norm: x against out");
    if x.is_empty() {
        mean.fill(T::default());
        rstd.fill(T::of(f64::NAN));
        return;
    }
    let cols = x.len() / mean.len();
    for_each_piece2((&mut *mean, &mut *rstd), (PIECE / cols).max(1), |start, mean, rstd| {
        vectorize(
            #[inline(always)]
            || {
                let rows = x[start * cols..].chunks_exact(cols);
                for ((mean, rstd), row) in mean.iter_mut().zip(rstd).zip(rows) {
                    *mean = row_sum(row) / T::of(cols as f64);
                    *rstd = T::of(1.0 / (squares(row, *mean) / cols as f64 + eps).sqrt());
                }
            },
        );
    });
    let (mean, rstd) = (&*mean, &*rstd);
    for_each_piece(out, (PIECE / cols).max(1) * cols, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out) in piece.chunks_exact_mut(cols).enumerate() {
                    let row = start / cols + i;
                    let (mean, rstd) = (mean[row], rstd[row]);
                    for (out, &x) in out.iter_mut().zip(&x[row * cols..]) {
                        *out = (x - mean) * rstd;
                    }
                    if let Some(weight) = scale[0] {
                        out.iter_mut().zip(weight).for_each(|(out, &w)| *out *= w);
                    }
                    if let Some(bias) = scale[1] {
                        out.iter_mut().zip(bias).for_each(|(out, &b)| *out += b);
                    }
                }
            },
        );
    });
}

/// The sum of squared distances from `mean`, in 16 lanes of `f64`.
#[inline(always)]
pub(super) fn squares<T: Float>(row: &[T], mean: T) -> f64 {
    let (blocks, rest) = row.as_chunks::<16>();
    let square = |x: T| ((x - mean) * (x - mean)).wide();
    let mut lanes = [0f64; 16];
    for block in blocks {
        for i in 0..16 {
            lanes[i] += square(block[i]);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&x| square(x)).sum::<f64>()
}

/// Writes the gradient of `x`: `rstd · (g - mean(g) - x̂ · mean(g · x̂))`, with `g` the gradient times `weight`
/// and `x̂` the normalized row.
pub fn layer_norm_backward<T: Float>(
    cols: usize,
    grad: &[T],
    x: &[T],
    [mean, rstd]: [&[T]; 2],
    weight: Option<&[T]>,
    out: &mut [T],
) {
    assert_eq!([grad.len(), out.len()], [x.len(); 2], "layer_norm_backward: grad and out against x");
    let cols = cols.max(1);
    for_each_piece(out, (PIECE / cols).max(1) * cols, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out) in piece.chunks_exact_mut(cols).enumerate() {
                    let row = start / cols + i;
                    let (mean, rstd) = (mean[row], rstd[row]);
                    let (x, grad) = (&x[row * cols..][..cols], &grad[row * cols..][..cols]);
                    // `out` holds `g · x̂` first, for its mean, then `g`.
                    let set = |out: &mut [T], times: bool| {
                        for (i, out) in out.iter_mut().enumerate() {
                            let g = grad[i] * weight.map_or(T::of(1.0), |weight| weight[i]);
                            *out = if times { g * ((x[i] - mean) * rstd) } else { g };
                        }
                    };
                    set(out, true);
                    let along = row_sum(out) / T::of(cols as f64);
                    set(out, false);
                    let level = row_sum(out) / T::of(cols as f64);
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = rstd * (*out - level - (x - mean) * rstd * along);
                    }
                }
            },
        );
    });
}

/// Columns that are summed together.
const COLUMNS: usize = 64;

/// Writes the gradient of the weight: the sum over rows of `grad · x̂`.
pub fn layer_norm_backward_scale<T: Float>(grad: &[T], x: &[T], [mean, rstd]: [&[T]; 2], out: &mut [T]) {
    assert_eq!(grad.len(), x.len(), "layer_norm_backward_scale: grad against x");
    let cols = out.len();
    for_each_piece(out, COLUMNS, |start, out| {
        vectorize(
            #[inline(always)]
            || {
                let mut sums = [0f64; COLUMNS];
                for (row, (&mean, &rstd)) in mean.iter().zip(rstd).enumerate() {
                    let at = row * cols + start;
                    for ((sum, &x), &g) in sums.iter_mut().zip(&x[at..][..out.len()]).zip(&grad[at..]) {
                        *sum += (g * ((x - mean) * rstd)).wide();
                    }
                }
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::of(sum));
            },
        );
    });
}
