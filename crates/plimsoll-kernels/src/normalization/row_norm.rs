//! Normalization of rows by root mean square or by mean and deviation, optionally after adding a residual, whose sum is also
//! written.
//!
//! Sums over a row are in `f64`, like those of softmax. The weight's gradient is divided by columns, so that no sum depends
//! on the number of threads.

use super::softmax::row_sum;
use crate::number::Float;
use crate::parallel::{PIECE, Pieces, for_each_cut, for_each_piece};
use crate::simd::vectorize;

/// The value that is subtracted from a row, and the divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Center {
    /// Nothing is subtracted; divides by the root mean square.
    Zero,
    /// The mean is subtracted; divides by the standard deviation.
    Mean,
}

/// The statistics of each row: its reciprocal deviation and, if it is subtracted, its mean.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    pub cols: usize,
    pub rstd: &'a [T],
    pub mean: Option<&'a [T]>,
}

impl<T: Float> Rows<'_, T> {
    #[inline(always)]
    fn mean(&self, row: usize) -> T {
        self.mean.map_or(T::default(), |mean| mean[row])
    }
}

/// The residual that is added to rows before they are normalized, and the rounding function if the sum is stored in fewer
/// bits.
pub type Residual<'a, T> = (&'a [T], Option<fn(T) -> T>);

/// Writes each normalized row of `x` (or of `x` plus a residual, which is written to `sum`), times `scale[0]` plus
/// `scale[1]`, and the statistics of the row.
pub fn row_norm<T: Float>(
    (center, eps): (Center, f64),
    (x, residual): (&[T], Option<Residual<'_, T>>),
    scale: [Option<&[T]>; 2],
    (out, sum): (&mut [T], Option<&mut [T]>),
    (rstd, mean): (&mut [T], Option<&mut [T]>),
) {
    assert_eq!(x.len(), out.len(), "row_norm: x and out differ in length");
    let mut none: [&mut [T]; 2] = [&mut [], &mut []];
    let [no_sum, no_mean] = &mut none;
    let (sum, mean) = (sum.unwrap_or(no_sum), mean.unwrap_or(no_mean));
    if x.is_empty() {
        rstd.fill(T::of(f64::NAN));
        mean.fill(T::of(f64::NAN));
        return;
    }
    let cols = x.len() / rstd.len();
    let rows = (PIECE / cols).max(1);
    let chunks = rstd.len().div_ceil(rows);
    let of_rows = (Pieces::of(rstd, rows), Pieces::of(mean, rows));
    let of_elements = (Pieces::of(out, rows * cols), Pieces::of(sum, rows * cols));
    for_each_cut(chunks, (of_rows, of_elements), |chunk, ((rstd, mean), (out, sum))| {
        vectorize(
            #[inline(always)]
            || {
                for (i, (out, rstd)) in out.chunks_exact_mut(cols).zip(rstd).enumerate() {
                    let row = chunk * rows + i;
                    let mut x = &x[row * cols..][..cols];
                    if let Some((residual, rounding)) = residual {
                        let sum = &mut sum[i * cols..][..cols];
                        let residual = &residual[row * cols..][..cols];
                        sum.iter_mut().zip(x).zip(residual).for_each(|((sum, &x), &y)| *sum = x + y);
                        if let Some(rounded) = rounding {
                            sum.iter_mut().for_each(|x| *x = rounded(*x));
                        }
                        x = sum;
                    }
                    let level =
                        if center == Center::Mean { row_sum(x) / T::of(cols as f64) } else { T::default() };
                    if center == Center::Mean {
                        mean[i] = level;
                    }
                    *rstd = T::of(1.0 / (squares(x, level) / cols as f64 + eps).sqrt());
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = (x - level) * *rstd;
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

/// The sum of squared differences from `mean`, in 16 lanes of `f64`.
#[inline(always)]
fn squares<T: Float>(row: &[T], mean: T) -> f64 {
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

/// Writes the gradient of `x`: `rstd · (g - mean(g) - x̂ · mean(g · x̂))`, with `g` the gradient times `weight` and `x̂` the
/// normalized row, plus `along`, if given. The term `mean(g)` is present only if the mean is subtracted.
pub fn row_norm_backward<T: Float>(
    of: &Rows<'_, T>,
    (grad, along): (&[T], Option<&[T]>),
    x: &[T],
    weight: Option<&[T]>,
    out: &mut [T],
) {
    assert_eq!([grad.len(), out.len()], [x.len(); 2], "row_norm_backward: grad, out and x differ in length");
    let cols = of.cols.max(1);
    for_each_piece(out, (PIECE / cols).max(1) * cols, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out) in piece.chunks_exact_mut(cols).enumerate() {
                    let row = start / cols + i;
                    let (mean, rstd) = (of.mean(row), of.rstd[row]);
                    let (x, grad) = (&x[row * cols..][..cols], &grad[row * cols..][..cols]);
                    // `out` first contains `g · x̂`, for its mean, and then `g`.
                    let set = |out: &mut [T], times: bool| {
                        for (i, out) in out.iter_mut().enumerate() {
                            let g = grad[i] * weight.map_or(T::of(1.0), |weight| weight[i]);
                            *out = if times { g * ((x[i] - mean) * rstd) } else { g };
                        }
                    };
                    set(out, true);
                    let slope = row_sum(out) / T::of(cols as f64);
                    set(out, false);
                    let level =
                        if of.mean.is_some() { row_sum(out) / T::of(cols as f64) } else { T::default() };
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = rstd * (*out - level - (x - mean) * rstd * slope);
                    }
                    if let Some(along) = along {
                        out.iter_mut().zip(&along[row * cols..]).for_each(|(out, &g)| *out += g);
                    }
                }
            },
        );
    });
}

/// Columns that are summed together.
const COLUMNS: usize = 64;

/// Writes the gradient of the weight: the sum over rows of `grad · x̂`.
pub fn row_norm_backward_scale<T: Float>(of: &Rows<'_, T>, grad: &[T], x: &[T], out: &mut [T]) {
    assert_eq!(grad.len(), x.len(), "row_norm_backward_scale: grad and x differ in length");
    let cols = out.len();
    for_each_piece(out, COLUMNS, |start, out| {
        vectorize(
            #[inline(always)]
            || {
                let mut sums = [0f64; COLUMNS];
                for (row, &rstd) in of.rstd.iter().enumerate() {
                    let (at, mean) = (row * cols + start, of.mean(row));
                    for ((sum, &x), &g) in sums.iter_mut().zip(&x[at..][..out.len()]).zip(&grad[at..]) {
                        *sum += (g * ((x - mean) * rstd)).wide();
                    }
                }
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::of(sum));
            },
        );
    });
}
