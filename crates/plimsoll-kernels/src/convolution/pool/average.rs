//! Average pooling, forward and backward.

use super::{PoolShape, Windows};
use crate::number::{Float, Number};
use crate::parallel::for_each_piece;
use crate::simd::vectorize;

/// The divisor of a window's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The number of its elements inside the image.
    Inside,
    /// The number of its elements inside the padded image.
    Padded,
    /// This number.
    Fixed(usize),
}

impl Divisor {
    /// The factor of a row in the divisors of its outputs; the other factor comes from the column.
    fn of_row(self, shape: &PoolShape, row: usize) -> usize {
        let [depth, height, _] = &shape.axes;
        let (oy, oz) = (row % height.out, row / height.out % depth.out);
        match self {
            Divisor::Inside => depth.window(oz).len() * height.window(oy).len(),
            Divisor::Padded => depth.padded_len(oz) * height.padded_len(oy),
            Divisor::Fixed(n) => n,
        }
    }

    fn of_column(self, shape: &PoolShape, column: usize) -> usize {
        match self {
            Divisor::Inside => shape.axes[2].window(column).len(),
            Divisor::Padded => shape.axes[2].padded_len(column),
            Divisor::Fixed(_) => 1,
        }
    }
}

/// A type for which means are computed: floating point, or integers, which are truncated.
pub trait Averaged: Number {
    /// `self / n`.
    fn over(self, n: usize) -> Self;
}

impl Averaged for f32 {
    #[inline(always)]
    fn over(self, n: usize) -> f32 {
        self / n as f32
    }
}

impl Averaged for f64 {
    #[inline(always)]
    fn over(self, n: usize) -> f64 {
        self / n as f64
    }
}

impl Averaged for i64 {
    #[inline(always)]
    fn over(self, n: usize) -> i64 {
        self / n as i64
    }
}

/// `to += from`, element by element; the elements of `from` are `stride` apart.
#[inline(always)]
fn add<T: Number>(to: &mut [T], from: &[T], stride: usize) {
    let one = T::ONE;
    match stride {
        1 => to.iter_mut().zip(from).for_each(|(to, &x)| *to = x.times_plus(one, *to)),
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &x)| *to = x.times_plus(one, *to)),
    }
}

/// Writes the mean of each window.
pub fn avg_pool<T: Averaged>(shape: &PoolShape, divisor: Divisor, input: &[T], out: &mut [T]) {
    shape.check(input.len(), out.len());
    if out.is_empty() {
        return;
    }
    let ([_, height, width], inner, row_len) = (&shape.axes, shape.inner, shape.out_row());
    for_each_piece(out, shape.piece(), |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out) in piece.chunks_exact_mut(row_len).enumerate() {
                    let row = start / row_len + i;
                    let (image, [wz, wy]) = shape.row(row);
                    out.fill(T::default());
                    for (_, z) in wz.taps() {
                        for (_, y) in wy.taps() {
                            let at = image * shape.in_plane() + (z * height.size + y) * width.size * inner;
                            add_row(shape, &input[at..][..width.size * inner], out);
                        }
                    }
                    let of_row = divisor.of_row(shape, row);
                    for (column, out) in out.chunks_exact_mut(inner).enumerate() {
                        let n = (of_row * divisor.of_column(shape, column)).max(1);
                        out.iter_mut().for_each(|out| *out = out.over(n));
                    }
                }
            },
        );
    });
}

/// Adds to each output of a row the elements of one input row that are in its window.
#[inline(always)]
fn add_row<T: Number>(shape: &PoolShape, row: &[T], out: &mut [T]) {
    let (width, inner) = (&shape.axes[2], shape.inner);
    if inner == 1 && matches!(width.windows, Windows::Sliding { .. }) {
        for tap in 0..width.kernel() {
            let (first, end, at, stride) = width.inside(tap);
            if first < end {
                add(&mut out[first..end], &row[at..], stride);
            }
        }
        return;
    }
    for (column, out) in out.chunks_exact_mut(inner).enumerate() {
        for (_, x) in width.window(column).taps() {
            add(out, &row[x * inner..][..inner], 1);
        }
    }
}

/// Writes the gradient of each input to `grad_in`: the sum of `grad_out` over the windows that contain it, each divided by the
/// window's divisor.
pub fn avg_pool_backward<T: Float + Averaged>(
    shape: &PoolShape,
    divisor: Divisor,
    grad_out: &[T],
    grad_in: &mut [T],
) {
    shape.check(grad_in.len(), grad_out.len());
    let ([_, height, width], inner, row_len) = (&shape.axes, shape.inner, shape.out_row());
    let rows = shape.axes[0].out * height.out;
    for_each_piece(grad_in, shape.image_piece(), |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                for (i, grad_in) in piece.chunks_exact_mut(shape.in_plane()).enumerate() {
                    grad_in.fill(T::default());
                    let image = start / shape.in_plane() + i;
                    for row in image * rows..(image + 1) * rows {
                        let (_, [wz, wy]) = shape.row(row);
                        let (grad, of_row) =
                            (&grad_out[row * row_len..][..row_len], divisor.of_row(shape, row));
                        for (column, grad) in grad.chunks_exact(inner).enumerate() {
                            let share =
                                T::of(1.0) / T::of((of_row * divisor.of_column(shape, column)).max(1) as f64);
                            for (_, z) in wz.taps() {
                                for (_, y) in wy.taps() {
                                    for (_, x) in width.window(column).taps() {
                                        let at = ((z * height.size + y) * width.size + x) * inner;
                                        let to = grad_in[at..][..inner].iter_mut();
                                        to.zip(grad).for_each(|(to, &g)| *to += g * share);
                                    }
                                }
                            }
                        }
                    }
                }
            },
        );
    });
}
