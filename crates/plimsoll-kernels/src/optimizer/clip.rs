//! The norm of all gradients together, and in-place clipping of gradients.

use std::ops::Range;

use super::super::number::Float;
use super::super::parallel::{PIECE, for_each_piece};
use super::super::simd::vectorize;

/// Parts of one long sum that may run in parallel.
const PARTS: usize = 64;
/// Values that are added in their own type, in [`LANES`] lanes, before they are added to the total.
const BLOCK: usize = 1024;
const LANES: usize = 16;

/// Adds `part(range)` over ranges that cover `0..len`. The ranges depend on `len` alone.
pub(super) fn sum_in_parts(len: usize, part: impl Fn(Range<usize>) -> f64 + Sync) -> f64 {
    let part_len = len.div_ceil(PARTS).max(PIECE);
    let mut totals = [0f64; PARTS];
    for_each_piece(&mut totals[..len.div_ceil(part_len)], 1, |at, total| {
        total[0] = part(at * part_len..len.min((at + 1) * part_len));
    });
    totals.into_iter().sum()
}

/// The sum of the squares of all elements.
pub(super) fn sum_of_squares<T: Float>(x: &[T]) -> f64 {
    sum_of(
        x,
        #[inline(always)]
        |x| x * x,
    )
}

/// The sum of `f` of all elements.
fn sum_of<T: Float>(x: &[T], f: impl Fn(T) -> T + Sync + Copy) -> f64 {
    sum_in_parts(x.len(), |range| {
        vectorize(
            #[inline(always)]
            || {
                let mut total = 0.0;
                for block in x[range].chunks(BLOCK) {
                    let mut lanes = [T::default(); LANES];
                    let mut rows = block.chunks_exact(LANES);
                    for row in &mut rows {
                        for (lane, &x) in lanes.iter_mut().zip(row) {
                            *lane += f(x);
                        }
                    }
                    let rest: f64 = rows.remainder().iter().map(|&x| f(x).wide()).sum();
                    total += lanes.into_iter().map(T::wide).sum::<f64>() + rest;
                }
                total
            },
        )
    })
}

/// The `p`-norm of all elements of all tensors. With `p` infinite, the largest absolute value.
pub fn norm<'a>(tensors: impl Iterator<Item = &'a [f32]>, p: f64) -> f64 {
    match p {
        2.0 => tensors.map(sum_of_squares).sum::<f64>().sqrt(),
        1.0 => tensors
            .map(|x| {
                sum_of(
                    x,
                    #[inline(always)]
                    |x: f32| x.abs(),
                )
            })
            .sum(),
        f64::INFINITY => tensors.flatten().fold(0.0, |max: f64, &x| {
            let x = f64::from(x.abs());
            // NaN is kept.
            if x > max || x.is_nan() { x } else { max }
        }),
        p => tensors.flatten().map(|&x| f64::from(x.abs()).powf(p)).sum::<f64>().powf(p.recip()),
    }
}

/// Multiplies every element by `factor`.
pub fn scale(x: &mut [f32], factor: f32) {
    for_each_piece(x, PIECE, |_, x| {
        vectorize(
            #[inline(always)]
            || x.iter_mut().for_each(|x| *x *= factor),
        );
    });
}

/// Clamps every element to `-bound..=bound`; NaN stays NaN.
pub fn clamp(x: &mut [f32], bound: f32) {
    for_each_piece(x, PIECE, |_, x| {
        vectorize(
            #[inline(always)]
            || x.iter_mut().for_each(|x| *x = x.clamp(-bound, bound)),
        );
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;

    #[test]
    fn norms_match_the_formula_in_double_precision_on_any_threads() {
        for len in [0, 1, 17, 1000, 100_003] {
            let (a, b) = (random(len, 1), random(len / 2, 2));
            let all = || a.iter().chain(&b).map(|&x| f64::from(x.abs()));
            for (p, expected) in [
                (2.0, all().map(|x| x * x).sum::<f64>().sqrt()),
                (1.0, all().sum()),
                (3.0, all().map(|x| x.powi(3)).sum::<f64>().cbrt()),
                (f64::INFINITY, all().fold(0.0, f64::max)),
            ] {
                let found = on_any_threads(|| vec![norm([&a[..], &b[..]].into_iter(), p) as f32]);
                assert_close(&found, &[expected as f32], 1e-5);
            }
        }
    }

    #[test]
    fn a_nan_is_in_every_norm() {
        for p in [1.0, 2.0, 3.0, f64::INFINITY] {
            assert!(norm([&[1.0, f32::NAN, 2.0][..]].into_iter(), p).is_nan(), "{p}");
        }
    }
}
